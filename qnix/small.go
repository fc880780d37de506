package qnix

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// small is an instance on the small track: messages are short sends from Context Region to Context Region.
//
// # The window
//
// Message k takes receive k mod window of the peer, and its tag: the NIC has one message of a tag under way at a time, so that
// several tags are a pipeline; what overtakes is put in order here. A sender stops at the limit that the peer has told: how many
// receives it has posted since the beginning. The limit travels in the head of every message, and alone, as
// a credit, when half of what was told is used up. So a receive is always there and nothing waits in the NIC. The limit
// tells as well which sends are over, so that they need ring no doorbell.
type small struct {
	conn
	kit.Small
	window uint32 // of receives
	ours   uint32 // of sends: what both sides have; set before state is up

	// The owner's.
	taken   uint32      // messages received, ever
	posted  uint32      // receives posted, ever
	told    uint32      // up to which the peer knows
	started uint32      // messages sent, ever
	credits uint32      // credits sent, ever
	message nic.Message // to be filled in by posts

	limit     atomic.Uint32 // up to which messages may be sent; written by who drains
	crediting atomic.Bool   // a credit is on its way, until that was drained

	// Of who drains.
	arrived uint32 // messages, in order
	early   uint64 // receives that have rung ahead of order, by slot
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ kit.Starter           = (*small)(nil)
)

func newSmall(window int) *small {
	s := &small{window: uint32(window)}
	s.Init(&s.Conn, s)
	return s
}

// creditSlot is the slot and the tag of credits, behind those of messages.
func (s *small) creditSlot() int { return int(s.call.receives) }

// prepare implements track. It may be called again, for another peer's call: receives of the first one are there.
func (s *small) prepare() {
	c := s.ctx
	both := min(uint32(s.call.receives), uint32(s.theirs.sends))
	c.bells.mustLock() // who drains reads it as soon as something comes
	s.window, s.posted, s.told = both, both, both
	s.ours = min(uint32(s.call.sends), uint32(s.theirs.receives))
	s.limit.Store(s.ours)
	c.bells.unlock()
	m := nic.Message{Peer: s.name, Flags: nic.Doorbell | nic.Inline}
	post := func(slot, room int) {
		i := s.receives.at + slot
		m.Tag, m.Len = s.call.tags+uint16(slot), room
		if state, _ := c.proc.ReceiveDoorbell(i); state != nic.Pending && c.failed == nil {
			if err := c.proc.Post(nic.Receive, i, &m); err != nil {
				c.nicFailed(err) // the Command Queue has room for a command of each context
			}
		}
	}
	for k := range both {
		post(int(k), s.room())
	}
	post(s.creditSlot(), creditBytes)
}

func (s *small) room() int { return s.ctx.opts.buffer + dataHead }

// received implements track.
func (s *small) received(slot int, state nic.State, n int) {
	c := s.ctx
	region := c.proc.ReceiveRegion(s.receives.at + slot)
	switch {
	case state == nic.Canceled:
		c.nudge()
		return
	case state == nic.Truncated:
		s.Misbehaved("a message longer than its limits")
	case state != nic.Done:
		s.Finish(kit.StateBroken, c.doorbellError(state))
		c.nudge()
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
		c.attend(&s.conn)
	}
	s.rung()
}

// arrives counts the next message.
func (s *small) arrives() {
	i := s.receives.at + int(s.arrived%s.window)
	_, n := s.ctx.proc.ReceiveDoorbell(i)
	head := s.ctx.proc.ReceiveRegion(i)
	if n < dataHead || headNumber(head) != s.arrived {
		s.Misbehaved("a message that is not the next")
		return
	}
	if !s.raise(headLimit(head)) {
		return
	}
	s.arrived++
	s.came.Add(1)
	s.Announce()
}

// raise takes the limit that the peer tells; it may be older than what is known.
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

// credited takes a credit, and makes room for the next.
func (s *small) credited(b []byte) {
	c := s.ctx
	if len(b) != creditBytes {
		s.Misbehaved(fmt.Sprintf("a credit of %d bytes", len(b)))
		return
	}
	s.raise(headLimit(b))
	s.creditsCame.Add(1)
	slot := s.creditSlot()
	m := nic.Message{Peer: s.name, Tag: s.call.tags + uint16(slot), Len: creditBytes, Flags: nic.Doorbell | nic.Inline}
	if err := c.proc.Post(nic.Receive, s.receives.at+slot, &m); err != nil {
		c.nicFailed(err)
	}
}

// sent implements track. Messages ring only when they fail.
func (s *small) sent(slot int, state nic.State, _ int) {
	if slot == int(s.call.sends) {
		s.crediting.Store(false)
	}
	if state != nic.Done && state != nic.Canceled {
		s.Finish(kit.StateBroken, s.ctx.doorbellError(state))
	}
	s.rung()
}

// Settle implements kit.SmallHooks.
func (s *small) Settle() {
	s.ctx.Drain()
	s.Push()
	if s.State() == kit.StateUp {
		s.replenish()
	}
}

// replenish posts receives for what was consumed, and tells the peer when half of what it knows of is used up.
func (s *small) replenish() {
	for s.posted-s.taken < s.window {
		slot := s.posted % s.window
		s.message = nic.Message{Peer: s.name, Tag: s.call.tags + uint16(slot), Len: s.room(), Flags: nic.Doorbell | nic.Inline}
		if !s.done(s.ctx.proc.Post(nic.Receive, s.receives.at+int(slot), &s.message)) {
			break
		}
		s.posted++
	}
	if s.owes() {
		s.credit()
	}
}

func (s *small) owes() bool { return 2*(s.posted-s.told) >= s.window }

// credit tells the peer its limit, unless the last credit is on its way.
func (s *small) credit() {
	proc, slot := s.ctx.proc, int(s.call.sends)
	i := s.sends.at + slot
	if s.crediting.Load() {
		return
	}
	putLimit(proc.SendRegion(i), s.posted)
	s.message = nic.Message{Peer: s.name, Tag: s.theirs.tags + s.theirs.receives, Len: creditBytes, Flags: nic.Doorbell | nic.Inline}
	s.crediting.Store(true)
	if !s.done(proc.Post(nic.SendShort, i, &s.message)) {
		s.crediting.Store(false)
		return
	}
	s.told = s.posted
	s.credits++
	s.kick()
}

// done looks at what a post said. It is false if nothing was posted.
func (s *small) done(err error) bool { return s.conn.posted(err) }

// Pending implements kit.ConnHooks.
func (s *small) Pending() bool {
	s.Settle()
	return s.Stalled()
}

// tend implements track: it sends what waits for credit, should nobody poll.
func (s *small) tend() {
	switch {
	case !s.Stalled():
	case s.TryEnter():
		s.Push()
		if s.Stalled() && s.mayStart() { // the Command Queue is full
			s.ctx.retry.Store(true)
		}
		s.Leave()
	case s.State() == kit.StateUp: // the owner is in a call, which may have looked already
		s.ctx.retry.Store(true)
	}
}

// waits implements track.
func (s *small) waits() bool { return s.Stalled() }

// quiesce implements track.
func (s *small) quiesce() bool {
	if s.closed {
		s.Drop()
	}
	return true
}

// counts implements track.
func (s *small) counts() (uint64, uint32) { return uint64(s.started), s.credits }

// settled implements track.
func (s *small) settled() {}

func (s *small) revoke(*control)  { s.ctx.bad.Add(1) }
func (s *small) revoked(*control) { s.ctx.bad.Add(1) }

// Path implements driver.Instance.
func (s *small) Path() string { return "context-region" }
