//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// small is an instance on the small track: messages are short sends from Context Region to Context Region.
//
// # The window
//
// Message k uses receive k mod window of the peer, and its tag. The NIC transfers one message of a tag at a time, so
// several tags make a pipeline, and this driver puts messages that overtake in order. A sender stops at the limit that
// the peer has sent: the number of receives that the peer has posted since the beginning. The limit travels in the head
// of every message. It also travels alone, as a credit, when half of the last limit is used up. So a receive is always
// posted, and no message waits in the NIC. The limit also shows which sends are over, so that their doorbells need not
// ring.
type small struct {
	conn
	kit.Small
	window uint64 // receives of this side
	ours   uint64 // sends: the lesser of both sides' numbers; set before state is up

	// Used by the owner only. Messages carry the low 32 bits of these numbers; with these alone, two messages would use one
	// slot when they wrap, unless the window is a power of two.
	taken     uint64      // number of messages received
	posted    uint64      // number of receives posted
	limitSent uint64      // the last limit sent to the peer
	started   uint64      // number of messages sent
	credits   uint32      // number of credits sent
	message   nic.Message // memory for posts

	limit     atomic.Uint32 // the most that started may be; only the drainer writes it
	crediting atomic.Bool   // a credit is under way, until the drainer sees its doorbell

	// Receives that found the Command Queue full: the background goroutine posts them.
	lacksReceives atomic.Bool
	lacksCredit   atomic.Bool // that of the peer's next credit

	// Used when the connection retires, by the background goroutine.
	probing        atomic.Bool // send contexts carry probes; the drainer reads it
	probed         int         // contexts that have their probe, with the one of credits
	creditCanceled bool        // the cancel of the last credit was posted

	// Used by the drainer only.
	arrived uint64 // number of messages that have arrived in order
	early   uint64 // receives whose doorbells rang ahead of order, by slot
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ kit.Starter           = (*small)(nil)
)

func newSmall(window int) *small {
	s := &small{window: uint64(window)}
	s.Init(&s.Conn, s)
	return s
}

// creditSlot is the place of the receive for the peer's credits.
func (s *small) creditSlot() int { return int(s.call.receives) }

// prepare implements track. It may be called again, for another call of the peer: the first receives are then posted
// already.
func (s *small) prepare() {
	c := s.ctx
	both := min(s.call.receives, s.theirs.sends)
	c.doorbells.mustLock() // the drainer reads it as soon as a message arrives
	s.window = uint64(both)
	s.ours = uint64(min(s.call.sends, s.theirs.receives))
	s.limit.Store(uint32(s.ours))
	c.doorbells.unlock()
	if c.failed != nil {
		return
	}
	s.posted = 0
	s.fill()
	s.postCredit()
}

// fill posts the first receives, as far as the Command Queue has room.
func (s *small) fill() {
	for s.posted < s.window && s.post(int(s.posted)) {
		s.posted++
	}
	s.limitSent = s.posted
	s.lacksReceives.Store(s.posted < s.window)
}

// postCredit posts the receive for the peer's next credit, and reports whether the Command Queue had room. If not, the
// background goroutine is to post it.
func (s *small) postCredit() bool {
	s.lacksCredit.Store(false) // before: the credit may come at once, and the next receive may find no room
	room := s.post(s.creditSlot())
	if !room {
		s.lacksCredit.Store(true)
	}
	return room
}

// post posts the receive in a slot, unless it is posted already. It reports whether the Command Queue had room.
func (s *small) post(slot int) bool {
	c, i, m := s.ctx, s.receives.at+slot, nic.Message{
		Peer: s.name, Tag: s.call.tags + uint16(slot), Len: s.room(), Flags: nic.Doorbell | nic.Inline,
	}
	if slot == s.creditSlot() {
		m.Len = creditBytes
	}
	if state, _ := c.proc.ReceiveDoorbell(i); state == nic.Pending {
		return true
	}
	return c.post(c.proc.Post(nic.Receive, i, &m))
}

func (s *small) room() int { return s.ctx.opts.buffer + dataHead }

func (s *small) received(slot int, state nic.State, n int) {
	c := s.ctx
	region := c.proc.ReceiveRegion(s.receives.at + slot)
	switch {
	case state == nic.Canceled:
		c.wakeBackground()
		return
	case state == nic.Truncated:
		s.Misbehaved("a message longer than its limits")
	case state != nic.Done:
		s.doorbellFailed(state)
		return
	case slot == s.creditSlot():
		s.credited(region[:n])
	default:
		s.early |= 1 << slot
		for s.early&(1<<(s.arrived%s.window)) != 0 {
			s.early &^= 1 << (s.arrived % s.window)
			s.arrives()
		}
	}
	if s.Stalled() {
		c.schedule(&s.conn)
	}
	s.rung()
}

// arrives counts the next message.
func (s *small) arrives() {
	i := s.receives.at + int(s.arrived%s.window)
	_, n := s.ctx.proc.ReceiveDoorbell(i)
	head := s.ctx.proc.ReceiveRegion(i)
	if n < dataHead || headNumber(head) != uint32(s.arrived) {
		s.Misbehaved("a message that is not the next")
		return
	}
	if !s.raise(headLimit(head)) {
		return
	}
	s.arrived++
	s.Announce()
	s.came.Add(1) // after that: the goroutine that counts the last message may end the connection at once
}

// raise takes the peer's limit, which may be older than the known one.
func (s *small) raise(limit uint32) bool {
	ahead := int32(limit - s.limit.Load())
	if ahead > int32(s.ours) {
		s.Misbehaved("credits that cannot be")
		return false
	}
	if ahead > 0 {
		s.limit.Store(limit)
	}
	return true
}

// credited handles a credit and posts the receive for the next one.
func (s *small) credited(b []byte) {
	if len(b) != creditBytes {
		s.Misbehaved(fmt.Sprintf("a credit of %d bytes", len(b)))
		return
	}
	s.raise(headLimit(b))
	s.creditsCame.Add(1)
	if !s.postCredit() {
		s.ctx.schedule(&s.conn)
	}
}

// sent implements track. Messages ring only when they fail.
func (s *small) sent(slot int, state nic.State, _ int) {
	if slot == int(s.call.sends) {
		s.crediting.Store(false)
	}
	if state != nic.Done && state != nic.Canceled && !s.probing.Load() {
		s.doorbellFailed(state)
	}
	s.rung()
}

func (s *small) Settle() {
	s.ctx.Drain()
	s.Push()
	if s.State() == kit.StateUp {
		s.replenish()
	}
}

// replenish posts receives again that were consumed, and sends a credit when half of the last limit is used up.
func (s *small) replenish() {
	for s.posted-s.taken < s.window {
		slot := s.posted % s.window
		s.message = nic.Message{Peer: s.name, Tag: s.call.tags + uint16(slot), Len: s.room(), Flags: nic.Doorbell | nic.Inline}
		if !s.conn.posted(s.ctx.proc.Post(nic.Receive, s.receives.at+int(slot), &s.message)) {
			if !s.lacksReceives.Swap(true) {
				s.ctx.schedule(&s.conn)
			}
			break
		}
		s.posted++
	}
	if s.creditDue() {
		s.credit()
	}
}

func (s *small) creditDue() bool { return 2*(s.posted-s.limitSent) >= s.window }

// credit sends the peer its limit, unless the last credit is on its way.
func (s *small) credit() {
	proc, slot := s.ctx.proc, int(s.call.sends)
	i := s.sends.at + slot
	if s.crediting.Load() {
		return
	}
	putLimit(proc.SendRegion(i), uint32(s.posted))
	s.message = nic.Message{Peer: s.name, Tag: s.theirs.tags + s.theirs.receives, Len: creditBytes, Flags: nic.Doorbell | nic.Inline}
	s.crediting.Store(true)
	if !s.conn.posted(proc.Post(nic.SendShort, i, &s.message)) {
		s.crediting.Store(false)
		return
	}
	s.limitSent = s.posted
	s.credits++
	s.ctx.kick()
}

func (s *small) Pending() bool {
	s.Settle()
	return s.Stalled()
}

// backgroundWork implements track. It posts receives that found no room, and sends messages that wait for credit, in case
// no goroutine polls.
func (s *small) backgroundWork() {
	if s.lacksCredit.Load() && !s.retiring {
		s.postCredit()
	}
	switch {
	case !s.Stalled() && !s.lacksReceives.Load():
	case s.State() == kit.StateConnecting:
		s.fill()
	case s.TryEnter():
		s.Push()
		if s.lacksReceives.Load() {
			s.replenish()
			s.lacksReceives.Store(s.posted-s.taken < s.window)
		}
		if s.lacksReceives.Load() || s.Stalled() && s.mayStart() { // the Command Queue is full
			s.ctx.retry.Store(true)
		}
		s.Leave()
	case s.State() == kit.StateUp: // the owner is in a call, which may have looked already
		s.ctx.retry.Store(true)
	}
}

func (s *small) waits() bool { return s.Stalled() || s.lacksReceives.Load() || s.lacksCredit.Load() }

func (s *small) quiesce() bool {
	if s.closed {
		s.Drop()
	}
	return true
}

// ended implements track. That the peer confirms all messages is no proof that the NIC has sent them: one that it keeps
// would take the bytes of the context's next connection, and the place of its first message. So each context is
// cancelled, and then sends to nobody: the NIC refuses that if the context is free, and ignores it otherwise. The
// context of credits, whose doorbell always rings, goes last. When it rings, the NIC has read all of these commands.
func (s *small) ended() bool {
	c, used := s.ctx, int(s.ours)
	last := s.sends.at + int(s.call.sends)
	if s.started == 0 && s.credits == 0 {
		return true
	}
	if state, _ := c.proc.SendDoorbell(last); state == nic.Pending {
		if !s.probing.Load() && !s.creditCanceled {
			s.creditCanceled = c.post(c.proc.CancelSend(last))
		}
		return false
	}
	s.probing.Store(true)
	if s.probed > used {
		if s.rungSends(used) == used {
			return true
		}
		s.probed = 0
		c.retry.Store(true) // a message is on its way: later
		return false
	}
	for ; s.probed < used; s.probed++ {
		i := s.sends.at + s.probed
		if state, _ := c.proc.SendDoorbell(i); state.Rung() {
			continue
		}
		c.proc.FreeSend(i)
		if !c.post(c.proc.CancelSend(i)) || !c.post(c.proc.SendShort(i, nic.Name{}, controlTag, 0)) {
			return false
		}
	}
	if c.post(c.proc.SendShort(last, nic.Name{}, controlTag, 0)) {
		s.probed++
	}
	return false
}

// rungSends returns how many of the first n send contexts in a row have rung.
func (s *small) rungSends(n int) (k int) {
	for ; k < n; k++ {
		if state, _ := s.ctx.proc.SendDoorbell(s.sends.at + k); !state.Rung() {
			break
		}
	}
	return k
}

func (s *small) counts() (uint64, uint32) { return s.started, s.credits }

func (s *small) settled() {}

func (s *small) revoke(*control)  { s.ctx.bad.Add(1) }
func (s *small) revoked(*control) { s.ctx.bad.Add(1) }

func (s *small) Path() string { return "context-region" }
