//go:build !unix

package drivertest

import (
	"syscall"
	"time"
)

// Checks that stop a peer fail: no process can be sent these signals.
const (
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)

// cpuTime is not known: checks that a wait sleeps find nothing.
func cpuTime() time.Duration { return 0 }
