package verbs

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
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
	return s.inbox.empty() && !s.life.HasMessage() && s.life.State() == kit.StateUp
}

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error { return s.recvs.Post(&s.life, p) }

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error { return s.recvs.Cancel(&s.life, p) }

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (done bool, err error) {
	switch {
	case p.Driver.Phase == driver.Done:
		return p.Driver.Outcome()
	case p.Driver.Phase == driver.Posted && s.nothing():
		return false, nil
	case !s.life.Enter():
		return s.life.Over(p, "receive")
	}
	s.receive()
	switch {
	case s.gotHead != s.gotTail && s.recvs.MayLend(p):
		_, data := s.first()
		done, err = s.recvs.Lend(p, data)
	case p.Driver.Phase == driver.Idle && !s.inbox.empty(): // it came just before the end
	default:
		done, err = s.recvs.Polled(&s.life, p)
	}
	s.life.Leave()
	return done, err
}

// first is the first message that was not received. There is one.
func (s *small) first() (message, []byte) {
	m := s.got[int(s.gotHead)&(len(s.got)-1)]
	return m, s.pool.buffer(m.buffer)[:m.n]
}

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	s.settle()
	for s.recvs.Want() {
		if s.gotHead == s.gotTail {
			if s.life.State() != kit.StateUp && s.inbox.empty() {
				s.recvs.Fail(&s.life) // what has arrived comes through the inbox in a moment
			}
			return
		}
		m, data := s.first()
		s.recvs.Fill(&s.life, data)
		s.consumed(m)
	}
}

// consumed gives the buffer of the first message back.
func (s *small) consumed(m message) {
	s.gotHead++
	s.life.Taken(int(m.n))
	s.opPath = ""
	s.pool.put(m.buffer)
	out := int(s.grant - s.gotHead)
	s.grant += s.pool.more(out)
	if s.pool.chain.Len() > out/4 {
		s.flush(true)
	}
	if s.life.State() == kit.StateUp {
		s.owe() // polls in vain do not
	}
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if _, err := s.recvs.Return(&s.life, p); err != nil {
		return err
	}
	m, _ := s.first()
	s.consumed(m)
	s.life.Leave()
	return nil
}
