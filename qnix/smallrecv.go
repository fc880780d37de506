package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// nothing tells, without the owner's word, that a posted receive has nothing to
// wait for at the moment: polls in vain are what latency is made of.
func (s *small) nothing() bool {
	if !s.life.Waited() || s.life.HasMessage() || s.owes() || s.stalled.Load() {
		return false
	}
	s.ctx.drain()
	return !s.life.HasMessage() && s.life.State() == kit.StateUp
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
	if s.recvs.MayLend(p) && s.life.HasMessage() {
		done, err = s.recvs.Lend(p, s.first())
	} else {
		done, err = s.recvs.Polled(&s.life, p)
	}
	s.life.Leave()
	return done, err
}

// first is the first message that was not received, in its Context Region.
func (s *small) first() []byte {
	i := s.receives.at + int(s.taken%s.window)
	_, n := s.ctx.proc.ReceiveDoorbell(i)
	return s.ctx.proc.ReceiveRegion(i)[dataHead:n]
}

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	s.settle()
	for s.recvs.Want() {
		if !s.life.HasMessage() {
			if s.life.State() != kit.StateUp {
				s.recvs.Fail(&s.life)
			}
			return
		}
		message := s.first()
		s.recvs.Fill(&s.life, message)
		s.consumed(len(message))
	}
}

// consumed gives the context of the first message back.
func (s *small) consumed(n int) {
	s.taken++
	s.life.Taken(n)
	if s.life.State() == kit.StateUp {
		s.replenish() // polls in vain do not
	}
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	n, err := s.recvs.Return(&s.life, p)
	if err != nil {
		return err
	}
	s.consumed(n)
	s.life.Leave()
	return nil
}
