//go:build !linux

package drivertest

import (
	"os/exec"
	"time"
)

func dieWithParent(*exec.Cmd) {}

func nap(d time.Duration) { time.Sleep(d) }
