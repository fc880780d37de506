package qnix

import (
	"fmt"

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
	if s.life.State() != driver.StateUp {
		return s.life.Failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.life.Misuse("send", p)
	}
	if n := p.Len(); n > s.longest() {
		return s.tooLong(n)
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
	if s.queue.Full() {
		s.life.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase = driver.Posted
	s.queue.Push(p)
	s.stalled.Store(true)
	if s.mayStart() { // credit came meanwhile, or the Command Queue is full
		s.ctx.attend(&s.conn)
	}
	return nil
}

func (s *small) tooLong(n int) error {
	return s.life.Fault("send", fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, n, s.longest()))
}

// mayStart tells whether there is credit, and with it a context.
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
	s.life.Tally.Sent.Add(1)
	s.life.Tally.BytesSent.Add(uint64(n))
	return true
}

// push starts what has waited.
func (s *small) push() {
	if s.life.State() != driver.StateUp {
		err := s.life.Failure("send")
		for !s.queue.Empty() {
			s.queue.Pop().Driver.Finish(err)
		}
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
	phase := p.Driver.Phase
	s.life.Leave()
	switch phase {
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
	if !s.queue.Empty() || !s.mayStart() {
		s.settle()
		if !s.queue.Empty() || !s.mayStart() {
			s.life.Tally.Busy.Add(1)
			return driver.ErrBusy
		}
	}
	p.Buf = s.region()[dataHead:s.room():s.room()]
	p.Driver.Phase = driver.BufferOut
	s.sendBuf = p
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	if p != s.sendBuf {
		return s.life.Fault("send", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	if n > len(p.Buf) || n > s.longest() {
		return s.tooLong(n)
	}
	if !s.life.Enter() {
		s.sendBuf = nil
		_, err := s.life.Over(p, "send")
		return err
	}
	defer s.life.Leave()
	s.sendBuf, p.Buf = nil, nil
	switch {
	case n < 0:
		p.Driver = driver.PacketState{}
		return nil
	case s.life.State() != driver.StateUp:
		p.Driver = driver.PacketState{}
		return s.life.Failure("send")
	}
	for !s.launch(n) { // the NIC empties the Command Queue without anybody's help
		if s.life.State() != driver.StateUp {
			p.Driver = driver.PacketState{}
			return s.life.Failure("send")
		}
		s.kick()
	}
	s.kick()
	p.N = n
	p.Driver.Finish(nil)
	return nil
}
