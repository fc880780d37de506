package shm

import (
	"context"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How nobody sleeps through a message.
//
// A waiter raises a flag in shared memory, looks once more, and sleeps on a
// futex. A sender publishes, looks at the flag, and wakes. Each must see the
// other's store unless its own was seen, which takes a full barrier between
// store and load on both sides. The sender's would cost every message tens of
// nanoseconds, so the waiter, who is about to pay for a system call anyway,
// executes it on everybody's behalf: membarrier(2) with
// MEMBARRIER_CMD_GLOBAL_EXPEDITED (Linux 4.16) runs one on every CPU that runs
// a process that has registered for it. Where either side cannot register,
// senders exchange the flag instead of reading it.
const (
	futexWaitOp = 0 // FUTEX_WAIT, not private: the word is shared
	futexWakeOp = 1

	membarrierGlobalExpedited         = 1 << 1
	membarrierRegisterGlobalExpedited = 1 << 2
)

// registerBarrier asks the kernel to include this process in barriers. It may
// be called again.
func registerBarrier() bool {
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierRegisterGlobalExpedited, 0, 0)
	return errno == 0
}

// raise sets a flag and makes sure that whoever does not see it has had his
// earlier stores seen.
func raise(flag *uint32, asymmetric bool) {
	atomic.SwapUint32(flag, 1)
	if asymmetric {
		_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobalExpedited, 0, 0)
	}
}

// raised reports whether a flag may be up; see above for why reading it is
// enough when both processes have registered.
func raised(flag *uint32, asymmetric bool) bool {
	if asymmetric {
		return load32(flag) != 0
	}
	return atomic.AddUint32(flag, 0) != 0
}

// wake wakes all that sleep on seq.
func wake(seq *uint32) {
	atomic.AddUint32(seq, 1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(seq)), futexWakeOp, math.MaxInt32, 0, 0, 0)
}

// sleep blocks until seq is not val any more, or d has passed.
func sleep(seq *uint32, val uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(seq)), futexWaitOp, uintptr(val), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// The sleeper wakes up by itself once in a while, so that a hostile peer that
// never wakes it cannot hide that the connection has ended.
const longestSleep = 500 * time.Millisecond

// spins is how many polls a wait makes before it sleeps: a few microseconds,
// less than what sleeping and waking cost.
const spins = 300

// waiter is what a blocking call needs: something to poll, and where to sleep.
type waiter interface {
	// ready polls once.
	ready() (done bool, err error)
	// arm raises the flags that make peers wake seq.
	arm()
	// disarm takes them down.
	disarm()
}

// block polls w until it is done, and sleeps in between. The memory it sleeps
// on stays mapped meanwhile (see quiesce).
func (n *conn) block(ctx context.Context, w waiter) error {
	for range spins {
		if done, err := w.ready(); done {
			return err
		}
	}
	stop := context.AfterFunc(ctx, n.wakeSelf)
	defer stop()
	atomic.StoreUint32(&n.blocked, 1) // a full barrier: the state is read next
	defer store32(&n.blocked, 0)
	for {
		if s := n.state.Load(); s == stateClosed || s == stateConnecting {
			store32(&n.blocked, 0)
			return outlast(ctx, w)
		}
		val := atomic.LoadUint32(&n.mine.seq)
		w.arm()
		if done, err := w.ready(); done {
			w.disarm()
			return err
		}
		if err := ctx.Err(); err != nil {
			w.disarm()
			return err
		}
		n.tally.Slept.Add(1)
		sleep(&n.mine.seq, val, longestSleep)
	}
}

// outlast waits for w after this side has closed: until the peer has left the
// memory of the packet.
func outlast(ctx context.Context, w waiter) error {
	for {
		if done, err := w.ready(); done {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		pause()
	}
}

// wakeSelf wakes this side's waits on the instance.
func (n *conn) wakeSelf() {
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.seg != nil {
		wake(&n.mine.seq)
	}
}
