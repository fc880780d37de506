//go:build linux && !(386 || arm || mips || mipsle) && race

package session_test

import "time"

const (
	raceEnabled = true
	testTime    = 40 * time.Second // every access costs some tenfold
	lossSize    = 2 << 20          // and so does every byte
	longLane    = 1 << 20
	longest     = 2 << 20
)
