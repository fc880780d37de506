//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// small is an instance on the small track. Posts and polls are in this package as far as every message takes them; the
// kit has the rest.
type small struct {
	*conn
	kit.Small
	send    producer
	recv    consumer
	partial int     // bytes of the message at the head that were copied out
	lent    arrival // the message that the kit has lent

	named    uint32 // a probe has named what is at the head
	popped   bool   // something was received in this call
	endNamed bool   // a probe has named the end; guarded by the prober
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ driver.OneSided       = (*small)(nil)
	_ kit.Starter           = (*small)(nil)
)

func newSmall(n *conn) *small {
	s := &small{conn: n}
	s.Init(&n.Conn, s)
	return s
}

func (s *small) attach() {
	out, in := s.side, 1-s.side
	if s.toSelf {
		in = out
	}
	s.send = newProducer(s.seg.ring[out])
	s.recv = newConsumer(s.seg.ring[in])
}

func (s *small) onUp() {
	s.ctx.prober.add(s)
	s.ctx.Anyone.Notify() // a message may have been faster
}

func (s *small) flag(sending bool) *uint32 {
	if sending {
		return &s.mine.sleeping
	}
	return &s.recv.cons.armed
}

func (s *small) stalled() bool { return s.Stalled() }

// fail implements trackEnd. The peer never writes to posted memory here.
func (s *small) fail() bool {
	s.ctx.prober.remove(s)
	s.Drop()
	s.oneSided = opQueue{}
	return true
}

func (s *small) Path() string {
	if s.opPath != "" {
		return s.opPath
	}
	return "ring"
}

func (s *small) Pending() bool {
	s.Push()
	return s.Stalled()
}

func (s *small) Leave() {
	s.conn.Leave()
	if s.popped {
		s.unname()
	}
}

// HasMessage implements kit.Gate. A message can be received after the connection has ended, too.
func (s *small) HasMessage() bool {
	var a arrival
	ok, bad := s.recv.peek(&a)
	return ok && !bad && a.there == a.n
}
