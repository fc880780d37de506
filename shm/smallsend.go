package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
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
		s.tally.Woke.Add(1)
	}
	if raised(&s.bell.raised, s.asym) {
		atomic.StoreUint32(&s.bell.raised, 0)
		wake(&s.bell.seq)
		s.tally.Woke.Add(1)
	}
}

// SendPost implements driver.Instance.
func (s *small) SendPost(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("send")
	}
	err := s.post(p)
	s.leave()
	return err
}

func (s *small) post(p *driver.Packet) error {
	if s.state.Load() != stateUp {
		return s.failure("send")
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
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: fmt.Errorf("%w: %d bytes, the small track carries %d", driver.ErrTooLong, n, maxSmall)}
	}
	if !s.sends.Empty() {
		s.push()
	}
	if s.sends.Empty() && s.trySend(p, n) {
		return nil
	}
	if s.sends.Full() {
		s.tally.Busy.Add(1)
		return driver.ErrBusy
	}
	s.tally.Waited.Add(1)
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
	return &driver.Error{Driver: Name, Peer: s.peerURL, Op: op, Err: fmt.Errorf("%w: %s", driver.ErrInvalid, what)}
}

// sent finishes a packet whose n bytes are in the ring.
func (s *small) sent(p *driver.Packet, n int) {
	p.N = n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
	if s.opPath != "" {
		s.opPath = ""
	}
	s.tally.Sent.Add(1)
	s.tally.BytesSent.Add(uint64(n))
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
	if st := s.state.Load(); st != stateUp && !s.sends.Empty() {
		err := s.failure("send")
		if st == statePeerClosed {
			err = &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: driver.ErrClosed}
		}
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
	if !s.enter() {
		return s.ended(p, "send")
	}
	s.push()
	s.leave()
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
		if n.closing.Load() {
			return false, nil
		}
		p.N, p.RdvData = 0, nil
		p.Driver.Phase = driver.Idle
	}
	return true, n.failure(op)
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("send")
	}
	defer s.leave()
	if s.state.Load() != stateUp {
		return s.failure("send")
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
		s.tally.Busy.Add(1)
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
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: fmt.Errorf("%w: no such buffer is out, or %d bytes are more than it has", driver.ErrInvalid, n)}
	}
	if !s.enter() {
		return s.failure("send")
	}
	defer s.leave()
	s.sendBuf = nil
	b := p.Buf
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if n < 0 {
		return nil
	}
	if s.state.Load() != stateUp {
		return s.failure("send")
	}
	if n <= inlineMax {
		s.send.sendInline(b[:n])
	} else {
		s.send.publishData(n)
	}
	s.sent(p, n)
	return nil
}
