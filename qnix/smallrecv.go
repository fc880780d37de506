package qnix

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// nothing tells, without the owner's word, that a posted receive has nothing to
// wait for at the moment: polls in vain are what latency is made of.
func (s *small) nothing() bool {
	if !s.life.Waited() || s.life.HasMessage() || s.owes() || s.stalled.Load() {
		return false
	}
	s.ctx.drain()
	return !s.life.HasMessage() && s.life.State() == driver.StateUp
}

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error {
	if !s.life.Enter() {
		return s.life.Failure("receive")
	}
	err := s.postRecv(p)
	s.life.Leave()
	return err
}

func (s *small) postRecv(p *driver.Packet) error {
	switch st := s.life.State(); {
	case st != driver.StateUp && !(st == driver.StatePeerClosed && s.life.HasMessage()):
		return s.life.Failure("receive")
	case p.Driver.Phase != driver.Idle:
		return s.life.Misuse("receive", p)
	case s.recvs.Full():
		s.life.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase = driver.Posted
	s.recvs.Push(p)
	return nil
}

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	if !s.life.Enter() {
		return s.life.Over(p, "receive")
	}
	var done bool
	var err error
	if p.Driver.Phase == driver.Idle {
		done, err = s.pollBuffer(p)
	} else {
		s.receive()
	}
	s.life.Leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Idle, driver.BufferOut:
		return done, err
	}
	return true, s.life.Misuse("receive poll", p)
}

// next is the first message that was not received, in its Context Region.
func (s *small) next() []byte {
	i := s.receives.at + int(s.taken%s.window)
	_, n := s.ctx.proc.ReceiveDoorbell(i)
	return s.ctx.proc.ReceiveRegion(i)[dataHead:n:n]
}

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	s.settle()
	for !s.recvs.Empty() && s.recvBuf == nil {
		if !s.life.HasMessage() {
			if s.life.State() != driver.StateUp {
				s.endReceives()
			}
			return
		}
		p, data := s.recvs.Pop(), s.next()
		if len(p.IOV) == 1 && len(p.IOV[0]) >= len(data) {
			p.N = copy(p.IOV[0], data)
		} else {
			c := p.Cursor()
			p.N = c.Scatter(data)
		}
		p.Driver.Err = nil
		if p.N < len(data) {
			p.Driver.Err = &driver.TruncatedError{Message: len(data), Buffer: p.N}
			s.life.Tally.Truncated.Add(1)
		}
		p.Driver.Phase = driver.Done
		s.consumed(len(data))
	}
}

// endReceives fails what is posted after the connection has ended.
func (s *small) endReceives() {
	if s.life.HasMessage() {
		return
	}
	err := s.life.Failure("receive")
	for !s.recvs.Empty() {
		s.recvs.Pop().Driver.Finish(err)
	}
}

// consumed gives the context of the first message back.
func (s *small) consumed(n int) {
	s.taken++
	s.life.Taken()
	s.life.Tally.Received.Add(1)
	s.life.Tally.BytesReceived.Add(uint64(n))
	if s.life.State() == driver.StateUp {
		s.replenish() // polls in vain do not
	}
}

// pollBuffer receives without a copy.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if s.recvBuf != nil {
		return true, s.life.Misuse("receive", p)
	}
	if !s.recvs.Empty() {
		s.receive()
		return false, nil
	}
	s.settle()
	if s.life.HasMessage() {
		p.Buf = s.next()
		p.N = len(p.Buf)
		p.Driver.Phase = driver.BufferOut
		s.recvBuf = p
		return true, nil
	}
	if s.life.State() == driver.StateUp {
		return false, nil
	}
	return true, s.life.Failure("receive")
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if p != s.recvBuf {
		return s.life.Fault("release", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	s.recvBuf = nil
	n := p.N
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.life.Enter() {
		return s.life.Failure("release")
	}
	s.consumed(n)
	s.life.Leave()
	return nil
}

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Done:
		return nil
	case driver.Posted:
	default:
		if s.life.State() == driver.StateClosed {
			return s.life.Failure("cancel")
		}
		return s.life.Fault("cancel", fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid))
	}
	if !s.life.Enter() {
		return s.life.Failure("cancel")
	}
	defer s.life.Leave()
	if s.recvs.Remove(p) {
		s.life.Tally.Canceled.Add(1)
		p.Driver.Finish(driver.ErrCanceled)
	}
	return nil
}
