package shm

import (
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("receive")
	}
	err := s.postRecv(p)
	s.Leave()
	return err
}

func (s *small) postRecv(p *driver.Packet) error {
	if st := s.State(); st == kit.StateUp || st == kit.StatePeerClosed && s.HasMessage() {
		if p.Driver.Phase != driver.Idle {
			return s.misuse("receive", p)
		}
		if s.recvs.Full() {
			s.Tally.Busy.Add(1)
			return driver.ErrBusy
		}
		p.Driver.Phase = driver.Posted
		s.recvs.Push(p)
		return nil
	}
	return s.Failure("receive")
}

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.Enter() {
		return s.ended(p, "receive")
	}
	if p.Driver.Phase == driver.Idle {
		done, err := s.pollBuffer(p)
		s.Leave()
		s.unname()
		if !done {
			s.nothing()
		}
		return done, err
	}
	s.drain()
	s.Leave()
	s.unname()
	if p.Driver.Phase != driver.Done {
		s.nothing()
	}
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		return false, nil
	}
	return true, s.misuse("receive poll", p)
}

// drain fills posted receives with what has arrived.
func (s *small) drain() {
	var a arrival
	for !s.recvs.Empty() && s.recvBuf == nil {
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
		p := s.recvs.First()
		if a.kind == kindInline && len(p.IOV) == 1 && len(p.IOV[0]) >= a.n {
			takeInline(p, &a)
		} else if !s.fill(p, &a) {
			if s.State() != kit.StateUp {
				s.drainEnd()
			}
			return
		}
		s.recvs.Pop()
		s.consumed(&a)
	}
}

// drainEnd fails the posted receives after the connection has ended. What was
// sent before the end was seen may have become visible just now.
func (s *small) drainEnd() {
	var a arrival
	if ok, _ := s.recv.peek(&a); ok && a.there == a.n {
		return
	}
	err := s.Failure("receive")
	for !s.recvs.Empty() {
		s.recvs.Pop().Driver.Finish(err)
	}
	s.partial = 0
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
// be given it at once.
func (s *small) unname() {
	if s.popped {
		s.popped = false
		if load32(&s.named) != 0 {
			store32(&s.named, 0)
		}
	}
}

// nothing lets probes name the instance again after a poll that found nothing: an
// owner who polls while another goroutine probes may have received what that is
// about to name, and the name would stay.
func (s *small) nothing() {
	if load32(&s.named) != 0 {
		store32(&s.named, 0)
	}
}

// pollBuffer receives into the ring itself.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if s.recvBuf != nil {
		return true, s.misuse("receive", p)
	}
	if !s.recvs.Empty() {
		s.drain()
		return false, nil
	}
	var a arrival
	ok, bad := s.recv.peek(&a)
	if ok && a.there == a.n {
		p.Buf = unsafe.Slice((*byte)(a.at), a.n)
		p.N = a.n
		p.Driver.Phase = driver.BufferOut
		s.recvBuf, s.arrived = p, a
		return true, nil
	}
	if bad {
		s.misbehaved("malformed message header")
	}
	if s.State() == kit.StateUp {
		return false, nil
	}
	if ok, _ := s.recv.peek(&a); ok && a.there == a.n {
		return false, nil // it came just before the end
	}
	return true, s.Failure("receive")
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if p != s.recvBuf {
		return &driver.Error{Driver: Name, Peer: s.Peer(), Op: "release", Err: fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid)}
	}
	s.recvBuf = nil
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.Enter() {
		return s.Failure("release")
	}
	s.consumed(&s.arrived)
	s.Leave()
	s.unname()
	return nil
}

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Done, driver.Canceling:
		return nil
	case driver.Posted:
	default:
		if s.State() == kit.StateClosed {
			return s.Failure("cancel")
		}
		return &driver.Error{Driver: Name, Peer: s.Peer(), Op: "cancel", Err: fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid)}
	}
	if !s.Enter() {
		return s.Failure("cancel")
	}
	defer s.Leave()
	if s.partial > 0 && s.recvs.First() == p {
		// Half of a message is in it: that message wins.
		p.Driver.Phase = driver.Canceling
		return nil
	}
	s.recvs.Remove(p)
	s.Tally.Canceled.Add(1)
	p.Driver.Finish(driver.ErrCanceled)
	return nil
}
