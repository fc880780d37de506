package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// notify wakes the peer if it sleeps; called after each message.
func (s *small) notify() {
	if s.asym && load32(&s.send.cons.armed)|load32(&s.bell.raised) == 0 {
		return
	}
	s.notifySlow()
}

func (s *small) notifySlow() {
	if raised(&s.send.cons.armed, s.asym) {
		atomic.StoreUint32(&s.send.cons.armed, 0)
		wake(&s.theirs.seq)
		s.Tally.Woke.Add(1)
	}
	if raised(&s.bell.raised, s.asym) {
		atomic.StoreUint32(&s.bell.raised, 0)
		wake(&s.bell.seq)
		s.Tally.Woke.Add(1)
	}
}

// SendPost implements driver.Instance.
func (s *small) SendPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	err := s.post(p)
	s.Leave()
	return err
}

func (s *small) post(p *driver.Packet) error {
	if s.State() != kit.StateUp {
		return s.Failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.misuse("send", p)
	}
	if len(p.IOV) == 1 && s.sends.Empty() {
		// The common case, in one look.
		b := p.IOV[0]
		if len(b) <= inlineMax {
			if ok, _ := s.send.room(len(b)); ok {
				s.send.sendInline(b)
				s.sent(p, len(b))
				return nil
			}
		}
	}
	n := p.Len()
	if n > maxSmall {
		return &driver.Error{Driver: Name, Peer: s.Peer(), Op: "send", Err: fmt.Errorf("%w: %d bytes, the small track carries %d", driver.ErrTooLong, n, maxSmall)}
	}
	if !s.sends.Empty() {
		s.push()
	}
	if s.sends.Empty() && s.trySend(p, n) {
		return nil
	}
	if s.sends.Full() {
		s.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	s.Tally.Waited.Add(1)
	p.Driver.Phase = driver.Posted
	s.sends.Push(p)
	return nil
}

func (s *small) misuse(op string, p *driver.Packet) error {
	what := "a buffer of this instance is out: post or release it first"
	switch {
	case p.Driver.Phase == driver.BufferOut:
		what = "the packet holds a buffer"
	case p.Driver.Phase != driver.Idle:
		what = "the packet is posted already, or its outcome was not polled"
	}
	return &driver.Error{Driver: Name, Peer: s.Peer(), Op: op, Err: fmt.Errorf("%w: %s", driver.ErrInvalid, what)}
}

// sent finishes a packet whose n bytes are in the ring.
func (s *small) sent(p *driver.Packet, n int) {
	p.N = n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
	if s.opPath != "" {
		s.opPath = ""
	}
	s.Tally.Sent.Add(1)
	s.Tally.BytesSent.Add(uint64(n))
	s.notify()
}

func (s *small) trySend(p *driver.Packet, n int) bool {
	ok, bad := s.send.room(n)
	if !ok {
		if bad {
			s.misbehaved("progress beyond what was sent")
		}
		return false
	}
	c := p.Cursor()
	s.send.sendGather(&c, n)
	s.sent(p, n)
	return true
}

// push sends what waits for room.
func (s *small) push() {
	for !s.sends.Empty() {
		p := s.sends.First()
		if !s.trySend(p, p.Len()) {
			break
		}
		s.sends.Pop()
	}
	if st := s.State(); st != kit.StateUp && !s.sends.Empty() {
		err := s.Failure("send")
		for !s.sends.Empty() {
			s.sends.Pop().Driver.Finish(err)
		}
	}
}

// SendPoll implements driver.Instance.
func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.Enter() {
		return s.ended(p, "send")
	}
	s.push()
	s.Leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted:
		return false, nil
	}
	return true, s.misuse("send poll", p)
}

// ended answers a poll on an instance that was closed or does not stand. What is
// posted is not given back before the peer has left its memory.
func (n *conn) ended(p *driver.Packet, op string) (bool, error) {
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		if !n.free.Load() {
			return false, nil
		}
		p.N, p.RdvData = 0, nil
		p.Driver.Phase = driver.Idle
	}
	return true, n.Failure(op)
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	defer s.Leave()
	if s.State() != kit.StateUp {
		return s.Failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.misuse("send", p)
	}
	s.push()
	ok, bad := s.send.room(maxSmall)
	if bad {
		s.misbehaved("progress beyond what was sent")
	}
	if !ok || !s.sends.Empty() {
		s.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Buf = unsafe.Slice((*byte)(s.send.dataAt()), maxSmall)
	p.Driver.Phase = driver.BufferOut
	s.sendBuf = p
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	if p != s.sendBuf || n > maxSmall {
		return &driver.Error{Driver: Name, Peer: s.Peer(), Op: "send", Err: fmt.Errorf("%w: no such buffer is out, or %d bytes are more than it has", driver.ErrInvalid, n)}
	}
	if !s.Enter() {
		return s.Failure("send")
	}
	defer s.Leave()
	s.sendBuf = nil
	b := p.Buf
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if n < 0 {
		return nil
	}
	if s.State() != kit.StateUp {
		return s.Failure("send")
	}
	if n <= inlineMax {
		s.send.sendInline(b[:n])
	} else {
		s.send.publishData(n)
	}
	s.sent(p, n)
	return nil
}
