//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// How no waiter sleeps through a message.
//
// A waiter raises a flag in shared memory, looks once more, and sleeps on a
// futex. A sender publishes, looks at the flag, and wakes. Each must see the
// other's store unless its own was seen, which takes a full barrier between
// store and load on both sides. The sender's would cost every message tens of
// nanoseconds, so the waiter, which is about to pay for a system call anyway,
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

// raise sets a flag. Afterwards this side sees all stores that a peer made
// before it read the flag as not set.
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

// spins is the number of polls that a wait makes before it sleeps: a few microseconds,
// less than what sleeping and waking cost.
const spins = 300

// Sleeps in the kernel: the first one of a wait is short, so that the end of the waiter's context need not end it.
const firstSleep = time.Millisecond

func sleepTime(again bool) time.Duration {
	if again {
		return longestSleep
	}
	return firstSleep
}

// pageWaits are the waits for any peer, which sleep on the context's page.
type pageWaits struct {
	page  *wakePage
	asym  bool          // peers need no fence to see raised
	all   *kit.AnyWaits // those that sleep
	users atomic.Int32  // goroutines that touch the page
	gone  atomic.Bool   // none may begin to
}

// enter keeps the page mapped until leave. It is false once the context is being closed.
func (w *pageWaits) enter() bool {
	w.users.Add(1)
	if w.gone.Load() {
		w.users.Add(-1)
		return false
	}
	return true
}

func (w *pageWaits) leave() { w.users.Add(-1) }

func (w *pageWaits) Arm() (seen uint64) {
	if !w.enter() {
		return 0
	}
	defer w.leave()
	seen = uint64(atomic.LoadUint32(&w.page.seq))
	raise(&w.page.raised, w.asym)
	return seen
}

func (w *pageWaits) Sleep(seen uint64, again bool) {
	if w.enter() {
		sleep(&w.page.seq, uint32(seen), sleepTime(again))
		w.leave()
	}
}

func (w *pageWaits) Wake() {
	if w.enter() {
		wake(&w.page.seq)
		w.leave()
	}
}

// Call implements kit.Watched: another waiter watches.
func (w *pageWaits) Call() { w.all.Wake(false) }

// close waits until no goroutine accesses the page any more, and unmaps it.
func (w *pageWaits) close() {
	w.gone.Store(true)
	if w.page == nil {
		return
	}
	for w.users.Load() != 0 {
		wake(&w.page.seq)
		runtime.Gosched()
	}
	_ = unix.MunmapPtr(unsafe.Pointer(w.page), wakePageBytes)
	w.page = nil
}

// ownWaits are the waits on one instance, which sleep in its own memory.
type ownWaits struct{ n *conn }

// Arm implements kit.Watched: it raises the flag that makes the peer wake seq.
func (w ownWaits) Arm() (seen uint64) {
	n := w.n
	if !n.Enter() {
		return 0
	}
	defer n.Leave()
	seen = uint64(atomic.LoadUint32(&n.mine.seq))
	n.armed = true
	raise(n.track.flag(n.sending), n.asym)
	if !n.sending && n.track.stalled() { // the peer makes room
		raise(n.track.flag(true), n.asym)
	}
	return seen
}

// Sleep implements kit.Watched. The memory that it sleeps on stays mapped meanwhile (see quiesce). After this side has
// closed it waits for the peer to leave the memory of the packet.
func (w ownWaits) Sleep(seen uint64, again bool) {
	n := w.n
	atomic.StoreUint32(&n.blocked, 1) // a full barrier: the state is read next
	if n.State() != kit.StateClosed {
		sleep(&n.mine.seq, uint32(seen), sleepTime(again))
		store32(&n.blocked, 0)
		return
	}
	store32(&n.blocked, 0)
	pause()
}

func (w ownWaits) Wake() {
	w.n.mu.Lock()
	defer w.n.mu.Unlock()
	if w.n.seg != nil {
		wake(&w.n.mine.seq)
	}
}

// Call implements kit.Watched. It does nothing: no other goroutine sleeps here.
func (ownWaits) Call() {}

func (n *conn) SendWait(ctx context.Context, p *driver.Packet) error {
	n.sending = true
	defer n.disarm()
	return n.Conn.SendWait(ctx, p)
}

func (n *conn) RecvWait(ctx context.Context, p *driver.Packet) error {
	n.sending = false
	defer n.disarm()
	return n.Conn.RecvWait(ctx, p)
}

// disarm takes the flag down, so that the peer makes no needless wake-up.
func (n *conn) disarm() {
	if n.armed && n.Enter() {
		atomic.StoreUint32(n.track.flag(false), 0)
		atomic.StoreUint32(n.track.flag(true), 0)
		n.Leave()
	}
	n.armed = false
}
