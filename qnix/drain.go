package qnix

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// ref says whose a context is.
type ref struct {
	conn *conn
	peer *peer // control
	slot int   // among the connection's contexts
}

// bells is the context's Doorbell Ring. Whoever holds the try-lock drains it and tells each instance what concerns
// it; nobody waits for the lock on a data path.
type bells struct {
	lock atomic.Uint32
	seen atomic.Uint32 // entries that were drained; written by the holder of the lock
	_    [56]byte

	// Guarded by the lock.
	sends, receives []ref
}

func (b *bells) tryLock() bool { return b.lock.Load() == 0 && b.lock.CompareAndSwap(0, 1) }
func (b *bells) unlock()       { b.lock.Store(0) }

// mustLock is for those who change whose a context is.
func (b *bells) mustLock() {
	for !b.tryLock() {
		runtime.Gosched()
	}
}

// quiet reports whether nothing has rung since the last drain. It is what polls in vain cost.
func (c *process) quiet() bool { return c.proc.RingTail() == c.bells.seen.Load() }

// vainPolls is after how many polls in vain the processor is offered to others.
const vainPolls = 8

// vain is called after a poll that found nothing. A NIC in user space is a process that needs a processor, too: where there are
// few, who polls would otherwise keep it from what he polls for.
func (c *process) vain() {
	if c.soft && c.polls.Add(1)%vainPolls == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// Drain implements kit.ContextHooks: it takes what has rung.
func (c *process) Drain() (did bool) {
	if c.quiet() {
		c.vain()
		return false
	}
	for !c.quiet() && c.bells.tryLock() {
		did = true
		c.drainLocked()
		c.bells.unlock()
	}
	return did
}

func (c *process) drainLocked() {
	b := &c.bells
	seen := b.seen.Load()
	for {
		r, ok := c.proc.Rung(&seen)
		switch {
		case !ok:
			b.seen.Store(seen)
			return
		case r.Overrun: // each context that has rung is drained before it is posted again
			c.nicFailed(fmt.Errorf("the Doorbell Ring lost entries"))
		case r.Receive:
			c.receiveRang(r.Index)
		default:
			c.sendRang(r.Index)
		}
	}
}

func (c *process) receiveRang(i int) {
	switch r := &c.bells.receives[i]; {
	case r.peer != nil:
		c.attention.addPeer(r.peer)
		c.nudge()
	case r.conn != nil:
		if state, n := c.proc.ReceiveDoorbell(i); state != nic.Pending { // else of an earlier use of the context
			r.conn.api.received(r.slot, state, n)
		}
	}
}

func (c *process) sendRang(i int) {
	switch r := &c.bells.sends[i]; {
	case r.peer != nil:
		c.attention.addPeer(r.peer)
		c.nudge()
	case r.conn != nil:
		if state, n := c.proc.SendDoorbell(i); state != nic.Pending {
			r.conn.api.sent(r.slot, state, n)
		}
	}
}

// own makes n contexts of each kind a connection's, or with nil nobody's.
func (c *process) own(n *conn, owner *conn) {
	b := &c.bells
	b.mustLock()
	defer b.unlock()
	for k := range n.receives.n {
		b.receives[n.receives.at+k] = ref{conn: owner, slot: k}
	}
	for k := range n.sends.n {
		b.sends[n.sends.at+k] = ref{conn: owner, slot: k}
	}
}

// doorbellError is what a doorbell that tells of a failure means to a connection.
func (c *process) doorbellError(s nic.State) error {
	switch s {
	case nic.Gone, nic.Unknown:
		return fmt.Errorf("%w: %s: the peer's process is gone", driver.ErrBroken, c.Props.Device)
	case nic.NoMemory:
		return fmt.Errorf("%w: %s: a table of the NIC is full, or it has no memory", driver.ErrBroken, c.Props.Device)
	}
	return fmt.Errorf("%w: %s: the NIC says %v", driver.ErrBroken, c.Props.Device, s)
}
