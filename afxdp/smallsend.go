//go:build linux

package afxdp

import (
	"context"

	"github.com/bywash/bywash/afxdp/internal/link"
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
	n, err := s.buffer.Admit(&s.life, p, maxSmall)
	if err != nil {
		return err
	}
	if !s.hasRoom(n) {
		return s.life.Busy()
	}
	size := int(s.fragment.Load())
	m := &s.ctx.nic.memory
	if len(p.IOV) == 1 && n <= size {
		k, _ := s.stash.pop()
		copy(m.bytes(k)[dataAt+link.HeaderSize:], p.IOV[0])
		s.posts.push(post{chunk: k, n: uint16(n)})
	} else {
		c := p.Cursor()
		for left, first := n, true; left > 0 || first; first = false {
			k, _ := s.stash.pop()
			part := min(left, size)
			c.Gather(m.bytes(k)[dataAt+link.HeaderSize:][:part])
			left -= part
			s.posts.push(post{chunk: k, n: uint16(part), more: left > 0})
		}
	}
	s.posted(p, n)
	return nil
}

// parts is how many packets a message of n bytes takes.
func (s *small) parts(n int) int {
	size := max(int(s.fragment.Load()), 1)
	return max(1, (n+size-1)/size)
}

// hasRoom tells whether a message of n bytes can be posted.
func (s *small) hasRoom(n int) bool {
	parts := s.parts(n)
	if s.posts.room() >= parts && s.stash.len() >= parts {
		return true
	}
	s.mark()
	s.ctx.nic.run()
	return s.posts.room() >= parts && s.stash.len() >= parts
}

// posted counts a message whose fragments are in posts, and sends it if nobody else is about to.
func (s *small) posted(p *driver.Packet, n int) {
	p.N = n
	p.Driver.Finish(nil)
	s.life.Sent(n)
	s.mark()
	if s.pending.Load() > 0 && s.posts.len() < together && s.ctx.nic.tended.Load() {
		return
	}
	s.ctx.nic.run()
}

// together is how many fragments leave in one system call while others are under way: a call
// costs as much as sending one. They leave earlier when anything is polled.
const together = 16

// SendPoll implements driver.Instance.
func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !s.life.Enter() {
		return s.life.Over(p, "send")
	}
	s.life.Leave()
	return true, s.life.Misuse("send poll", p)
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if err := s.buffer.Enter(&s.life, p); err != nil {
		return err
	}
	defer s.life.Leave()
	size := s.ctx.props.Capabilities.BufferSize
	if !s.hasRoom(size) {
		return s.life.Busy()
	}
	if !s.hasKept {
		s.kept, _ = s.stash.pop()
	}
	s.hasKept = true
	s.buffer.Lend(p, s.ctx.nic.memory.bytes(s.kept)[dataAt+link.HeaderSize:][:size])
	return nil
}

// SendBufPost implements driver.BufferSender. The peer's path may take less than the
// buffer: the rest is moved to further chunks.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	buf, send, err := s.buffer.Return(&s.life, p, n, maxSmall)
	if buf == nil {
		return err
	}
	defer s.life.Leave()
	if !send {
		return err
	}
	s.hasKept = false
	size := int(s.fragment.Load())
	m := &s.ctx.nic.memory
	s.posts.push(post{chunk: s.kept, n: uint16(min(n, size)), more: n > size})
	for at := size; at < n; at += size {
		k, _ := s.stash.pop()
		part := min(n-at, size)
		copy(m.bytes(k)[dataAt+link.HeaderSize:], buf[at:at+part])
		s.posts.push(post{chunk: k, n: uint16(part), more: at+part < n})
	}
	s.posted(p, n)
	return nil
}

// SendWait implements driver.SendWaiter.
func (s *small) SendWait(ctx context.Context, p *driver.Packet) error {
	return s.ctx.nic.waits.Block(ctx, &s.life, s, p, true)
}

// RecvWait implements driver.RecvWaiter.
func (s *small) RecvWait(ctx context.Context, p *driver.Packet) error {
	return s.ctx.nic.waits.Block(ctx, &s.life, s, p, false)
}
