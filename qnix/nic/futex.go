//go:build linux

package nic

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait    = 0 // not private: the word is shared
	futexWake    = 1
	futexPrivate = 128

	futexSize32 = 2 // futexWaiter.flags
)

// futexWaiter is the kernel's struct futex_waitv.
type futexWaiter struct {
	val, addr uint64
	flags, _  uint32
}

// noWaitv reports whether the kernel lacks futex_waitv (Linux 5.16).
var noWaitv atomic.Bool

// oldSleep is the longest sleep without futex_waitv, which can miss a wake-up.
const oldSleep = 10 * time.Millisecond

// futexSleep blocks while the shared word is val and the private one seenWakes, for
// at most d.
func futexSleep(word *uint32, val uint32, w *atomic.Uint32, seenWakes uint32, d time.Duration) {
	if !noWaitv.Load() {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		end := unix.NsecToTimespec(now.Nano() + int64(d))
		on := [2]futexWaiter{
			{val: uint64(val), addr: uint64(uintptr(unsafe.Pointer(word))), flags: futexSize32},
			{val: uint64(seenWakes), addr: uint64(uintptr(unsafe.Pointer(w))), flags: futexSize32 | futexPrivate},
		}
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&on)), uintptr(len(on)), 0,
			uintptr(unsafe.Pointer(&end)), unix.CLOCK_MONOTONIC, 0)
		if errno != unix.ENOSYS && errno != unix.EPERM { // a sandbox may refuse unknown calls with EPERM
			return
		}
		noWaitv.Store(true)
	}
	ts := unix.NsecToTimespec(int64(min(d, oldSleep)))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(val),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// futexRouse wakes sleepers on the private word and, before Linux 5.16, on the shared one.
func futexRouse(word *uint32, w *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake|futexPrivate, math.MaxInt32, 0, 0, 0)
	if noWaitv.Load() {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
	}
}

// yield gives the processor to another thread.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
