//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"github.com/bywash/bywash/afxdp/internal/link"
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
	n, err := s.AdmitSend(p, maxSmall)
	if err != nil {
		return err
	}
	size := int(s.fragment.Load()) // loaded once, as the engine changes it with the path
	if !s.hasRoom(parts(n, size)) {
		return s.Busy()
	}
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
	p.N = n
	p.Driver.Finish(nil)
	s.posted(n)
	return nil
}

// parts returns how many packets a message of n bytes takes, with at most size bytes in each.
func parts(n, size int) int { return max(1, (n+max(size, 1)-1)/max(size, 1)) }

// hasRoom reports whether a message of that many packets can be posted.
func (s *small) hasRoom(parts int) bool {
	if s.posts.room() >= parts && s.stash.len() >= parts {
		return true
	}
	s.mark()
	s.ctx.nic.run()
	return s.posts.room() >= parts && s.stash.len() >= parts
}

// posted counts a message whose fragments are in posts. It runs the engine, unless a queue goroutine will soon send
// several fragments together.
func (s *small) posted(n int) {
	s.Sent(n)
	s.mark()
	if s.pending.Load() > 0 && s.posts.len() < together && s.ctx.nic.polledSoon.Load() {
		return
	}
	s.ctx.nic.run()
}

// together is how many fragments leave in one system call while others are under way: the call costs as much as sending
// one fragment. They leave earlier when the program polls.
const together = 16

func (s *small) Longest() int { return maxSmall }

func (s *small) Room() []byte {
	size := s.ctx.Props.Capabilities.BufferSize
	s.keptCut = int(s.fragment.Load()) // Filled has reserved chunks for packets of this size
	if !s.hasRoom(parts(size, s.keptCut)) {
		return nil
	}
	if !s.hasKept {
		s.kept, _ = s.stash.pop()
	}
	s.hasKept = true
	return s.ctx.nic.memory.bytes(s.kept)[dataAt+link.HeaderSize:][:size]
}

// Filled implements kit.SmallHooks. A packet to the peer may be smaller than the buffer: the rest is moved to further
// chunks.
func (s *small) Filled(buf []byte, n int) error {
	if n < 0 {
		return nil
	}
	s.hasKept = false
	size := s.keptCut
	m := &s.ctx.nic.memory
	s.posts.push(post{chunk: s.kept, n: uint16(min(n, size)), more: n > size})
	for at := size; at < n; at += size {
		k, _ := s.stash.pop()
		part := min(n-at, size)
		copy(m.bytes(k)[dataAt+link.HeaderSize:], buf[at:at+part])
		s.posts.push(post{chunk: k, n: uint16(part), more: at+part < n})
	}
	s.posted(n)
	return nil
}
