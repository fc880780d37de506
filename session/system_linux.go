package session

import (
	"os"
	"syscall"
	"time"

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

// alarm is a timerfd in the poller of the Go runtime.
type alarm struct {
	file    *os.File
	conn    syscall.RawConn
	arm     func(fd uintptr) // settime for next
	ring    func(fd uintptr) // settime for at once
	next    unix.ItimerSpec
	expired [8]byte
}

// newAlarm returns nil if there are no descriptors left.
func newAlarm() *alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timer")}
	if a.conn, err = a.file.SyscallConn(); err != nil {
		a.file.Close()
		return nil
	}
	a.arm = func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &a.next, nil) }
	now := unix.ItimerSpec{Value: unix.Timespec{Nsec: 1}}
	a.ring = func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &now, nil) }
	return a
}

// set has wait return after d, which is more than 0. It is for the goroutine that waits.
func (a *alarm) set(d time.Duration) {
	a.next.Value = unix.NsecToTimespec(int64(d))
	_ = a.conn.Control(a.arm)
}

// now has wait return at once. Any goroutine may call it.
func (a *alarm) now() { _ = a.conn.Control(a.ring) }

func (a *alarm) wait() { _, _ = a.file.Read(a.expired[:]) }

func (a *alarm) close() { a.file.Close() }

// unicastOnly has the kernel refuse to send to broadcast addresses, which Go allows by default: only a host that is
// attached to the network can recognise its broadcast address.
func unicastOnly(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 0) })
}
