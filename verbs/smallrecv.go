package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// announce makes a work request a message, with the limit that the peer may
// know: receives that are not posted with it do not count.
func (s *small) announce(wr *ibv.SendWR) {
	limit := s.grant
	if !s.ripe() {
		limit -= uint32(s.pool.chain.Len() - s.pool.control)
	}
	if int32(limit-s.told) > 0 {
		s.told, s.toldAt = limit, s.gotHead
	}
	wr.SendImm(immediate(codeData, s.told))
}

// ripe tells whether receives are posted again along with the next message.
func (s *small) ripe() bool {
	return 8*s.pool.chain.Len() > int(s.grant-s.gotHead) || s.pool.control > 1
}

// nothing tells, without the owner's word, that a posted receive has nothing to
// wait for at the moment: polls in vain are what latency is made of.
func (s *small) nothing() bool {
	if !s.life.Waited() || s.life.HasMessage() || !s.inbox.empty() {
		return false
	}
	s.ctx.drain()
	return s.inbox.empty() && !s.life.HasMessage() && s.life.State() == driver.StateUp
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

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	s.settle()
	for !s.recvs.Empty() && s.recvBuf == nil {
		if s.gotHead == s.gotTail {
			if s.life.State() != driver.StateUp && s.inbox.empty() {
				s.endReceives()
			}
			return
		}
		m := s.got[int(s.gotHead)&(len(s.got)-1)]
		p := s.recvs.Pop()
		data := s.pool.buffer(m.buffer)[:m.n]
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
		s.consumed(m)
	}
}

// endReceives fails what is posted after the connection has ended.
func (s *small) endReceives() {
	if s.life.HasMessage() {
		return // it comes through the inbox in a moment
	}
	err := s.life.Failure("receive")
	for !s.recvs.Empty() {
		s.recvs.Pop().Driver.Finish(err)
	}
}

// consumed gives the buffer of the first message back.
func (s *small) consumed(m message) {
	s.gotHead++
	s.life.Taken()
	s.opPath = ""
	s.life.Tally.Received.Add(1)
	s.life.Tally.BytesReceived.Add(uint64(m.n))
	s.pool.put(m.buffer)
	out := int(s.grant - s.gotHead)
	s.grant += s.pool.more(out)
	if s.pool.chain.Len() > out/4 {
		s.flush(true)
	}
	if s.life.State() == driver.StateUp {
		s.owe() // polls in vain do not
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
	if s.gotHead != s.gotTail {
		m := s.got[int(s.gotHead)&(len(s.got)-1)]
		p.Buf = s.pool.buffer(m.buffer)[:m.n:m.n]
		p.N = int(m.n)
		p.Driver.Phase = driver.BufferOut
		s.recvBuf, s.recvBufMsg = p, m
		return true, nil
	}
	if s.life.State() == driver.StateUp || !s.inbox.empty() || s.life.HasMessage() {
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
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.life.Enter() {
		return s.life.Failure("release")
	}
	s.consumed(s.recvBufMsg)
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
