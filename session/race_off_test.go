//go:build !race

package session_test

import "time"

const (
	raceEnabled = false
	testTime    = 10 * time.Second
)
