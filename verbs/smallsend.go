package verbs

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

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
	if s.sends.Empty() {
		if !s.mayStart() {
			s.settle()
		}
		if s.mayStart() {
			s.start(p)
			s.flush(false)
			return nil
		}
		s.life.Tally.Waited.Add(1)
	} else {
		s.settle()
	}
	return s.sends.Post(&s.life, p)
}

// longest is the longest message that both sides can.
func (s *small) longest() int { return min(s.ctx.opts.buffer, int(s.theirs.buffer)) }

// mayStart tells whether there is credit, room in the queue, and a buffer.
func (s *small) mayStart() bool {
	return int32(s.limit-s.sentCount) > 0 && s.sq.room() > controlReserve && s.slotsOut < s.mem.slots
}

// start adds a message to what is posted next. Its memory is free at once.
func (s *small) start(p *driver.Packet) {
	n := p.Len()
	buf := s.takeSlot()
	if n <= inlineSize {
		s.slotsOut-- // not needed
		wr, _ := s.sq.add(requestControl, false)
		s.announce(wr)
		if b, ok := p.Contiguous(); ok {
			wr.Inline(b)
		} else {
			c := p.Cursor()
			c.Gather(buf[:n])
			wr.Inline(buf[:n])
		}
	} else {
		c := p.Cursor()
		c.Gather(buf[:n])
		s.sendSlotFilled(n)
	}
	p.N = n
	s.count(n)
	p.Driver.Finish(nil)
}

// takeSlot returns the next send buffer, which is free.
func (s *small) takeSlot() []byte {
	s.slotsOut++
	return s.mem.send(int(s.sendSlot) % s.mem.slots)
}

// sendSlotFilled adds the message that lies in the send buffer just taken.
func (s *small) sendSlotFilled(n int) {
	addr := s.mem.sendAddr(int(s.sendSlot) % s.mem.slots)
	s.sendSlot++
	wr, _ := s.sq.add(requestData, false)
	s.announce(wr)
	wr.AddSGE(addr, uint32(n), s.mem.lkey)
}

func (s *small) count(n int) {
	s.sentCount++
	s.opPath = ""
	s.life.Sent(n)
}

// push starts what has waited.
func (s *small) push() {
	if s.life.State() != kit.StateUp {
		s.sends.Fail(&s.life, "send")
		return
	}
	posted := false
	for !s.sends.Empty() && s.mayStart() {
		s.start(s.sends.Pop())
		posted = true
	}
	if posted {
		s.flush(false)
	}
}

// SendPoll implements driver.Instance.
func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.life.Enter() {
		return s.life.Over(p, "send")
	}
	s.settle()
	if s.life.State() != kit.StateUp {
		s.push()
	}
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
	if !s.sends.Empty() || !s.mayStart() {
		s.settle()
		if !s.sends.Empty() || !s.mayStart() {
			return s.life.Busy()
		}
	}
	s.buffer.Lend(p, s.takeSlot())
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	buf, send, err := s.buffer.Return(&s.life, p, n, int(s.theirs.buffer))
	if buf == nil {
		return err
	}
	defer s.life.Leave()
	if !send {
		s.slotsOut--
		return err
	}
	if n <= inlineSize {
		s.slotsOut--
		wr, _ := s.sq.add(requestControl, false)
		s.announce(wr)
		wr.Inline(buf[:n])
	} else {
		s.sendSlotFilled(n)
	}
	s.flush(false)
	p.N = n
	s.count(n)
	p.Driver.Finish(nil)
	return nil
}
