//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// ref identifies the user of a context.
type ref struct {
	conn *conn
	peer *peer // for control messages
	slot int   // number among the connection's contexts
}

// doorbells is the context's Doorbell Ring. The holder of the try-lock, the drainer, drains it and passes each doorbell
// to its instance. No data path waits for the lock.
type doorbells struct {
	lock atomic.Uint32
	seen atomic.Uint32 // entries that were drained; only the drainer writes it
	_    [56]byte

	// Guarded by the lock.
	sends, receives []ref
}

func (b *doorbells) tryLock() bool { return b.lock.Load() == 0 && b.lock.CompareAndSwap(0, 1) }
func (b *doorbells) unlock()       { b.lock.Store(0) }

// mustLock waits for the lock. It is for callers that change the user of a context.
func (b *doorbells) mustLock() {
	for !b.tryLock() {
		runtime.Gosched()
	}
}

// quiet reports whether no doorbell has rung since the last drain. A poll without a result costs no more than this.
func (c *process) quiet() bool { return c.proc.RingTail() == c.doorbells.seen.Load() }

// vainPolls is the number of polls without a result after which the processor is yielded.
const vainPolls = 8

// vain is called after a poll without a result. A NIC in user space needs a processor, too: with few processors, a
// polling program would keep the NIC from running.
func (c *process) vain() {
	if c.soft && c.polls.Add(1)%vainPolls == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// drainMost is how many doorbells one call handles at most, some 0.1 ms: peers that send much, and goroutines that post
// again at once, would keep it busy for longer. A waiter does not sleep while others are left.
const drainMost = 1024

// Drain implements kit.ContextHooks. It handles the doorbells that have rung.
func (c *process) Drain() (did bool) {
	if !c.polled.Load() {
		c.polled.Store(true)
	}
	if c.quiet() {
		c.vain()
		return false
	}
	return c.drain()
}

// drain is Drain for the background goroutine.
func (c *process) drain() (did bool) {
	for n := 0; n < drainMost && !c.quiet() && c.doorbells.tryLock(); {
		did = true
		n += c.drainLocked(drainMost - n)
		c.doorbells.unlock()
	}
	return did
}

// drainLocked handles doorbells that have rung, at most so many, and returns how many there were.
func (c *process) drainLocked(most int) (n int) {
	b := &c.doorbells
	seen := b.seen.Load()
	for ; n < most; n++ {
		r, ok := c.proc.Rung(&seen)
		if !ok {
			break
		}
		switch {
		case r.Overrun: // impossible: each context is drained before it is posted again
			c.nicFailed(fmt.Errorf("the Doorbell Ring lost entries"))
		case r.Receive:
			c.receiveRang(r.Index)
		default:
			c.sendRang(r.Index)
		}
	}
	b.seen.Store(seen)
	return n
}

func (c *process) receiveRang(i int) {
	switch r := &c.doorbells.receives[i]; {
	case r.peer != nil:
		c.workList.addPeer(r.peer)
		c.wakeBackground()
	case r.conn != nil:
		if state, n := c.proc.ReceiveDoorbell(i); state != nic.Pending { // else: an earlier use of the context
			r.conn.api.received(r.slot, state, n)
		}
	}
}

func (c *process) sendRang(i int) {
	switch r := &c.doorbells.sends[i]; {
	case r.peer != nil:
		c.workList.addPeer(r.peer)
		c.wakeBackground()
	case r.conn != nil:
		if state, n := c.proc.SendDoorbell(i); state != nic.Pending && state != nic.Free {
			r.conn.api.sent(r.slot, state, n)
		}
	case i == c.fence.context:
		c.fence.rang.Store(true)
		c.wakeBackground()
	}
}

// own assigns n's contexts to owner, or to no connection if owner is nil.
func (c *process) own(n *conn, owner *conn) {
	b := &c.doorbells
	b.mustLock()
	defer b.unlock()
	for k := range n.receives.n {
		b.receives[n.receives.at+k] = ref{conn: owner, slot: k}
	}
	for k := range n.sends.n {
		b.sends[n.sends.at+k] = ref{conn: owner, slot: k}
	}
}

// doorbellError returns the error of a connection for a doorbell that reports a failure.
func (c *process) doorbellError(s nic.State) error {
	switch s {
	case nic.Gone, nic.Unknown:
		return fmt.Errorf("%w: %s: the peer's process is gone", driver.ErrBroken, c.Props.Device)
	case nic.NoMemory:
		return fmt.Errorf("%w: %s: a table of the NIC is full, or it has no memory", driver.ErrBroken, c.Props.Device)
	}
	return fmt.Errorf("%w: %s: NIC status: %v", driver.ErrBroken, c.Props.Device, s)
}
