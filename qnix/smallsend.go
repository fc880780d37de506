//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

func (s *small) Longest() int { return min(s.ctx.opts.buffer, int(s.theirs.buffer)) }

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
		s.ctx.kick()
		return nil
	}
	if err := s.Later(p); err != nil {
		return err
	}
	if s.Stalled() && s.mayStart() { // credit has arrived meanwhile, or the Command Queue was full
		s.ctx.schedule(&s.conn)
	}
	return nil
}

// mayStart reports whether there is credit, and therefore a free context.
func (s *small) mayStart() bool { return int32(s.limit.Load()-uint32(s.started)) > 0 }

// region returns the memory of the next message.
func (s *small) region() []byte {
	return s.ctx.proc.SendRegion(s.sends.at + int(s.started%s.ours))
}

func (s *small) Start(p *driver.Packet) bool {
	if !s.mayStart() {
		return false
	}
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

// launch sends the first n bytes of the next region.
func (s *small) launch(n int) bool {
	slot := int(s.started % s.ours)
	i := s.sends.at + slot
	proc := s.ctx.proc
	putHead(proc.SendRegion(i), uint32(s.posted), uint32(s.started))
	s.message = nic.Message{Peer: s.name, Tag: s.theirs.tags + uint16(slot), Len: n + dataHead, Flags: nic.Inline}
	if !s.conn.posted(proc.Post(nic.SendShort, i, &s.message)) {
		return false
	}
	s.limitSent = s.posted
	s.started++
	s.Sent(n)
	return true
}

func (s *small) Launch() { s.ctx.kick() }

func (s *small) Room() []byte {
	if !s.mayStart() {
		return nil
	}
	return s.region()[dataHead:s.room()]
}

func (s *small) Filled(_ []byte, n int) error {
	if n < 0 {
		return nil
	}
	for !s.launch(n) { // the NIC empties the Command Queue by itself
		if s.State() != kit.StateUp {
			return s.Failure("send")
		}
		s.ctx.kick()
	}
	s.ctx.kick()
	return nil
}
