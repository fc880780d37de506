//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"runtime"
	"sync/atomic"

	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// pollBatch is the most completions that one call into C returns.
const pollBatch = 32

// requestID makes the id of a work request from its kind and number. The completion's tag names the connection and its
// queue pair; it is 0 once the queue pair is closed.
func requestID(kind eventKind, id uint32) uint64 { return uint64(kind)<<32 | uint64(id) }

// queueTag returns the tag of one of a connection's queue pairs.
func queueTag(conn uint32, queue uint8) uint32 { return 1 + conn*2 + uint32(queue) }

// completions are the context's completion queues, nearly always one. The goroutine that holds the try-lock drains them
// and hands each completion to its connection. No data path waits for the lock.
type completions struct {
	lock      atomic.Uint32
	armed     bool // the completion channel will report the next completion; guarded by lock
	_         [56]byte
	queues    []*completionQueue // guarded by lock; the context's mutex, too, guards changes
	wcs       [pollBatch]ibv.WC
	crossings kit.Tally // calls into C that found completions; guarded by lock
	dead      error     // why the queues cannot be polled any more; guarded by lock
}

func (q *completions) tryLock() bool { return q.lock.Load() == 0 && q.lock.CompareAndSwap(0, 1) }
func (q *completions) unlock()       { q.lock.Store(0) }

// mustLock waits for the lock. It is for callers that are about to sleep or to free something.
func (q *completions) mustLock() {
	for !q.tryLock() {
		runtime.Gosched()
	}
}

// Drain implements kit.ContextHooks: it handles one batch of completions of each queue.
func (c *opened) Drain() bool {
	if c.done.tryLock() {
		c.drainLocked()
		c.done.unlock()
	}
	return true
}

// drainLocked handles one batch of each queue and reports whether there may be more. The caller holds the lock.
func (c *opened) drainLocked() bool {
	q := &c.done
	if q.dead != nil {
		return false
	}
	more := false
	for _, from := range q.queues {
		n, err := from.cq.Poll(q.wcs[:])
		if err != nil {
			q.dead = err
			c.deviceGone(err)
			return false
		}
		if n > 0 {
			q.crossings.Add(1)
		}
		for k := range q.wcs[:n] {
			c.deliver(&q.wcs[k])
		}
		more = more || n == len(q.wcs)
	}
	return more
}

// arm makes the device report the next completion on the completion channel. The caller holds the lock.
func (q *completions) arm() error {
	for _, from := range q.queues {
		if err := from.cq.ReqNotify(false); err != nil {
			return err
		}
	}
	q.armed = true
	return nil
}

// drainAll empties the completion queues: all completions from before the call are then handled.
func (c *opened) drainAll() {
	c.done.mustLock()
	for c.drainLocked() {
	}
	c.done.unlock()
}

// deliver hands a completion to its connection. It uses none of the fields that belong to the connection's owner.
func (c *opened) deliver(wc *ibv.WC) {
	if wc.Status == ibv.WCBind { // the device has windows, and does not bind them: connections after this one do without
		c.windows.Store(false)
	}
	var n *conn
	if wc.Tag > 0 && wc.Tag <= 2*kit.MaxInstances {
		n = c.Conns.At((wc.Tag - 1) / 2)
	}
	if n == nil { // the queue pair is closed
		if c.shared != nil && eventKind(wc.ID>>32) == eventRecv {
			c.shared.adopt(uint32(wc.ID))
		}
		return
	}
	e := event{kind: eventKind(wc.ID >> 32), queue: uint8((wc.Tag - 1) % 2), id: uint32(wc.ID)}
	if wc.Status != ibv.WCSuccess {
		if e.code = uint8(wc.Status); e.kind == eventRecv {
			e.kind = eventUnused
		} else {
			e.kind = eventFailed
		}
		if e.kind == eventFailed || n.State() != kit.StateClosed { // closing resets a queue pair that has receives
			n.firstBad.CompareAndSwap(0, uint64(wc.Status)|uint64(wc.VendorErr)<<32)
		}
	} else if e.kind == eventRecv {
		e.n, e.imm = wc.ByteLen, wc.Imm()
		e.code = uint8(e.imm >> immBits)
		if wc.Flags&ibv.WCWithImm == 0 || (wc.Opcode == ibv.WCRecvWriteImm) != (e.code == codeDone) {
			e.code = 0 // undefined in a failed completion
		}
	}
	if !n.inbox.push(e) {
		if c.shared != nil && eventKind(wc.ID>>32) == eventRecv {
			c.shared.adopt(e.id)
		}
		n.Misbehaved("more messages than it may send")
		n.cutOff()
		return
	}
	n.notice(&e)
}
