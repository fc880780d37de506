//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"github.com/bywash/bywash/driver"
)

func (s *small) SendPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	err := s.postSend(p)
	s.Leave()
	return err
}

func (s *small) postSend(p *driver.Packet) error {
	if _, err := s.AdmitSend(p, s.Longest()); err != nil {
		return err
	}
	if !s.Stalled() && s.Start(p) {
		s.flush(false)
		return nil
	}
	return s.Later(p)
}

func (s *small) Longest() int { return min(s.ctx.opts.buffer, int(s.theirs.buffer)) }

// mayStart reports whether there are credit, room in the queue and a send buffer.
func (s *small) mayStart() bool {
	return int32(s.limit-s.sentCount) > 0 && s.sq.room() > controlReserve && s.slotsOut < s.mem.slots
}

// Start implements kit.Starter: it adds a message to the chain.
func (s *small) Start(p *driver.Packet) bool {
	if !s.mayStart() {
		return false
	}
	n := p.Len()
	buf := s.takeSlot()
	if s.sq.inlines(n) {
		s.slotsOut-- // the request itself carries the bytes
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
	return true
}

func (s *small) Launch() { s.flush(false) }

// takeSlot returns the next send buffer. The caller has checked that it is free.
func (s *small) takeSlot() []byte {
	s.slotsOut++
	return s.mem.send(s.sendSlot)
}

// sendSlotFilled adds the message in the send buffer that takeSlot returned.
func (s *small) sendSlotFilled(n int) {
	addr := s.mem.sendAddr(s.sendSlot)
	s.sendSlot = (s.sendSlot + 1) % s.mem.slots
	wr, _ := s.sq.add(requestData, false)
	s.announce(wr)
	if n > 0 {
		wr.AddSGE(addr, uint32(n), s.mem.lkey)
	}
}

func (s *small) count(n int) {
	s.sentCount++
	s.path = pathSend
	s.Sent(n)
}

func (s *small) Room() []byte {
	if !s.mayStart() {
		return nil
	}
	return s.takeSlot()
}

func (s *small) Filled(buf []byte, n int) error {
	switch {
	case n < 0:
		s.slotsOut--
		return nil
	case s.sq.inlines(n):
		s.slotsOut--
		wr, _ := s.sq.add(requestControl, false)
		s.announce(wr)
		wr.Inline(buf[:n])
	default:
		s.sendSlotFilled(n)
	}
	s.flush(false)
	s.count(n)
	return nil
}
