//go:build linux && !(386 || arm || mips || mipsle) && !race

package session_test

import "time"

const (
	raceEnabled = false
	testTime    = 30 * time.Second
	lossSize    = 6 << 20 // of a message while a rail is lost
	longLane    = 4 << 20 // the longest of messages that are under way at the same time
	longest     = 5 << 20 // of the lengths that every mode carries
)
