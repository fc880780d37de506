//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"slices"
	"time"

	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// graceTime is how long requests from before the peer's close message may take to be acknowledged.
const graceTime = 500 * time.Millisecond

// cannotComplete reports whether posted requests of a connection that has ended cannot complete any more. After the
// peer's close message it grants graceTime: the message can overtake the acknowledgement of a write that the peer has
// seen, because two tasks of a device handle them.
func (n *conn) cannotComplete() bool {
	if n.State() != kit.StatePeerClosed || n.firstBad.Load() != 0 || n.qpsReset {
		return true
	}
	if n.grace.IsZero() {
		n.grace = time.Now().Add(graceTime)
		time.AfterFunc(graceTime, n.Life.Wake) // a waiter polls once more then
	}
	return !time.Now().Before(n.grace)
}

// resetQPs makes the device release all memory of a connection that has ended: queue pairs in RESET neither read nor
// write. Only finishClose closes them, because the kernel may wait there for packets that a dead link holds. Earlier
// completions are in the inbox when resetQPs returns. It returns false if the device has done neither, which may still use
// the memory then: later calls try again.
func (n *conn) resetQPs() bool {
	if n.qpsReset {
		return true
	}
	if time.Now().Before(n.nextReset) {
		return false
	}
	n.nextReset = time.Now().Add(resetPause)
	n.stopQueues()
	n.ctx.drainAll()
	n.api.unbind()
	n.qpsReset = true
	for _, qp := range n.qps {
		if n.ctx.reset(qp) != nil && qp.Close() != nil {
			n.qpsReset = false
		}
	}
	if !n.qpsReset {
		time.AfterFunc(resetPause, n.Life.Wake) // a waiter polls once more then
	}
	return n.qpsReset
}

// resetPause is how long after a device has refused a reset it is asked again.
const resetPause = time.Second

// drainTime is how long Soft-RoCE may take to finish with a packet.
const drainTime = 2 * time.Millisecond

// reset takes a queue pair to RESET while the peer may send. Soft-RoCE (6.1) frees a packet twice, and with it the
// queue pair, if RESET comes while another processor handles that packet. In ERR it accepts no more packets.
func (c *opened) reset(qp *ibv.QP) error {
	if attr := c.dev.Query(); attr.SoftRoCE() && qp.ToErr() == nil {
		time.Sleep(drainTime)
	}
	return qp.ToReset()
}

// stopQueues waits until all shared receives that a connection's queue pair has taken are back: a device forgets
// completions of queue pairs that are reset or closed.
func (n *conn) stopQueues() {
	if n.ctx.shared == nil {
		return
	}
	for _, qp := range n.qps {
		if qp.ToErr() == nil {
			n.awaitLast()
		}
	}
	n.ctx.drainAll()
}

// lastTime is how long a device, and this process, may take to report that a queue pair in ERR has completed what it took
// of a shared receive queue. A device that has never reported it is waited for once.
const lastTime = time.Second

// What is known of a device's event Last WQE Reached.
const (
	lastUnknown = iota
	lastReported
	lastSilent // it did not come in time, and never has
)

// awaitLast waits for the event Last WQE Reached: the device takes no further receive for the queue pair, which is in
// ERR, and has completed those that it took (InfiniBand Architecture Specification, volume 1, 10.3.1). Soft-RoCE has no
// such event, nor has a queue pair that was never connected.
func (n *conn) awaitLast() {
	s := n.ctx.shared
	if attr := n.ctx.dev.Query(); attr.SoftRoCE() || n.theirs.buffer == 0 || s.last.Load() == lastSilent {
		return
	}
	select {
	case <-n.last:
	case <-time.After(lastTime):
		s.last.CompareAndSwap(lastUnknown, lastSilent)
	}
}

// lastReached is called when the device has reported that event for a queue pair.
func (c *opened) lastReached(qp *ibv.QP) {
	if s := c.shared; s != nil {
		s.last.Store(lastReported)
	}
	for _, n := range c.all() {
		if n.made.Load() && slices.Contains(n.qps, qp) {
			select {
			case n.last <- struct{}{}:
			default:
			}
		}
	}
}

// cutOff has the device take nothing more from a peer that has sent more than it may, so that shared receives are left to
// others. The caller drains the completion queue.
func (n *conn) cutOff() {
	if n.isCut {
		return
	}
	n.isCut = true
	n.stopQPs()
}

// stopQPs has the device answer nothing that the peer sends, which then learns that the connection is over.
func (n *conn) stopQPs() {
	n.ctx.tasks.Go(func() {
		for _, qp := range n.qps {
			_ = qp.ToErr() // fails once its owner has reset or closed it
		}
	})
}

// closeQueues closes the queue pairs. It first frees all that is bound to them, because Soft-RoCE waits for that. It returns
// false if the device has refused.
func (n *conn) closeQueues() bool {
	n.api.unbind()
	all := true
	for _, qp := range n.qps {
		all = qp.Close() == nil && all
	}
	return all
}
