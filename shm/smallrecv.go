//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func (s *small) RecvPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("receive")
	}
	err := s.AdmitRecv(p)
	s.conn.Leave()
	return err
}

func (s *small) RecvPoll(p *driver.Packet) (done bool, err error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.Enter() {
		return s.Over(p, "receive")
	}
	switch p.Driver.Phase {
	case driver.Posted, driver.Canceling:
		s.drain()
		s.pushStalled()
		s.Leave()
		if p.Driver.Phase == driver.Done {
			return p.Driver.Outcome()
		}
	default:
		done, err = s.pollBuffer(p)
		s.pushStalled()
		s.Leave()
	}
	if !done {
		s.nothing()
	}
	return done, err
}

// pushStalled starts sends that wait for room: whoever polls only receives may wait for their answers.
func (s *small) pushStalled() {
	if s.Stalled() {
		s.Push()
	}
}

// drain fills posted receives with what has arrived.
func (s *small) drain() {
	var a arrival
	for p := s.Receiving(); p != nil; p = s.Receiving() {
		ok, bad := s.recv.peek(&a)
		if !ok {
			if bad {
				s.misbehaved("malformed message header")
			}
			if s.State() != kit.StateUp {
				s.drainEnd()
			}
			return
		}
		if a.kind == kindInline && len(p.IOV) == 1 && len(p.IOV[0]) >= a.n {
			takeInline(p, &a)
		} else if !s.fill(p, &a) {
			if s.State() != kit.StateUp {
				s.drainEnd()
			}
			return
		}
		s.Received()
		s.consumed(&a)
	}
}

// drainEnd fails the posted receives after the connection has ended, unless there is a message: what was sent before
// the end was seen may have become visible just now.
func (s *small) drainEnd() {
	if !s.HasMessage() {
		s.FailReceives()
		s.partial = 0
	}
}

// takeInline is fill for the message that latency is measured by.
func takeInline(p *driver.Packet, a *arrival) {
	if a.n == 8 {
		*(*[8]byte)(p.IOV[0]) = *(*[8]byte)(a.at)
	} else {
		copy(p.IOV[0], unsafe.Slice((*byte)(a.at), a.n))
	}
	p.N = a.n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
}

// fill copies what is there of a message to a packet. True when all is.
func (s *small) fill(p *driver.Packet, a *arrival) bool {
	if len(p.IOV) == 1 {
		room := p.IOV[0]
		if a.there > s.partial && s.partial < len(room) {
			move(room[s.partial:], unsafe.Slice((*byte)(unsafe.Add(a.at, s.partial)), a.there-s.partial))
		}
		s.partial = a.there
		if a.there < a.n {
			return false
		}
		s.received(p, a, len(room))
		return true
	}
	if a.there > s.partial {
		c := p.Cursor()
		c.Seek(s.partial)
		c.Scatter(unsafe.Slice((*byte)(unsafe.Add(a.at, s.partial)), a.there-s.partial))
	}
	s.partial = a.there
	if a.there < a.n {
		return false
	}
	s.received(p, a, p.Len())
	return true
}

// received finishes a packet with room for a message of a.n bytes.
func (s *small) received(p *driver.Packet, a *arrival, room int) {
	s.partial = 0
	p.N = a.n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
	if a.n > room {
		p.N = room
		p.Driver.Err = &driver.TruncatedError{Message: a.n, Buffer: room}
		s.Tally.Truncated.Add(1)
	}
}

// consumed moves past a message.
func (s *small) consumed(a *arrival) {
	published := s.recv.pop(a)
	s.Tally.Received.Add(1)
	s.Tally.BytesReceived.Add(uint64(a.n))
	s.popped = true
	if published {
		s.signal()
	}
}

// unname lets probes name the instance again after something was received. It
// is the last that a call does with the instance, because another goroutine may
// be given it at once. It is not inlined, so that Leave is.
//
//go:noinline
func (s *small) unname() {
	s.popped = false
	s.nothing()
}

// nothing lets probes name the instance again after a poll that found nothing: an
// owner that polls while another goroutine probes may have received what that is
// about to name, and the name would stay. What came meanwhile may have woken a
// waiter for nothing, because of the name: so this wakes it again. It does not look
// whether something came: the call has left the connection, and Close may have
// unmapped the ring.
func (s *small) nothing() {
	if load32(&s.named) != 0 {
		s.takeName()
	}
}

// takeName is the rare half of nothing, apart so that the other half is inlined.
func (s *small) takeName() {
	atomic.SwapUint32(&s.named, 0) // a full barrier: Notify reads whether a goroutine sleeps
	s.ctx.Anyone.Notify()
}

// pollBuffer lends the message at the head of the ring.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if !s.MayLend(p) {
		s.drain()
		return s.PolledRecv(p)
	}
	var a arrival
	ok, bad := s.recv.peek(&a)
	if ok && a.there == a.n {
		s.Lend(p, unsafe.Slice((*byte)(a.at), a.n))
		s.lent = a
		return true, nil
	}
	if bad {
		s.misbehaved("malformed message header")
	}
	return s.PolledRecv(p)
}

func (s *small) RecvBufRelease(p *driver.Packet) error {
	if err := s.TakeBack(p); err != nil {
		return err
	}
	s.consumed(&s.lent)
	s.Leave()
	return nil
}

// RecvCancel implements driver.Instance. A message of which a part is in the packet wins.
func (s *small) RecvCancel(p *driver.Packet) error {
	if s.Enter() {
		begun := s.partial > 0 && s.Receiving() == p
		s.conn.Leave()
		if begun {
			p.Driver.Phase = driver.Canceling
			return nil
		}
	}
	return s.Small.RecvCancel(p)
}
