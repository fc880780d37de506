//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// announce makes a work request a message that carries the limit. The limit excludes receives that are not posted
// together with the message.
func (s *small) announce(wr *ibv.SendWR) {
	limit := s.grant
	if !s.ripe() {
		limit -= uint32(s.pool.chain.Len() - s.pool.control)
	}
	if int32(limit-s.limitSent) > 0 {
		s.limitSent, s.limitSentAt = limit, s.gotHead
	}
	wr.SendImm(immediate(codeData, s.limitSent))
}

// ripe reports whether the next post includes receives.
func (s *small) ripe() bool {
	return 8*s.pool.chain.Len() > int(s.grant-s.gotHead) || s.pool.control > 1
}

// nothing reports, without entering the connection, that a posted receive cannot complete now. Latency depends on fast
// polls without a result.
func (s *small) nothing() bool {
	if !s.Waited() || s.HasMessage() || !s.inbox.empty() {
		return false
	}
	s.ctx.Drain()
	return s.inbox.empty() && !s.HasMessage() && s.State() == kit.StateUp
}

func (s *small) RecvPoll(p *driver.Packet) (done bool, err error) {
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	return s.Small.RecvPoll(p)
}

// first returns the oldest message that was not received. There is one.
func (s *small) first() message { return s.got[int(s.gotHead)&(len(s.got)-1)] }

// First implements kit.SmallHooks. Further messages may still be in the inbox.
func (s *small) First(int) (data []byte, more, ok bool) {
	if s.gotHead == s.gotTail {
		return nil, false, false
	}
	m := s.first()
	return s.pool.buffer(m.buffer)[:m.n], false, true
}

func (s *small) Consumed(int) {
	m := s.first()
	s.gotHead++
	s.path = pathSend
	s.pool.put(m.buffer)
	out := int(s.grant - s.gotHead)
	s.grant += s.pool.more(out)
	if s.pool.chain.Len() > out/4 {
		s.flush(true)
	}
	if s.State() == kit.StateUp {
		s.sendCredit() // polls without a message do not
	}
}
