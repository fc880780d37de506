//go:build race

package session_test

import "time"

const (
	raceEnabled = true
	testTime    = 40 * time.Second // every access costs some tenfold
)
