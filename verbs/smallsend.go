package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
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
	if s.life.State() != driver.StateUp {
		return s.life.Failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.life.Misuse("send", p)
	}
	if n := p.Len(); n > s.ctx.opts.buffer || n > int(s.theirs.buffer) {
		return s.life.Fault("send", fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, n, min(s.ctx.opts.buffer, int(s.theirs.buffer))))
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
	if s.sends.Full() {
		s.life.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase = driver.Posted
	s.sends.Push(p)
	return nil
}

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
	s.life.Tally.Sent.Add(1)
	s.life.Tally.BytesSent.Add(uint64(n))
}

// push starts what has waited.
func (s *small) push() {
	if s.life.State() != driver.StateUp {
		err := s.life.Failure("send")
		for !s.sends.Empty() {
			s.sends.Pop().Driver.Finish(err)
		}
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
	if s.life.State() != driver.StateUp {
		s.push()
	}
	s.life.Leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted:
		return false, nil
	}
	return true, s.life.Misuse("send poll", p)
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if !s.life.Enter() {
		return s.life.Failure("send")
	}
	defer s.life.Leave()
	if s.life.State() != driver.StateUp {
		return s.life.Failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.life.Misuse("send", p)
	}
	if !s.sends.Empty() || !s.mayStart() {
		s.settle()
		if !s.sends.Empty() || !s.mayStart() {
			s.life.Tally.Busy.Add(1)
			return driver.ErrBusy
		}
	}
	p.Buf = s.takeSlot()
	p.Driver.Phase = driver.BufferOut
	s.sendBuf = p
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	if p != s.sendBuf {
		return s.life.Fault("send", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	if n > len(p.Buf) || n > int(s.theirs.buffer) {
		return s.life.Fault("send", fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, n, min(len(p.Buf), int(s.theirs.buffer))))
	}
	if !s.life.Enter() {
		s.sendBuf = nil
		_, err := s.life.Over(p, "send")
		return err
	}
	defer s.life.Leave()
	buf := p.Buf
	s.sendBuf, p.Buf = nil, nil
	switch {
	case n < 0:
		s.slotsOut--
		p.Driver = driver.PacketState{}
		return nil
	case s.life.State() != driver.StateUp:
		s.slotsOut--
		p.Driver = driver.PacketState{}
		return s.life.Failure("send")
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
