package shm

import (
	"context"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// small is an instance on the small track.
type small struct {
	*conn
	send    producer
	recv    consumer
	sends   kit.PacketQueue // that found the ring full
	recvs   kit.PacketQueue
	partial int // bytes of the message at the head that were copied out

	sendBuf *driver.Packet // has a buffer out
	recvBuf *driver.Packet
	arrived arrival // what recvBuf was given

	named     uint32         // a probe has named what is at the head
	popped    bool           // something was received in this call
	deathSaid bool           // a probe has named the end; guarded by the prober
	waitFor   *driver.Packet // of the wait under way
	sending   bool
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ driver.OneSided       = (*small)(nil)
)

func (s *small) attach() {
	out, in := s.side, 1-s.side
	if s.toSelf {
		in = out
	}
	s.send = newProducer(s.seg.ring[out])
	s.recv = newConsumer(s.seg.ring[in])
	s.ctx.prober.add(s)
}

func (s *small) detach() {
	s.releasePeer()
}

// fail implements trackEnd. The peer never writes to posted memory here.
func (s *small) fail() bool {
	s.ctx.prober.remove(s)
	s.sends, s.recvs = kit.PacketQueue{}, kit.PacketQueue{}
	s.oneSided = opQueue{}
	return true
}

// Path implements driver.Instance.
func (s *small) Path() string {
	if s.opPath != "" {
		return s.opPath
	}
	return "ring"
}

// Disconnect implements driver.Instance.
func (s *small) Disconnect() error {
	pending := false
	if s.enter() {
		s.push()
		pending = !s.sends.Empty()
		s.leave()
	}
	return s.disconnect(pending)
}

// ready, arm and disarm implement waiter for the packet in waitFor.
func (s *small) ready() (bool, error) {
	if s.sending {
		return s.SendPoll(s.waitFor)
	}
	return s.RecvPoll(s.waitFor)
}

func (s *small) arm() {
	if s.enter() {
		if s.sending {
			raise(&s.mine.sleeping, s.asym)
		} else {
			raise(&s.recv.cons.armed, s.asym)
		}
		s.leave()
	}
}

func (s *small) disarm() {
	if s.enter() {
		if s.sending {
			atomic.StoreUint32(&s.mine.sleeping, 0)
		} else {
			atomic.StoreUint32(&s.recv.cons.armed, 0)
		}
		s.leave()
	}
}

func (s *small) wait(ctx context.Context, p *driver.Packet, sending bool) error {
	s.waitFor, s.sending = p, sending
	return s.conn.block(ctx, s)
}

// SendWait implements driver.SendWaiter.
func (s *small) SendWait(ctx context.Context, p *driver.Packet) error { return s.wait(ctx, p, true) }

// RecvWait implements driver.RecvWaiter.
func (s *small) RecvWait(ctx context.Context, p *driver.Packet) error { return s.wait(ctx, p, false) }
