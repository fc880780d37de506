//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// notify wakes the peer if it sleeps; called after each message.
func (s *small) notify() {
	if s.asym && load32(&s.send.cons.armed)|load32(&s.peerPage.raised) == 0 {
		return
	}
	s.notifySlow()
}

func (s *small) notifySlow() {
	if raised(&s.send.cons.armed, s.asym) {
		atomic.StoreUint32(&s.send.cons.armed, 0)
		wake(&s.theirs.seq)
		s.Tally.Woke.Add(1)
	}
	if raised(&s.peerPage.raised, s.asym) {
		atomic.StoreUint32(&s.peerPage.raised, 0)
		wake(&s.peerPage.seq)
		s.Tally.Woke.Add(1)
	}
}

func (s *small) SendPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	err := s.post(p)
	s.conn.Leave()
	return err
}

func (s *small) post(p *driver.Packet) error {
	if len(p.IOV) == 1 && s.State() == kit.StateUp && p.Driver.Phase == driver.Idle && !s.BufferOut() && !s.Stalled() {
		// The common case, in one look.
		b := p.IOV[0]
		if len(b) <= inlineMax {
			if ok, _ := s.send.room(len(b)); ok {
				s.send.sendInline(b)
				p.N, p.Driver.Err, p.Driver.Phase = len(b), nil, driver.Done
				s.published(len(b))
				return nil
			}
		}
	}
	n, err := s.AdmitSend(p, maxSmall)
	if err != nil {
		return err
	}
	if !s.Stalled() && s.trySend(p, n) {
		return nil
	}
	return s.Later(p)
}

// published counts a message of n bytes that is in the ring, and wakes the peer.
func (s *small) published(n int) {
	if s.opPath != "" {
		s.opPath = ""
	}
	s.Tally.Sent.Add(1)
	s.Tally.BytesSent.Add(uint64(n))
	s.notify()
}

func (s *small) trySend(p *driver.Packet, n int) bool {
	if !s.hasRoom(n) {
		return false
	}
	c := p.Cursor()
	s.send.sendGather(&c, n)
	p.N = n
	p.Driver.Finish(nil)
	s.published(n)
	return true
}

func (s *small) hasRoom(n int) bool {
	ok, bad := s.send.room(n)
	if bad {
		s.misbehaved("progress beyond what was sent")
	}
	return ok
}

func (s *small) Settle() { s.Push() }

func (s *small) Start(p *driver.Packet) bool { return s.trySend(p, p.Len()) }

// Launch implements kit.Starter: what is in the ring is under way.
func (s *small) Launch() {}

func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	return s.Small.SendPoll(p)
}

func (s *small) Longest() int { return maxSmall }

func (s *small) Room() []byte {
	if !s.hasRoom(maxSmall) {
		return nil
	}
	return unsafe.Slice((*byte)(s.send.dataAt()), maxSmall)
}

func (s *small) Filled(buf []byte, n int) error {
	switch {
	case n < 0:
		return nil
	case n <= inlineMax:
		s.send.sendInline(buf[:n])
	default:
		s.send.publishData(n)
	}
	s.published(n)
	return nil
}
