package session

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// usableCPUs returns how many CPUs this process may use, or 0 if it is not known.
func usableCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 0
	}
	return set.Count()
}

// yieldCPU lets another process run.
func yieldCPU() { _, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// unicastOnly has the kernel refuse to send to broadcast addresses, which Go allows by default: only a host that is
// attached to the network can recognise its broadcast address.
func unicastOnly(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 0) })
}
