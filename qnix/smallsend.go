package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// longest is the longest message that both sides can.
func (s *small) longest() int { return min(s.ctx.opts.buffer, int(s.theirs.buffer)) }

// SendPost implements driver.Instance.
func (s *small) SendPost(p *driver.Packet) error {
	if !s.life.Enter() {
		return s.life.Failure("send")
	}
	err := s.postSend(p)
	s.life.Leave()
	return err
}

func (s *small) postSend(p *driver.Packet) error {
	if _, err := s.buffer.Admit(&s.life, p, s.longest()); err != nil {
		return err
	}
	if s.queue.Empty() {
		if !s.mayStart() {
			s.settle()
		}
		if s.mayStart() && s.start(p) {
			s.kick()
			return nil
		}
		s.life.Tally.Waited.Add(1)
	} else {
		s.settle()
	}
	if err := s.queue.Post(&s.life, p); err != nil {
		return err
	}
	s.stalled.Store(true)
	if s.mayStart() { // credit came meanwhile, or the Command Queue is full
		s.ctx.attend(&s.conn)
	}
	return nil
}

// mayStart reports whether there is credit, and with it a context.
func (s *small) mayStart() bool { return int32(s.limit.Load()-s.started) > 0 }

// region is where the next message goes.
func (s *small) region() []byte {
	return s.ctx.proc.SendRegion(s.sends.at + int(s.started%s.ours))
}

// start sends a message, for which there is credit. Its memory is free at once.
func (s *small) start(p *driver.Packet) bool {
	n := p.Len()
	to := s.region()[dataHead:]
	if b, ok := p.Contiguous(); ok {
		copy(to, b)
	} else {
		c := p.Cursor()
		c.Gather(to[:n])
	}
	if !s.launch(n) {
		return false
	}
	p.N = n
	p.Driver.Finish(nil)
	return true
}

// launch sends the n bytes that lie in the next region.
func (s *small) launch(n int) bool {
	slot := int(s.started % s.ours)
	i := s.sends.at + slot
	proc := s.ctx.proc
	putHead(proc.SendRegion(i), s.posted, s.started)
	s.message = nic.Message{Peer: s.name, Tag: s.theirs.tags + uint16(slot), Len: n + dataHead, Flags: nic.Inline}
	if !s.done(proc.Post(nic.SendShort, i, &s.message)) {
		return false
	}
	s.told = s.posted
	s.started++
	s.life.Sent(n)
	return true
}

// push starts what has waited.
func (s *small) push() {
	if s.life.State() != driver.StateUp {
		s.queue.Fail(&s.life, "send")
		s.stalled.Store(false)
		return
	}
	did := false
	for !s.queue.Empty() && s.mayStart() && s.start(s.queue.First()) {
		s.queue.Pop()
		did = true
	}
	if s.queue.Empty() {
		s.stalled.Store(false)
	}
	if did {
		s.kick()
	}
}

// SendPoll implements driver.Instance.
func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	// While sends wait, the keeper may be at them, between calls.
	if !s.stalled.Load() && p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.life.Enter() {
		if p.Driver.Phase == driver.Done {
			return p.Driver.Outcome()
		}
		return s.life.Over(p, "send")
	}
	s.settle()
	done, err := s.life.Polled("send", p)
	s.life.Leave()
	return done, err
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if err := s.buffer.Enter(&s.life, p); err != nil {
		return err
	}
	defer s.life.Leave()
	if !s.queue.Empty() || !s.mayStart() {
		s.settle()
		if !s.queue.Empty() || !s.mayStart() {
			return s.life.Busy()
		}
	}
	s.buffer.Lend(p, s.region()[dataHead:s.room()])
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	buf, send, err := s.buffer.Return(&s.life, p, n, s.longest())
	if buf == nil {
		return err
	}
	defer s.life.Leave()
	if !send {
		return err
	}
	for !s.launch(n) { // the NIC empties the Command Queue without anybody's help
		if s.life.State() != driver.StateUp {
			return s.life.Failure("send")
		}
		s.kick()
	}
	s.kick()
	p.N = n
	p.Driver.Finish(nil)
	return nil
}
