package drivertest

import (
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the process when its parent dies.
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} }

// nap sleeps in the kernel: timers of the Go runtime are less precise.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&ts, nil)
}
