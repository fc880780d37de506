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
	if !s.waited || s.hasMessage() || !s.inbox.empty() {
		return false
	}
	s.ctx.drain()
	return s.inbox.empty() && !s.hasMessage() && s.state.Load() == stateUp
}

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("receive")
	}
	err := s.postRecv(p)
	s.leave()
	return err
}

func (s *small) postRecv(p *driver.Packet) error {
	switch st := s.state.Load(); {
	case st != stateUp && !(st == statePeerClosed && s.hasMessage()):
		return s.failure("receive")
	case p.Driver.Phase != driver.Idle:
		return s.misuse("receive", p)
	case s.recvs.Full():
		s.tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase = driver.Posted
	s.recvs.Push(p)
	return nil
}

// hasMessage tells whether one can be received, which is possible after the
// connection has ended too.
func (s *small) hasMessage() bool { return s.arrived.Load() != s.taken.Load() }

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	if !s.enter() {
		return s.over(p, "receive")
	}
	var done bool
	var err error
	if p.Driver.Phase == driver.Idle {
		done, err = s.pollBuffer(p)
	} else {
		s.receive()
	}
	s.leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Idle, driver.BufferOut:
		return done, err
	}
	return true, s.misuse("receive poll", p)
}

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	s.settle()
	for !s.recvs.Empty() && s.recvBuf == nil {
		if s.gotHead == s.gotTail {
			if s.state.Load() != stateUp && s.inbox.empty() {
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
			s.tally.Truncated.Add(1)
		}
		p.Driver.Phase = driver.Done
		s.consumed(m)
	}
}

// endReceives fails what is posted after the connection has ended.
func (s *small) endReceives() {
	if s.hasMessage() {
		return // it comes through the inbox in a moment
	}
	err := s.failure("receive")
	for !s.recvs.Empty() {
		s.recvs.Pop().Driver.Finish(err)
	}
}

// consumed gives the buffer of the first message back.
func (s *small) consumed(m message) {
	s.gotHead++
	s.taken.Add(1)
	s.popped = true
	s.opPath = ""
	s.tally.Received.Add(1)
	s.tally.BytesReceived.Add(uint64(m.n))
	s.pool.put(m.buffer)
	out := int(s.grant - s.gotHead)
	s.grant += s.pool.more(out)
	if s.pool.chain.Len() > out/4 {
		s.flush(true)
	}
	if s.state.Load() == stateUp {
		s.owe() // polls in vain do not
	}
}

// pollBuffer receives without a copy.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if s.recvBuf != nil {
		return true, s.misuse("receive", p)
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
	if s.state.Load() == stateUp || !s.inbox.empty() || s.hasMessage() {
		return false, nil
	}
	return true, s.failure("receive")
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if p != s.recvBuf {
		return s.fault("release", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	s.recvBuf = nil
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.enter() {
		return s.failure("release")
	}
	s.consumed(s.recvBufMsg)
	s.leave()
	return nil
}

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Done:
		return nil
	case driver.Posted:
	default:
		if s.state.Load() == stateClosed {
			return s.failure("cancel")
		}
		return s.fault("cancel", fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid))
	}
	if !s.enter() {
		return s.failure("cancel")
	}
	defer s.leave()
	if s.recvs.Remove(p) {
		s.tally.Canceled.Add(1)
		p.Driver.Finish(driver.ErrCanceled)
	}
	return nil
}
