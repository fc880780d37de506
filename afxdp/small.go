//go:build linux

package afxdp

import (
	"fmt"

	"github.com/bywash/bywash/afxdp/link"
	"github.com/bywash/bywash/driver"
)

// small is an instance on the small track. Its owner writes messages into frames and reads them
// out of frames; the engine moves frames between its rings and the connection.
type small struct {
	conn
	recvs driver.PacketQueue

	posts ring[post]   // owner to engine: fragments to be sent
	stash ring[uint32] // engine to owner: chunks to write messages into
	inbox ring[piece]  // engine to owner: fragments that came
	done  ring[uint64] // owner to engine: frames that were read

	// The engine's.
	length int // of the message whose fragments are coming

	sendBuf *driver.Packet
	recvBuf *driver.Packet
	whole   []byte // a message of several fragments, for recvBuf
	kept    uint32 // a chunk that was got and not sent
	hasKept bool
}

// post is a fragment in a chunk.
type post struct {
	chunk uint32
	n     uint16
	more  bool
}

// piece is a fragment that came.
type piece struct {
	id   uint64
	data []byte
	more bool
}

const (
	maxSmall   = 8 << 10 // bytes of a message
	postRoom   = 256     // fragments that wait to be sent
	stashRoom  = 32
	handBack   = 4 // frames that were read, until the engine is told
	smallDepth = driver.PacketQueueDepth
)

func newSmall(c *Context) *small {
	s := &small{}
	s.posts, s.stash = newRing[post](postRoom), newRing[uint32](stashRoom)
	room := max(2*c.opts.window, 2*postRoom)
	s.inbox, s.done = newRing[piece](room), newRing[uint64](room)
	return s
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
)

func (s *small) hello() []byte { return s.helloOf(0) }

func (s *small) up(hello []byte) error {
	_, err := s.parseHello(hello)
	s.restock()
	return err
}

// restock gives the owner chunks to write into.
func (s *small) restock() {
	m := &s.ctx.nic.memory
	for s.stash.len() < stashRoom/2 || s.stash.len() < stashRoom && len(m.free) > txChunks/2 {
		f, ok := s.ctx.Get()
		if !ok {
			return
		}
		s.stash.push(uint32(f.ID))
	}
}

// serve implements track.
func (s *small) serve() {
	c := s.ctx
	for id, ok := s.done.pop(); ok; id, ok = s.done.pop() {
		if s.toSelf {
			c.Put(id)
		} else {
			s.lc.Release(id)
		}
	}
	if s.life.State() != driver.StateUp {
		return
	}
	m := &c.nic.memory
	if s.toSelf {
		for !s.posts.empty() && s.inbox.room() > 0 {
			p, _ := s.posts.pop()
			f := m.frame(p.chunk)
			s.deliver(link.Fragment{ID: f.ID, Data: f.Data[link.HeaderSize:][:p.n], More: p.more})
		}
	} else {
		for !s.posts.empty() && s.lc.Room() > 0 {
			p, _ := s.posts.pop()
			s.lc.Post(c.nic.now, m.frame(p.chunk), int(p.n), p.more)
		}
		if s.pending.Load() == 0 && s.lc.Unacknowledged() > 0 {
			c.nic.sending = append(c.nic.sending, &s.conn)
		}
		s.pending.Store(int32(s.lc.Unacknowledged()))
	}
	if !s.posts.empty() && !s.waits {
		s.waits = true
		c.nic.backlog = append(c.nic.backlog, &s.conn)
	}
	s.restock()
}

// deliver implements track.
func (s *small) deliver(f link.Fragment) {
	s.length += len(f.Data)
	if s.length > maxSmall || !s.inbox.push(piece{f.ID, f.Data, f.More}) {
		s.lc.Release(f.ID)
		s.misbehaved(fmt.Sprintf("a message of more than %d bytes", maxSmall))
		return
	}
	if f.More {
		return
	}
	s.length = 0
	s.announce()
}

func (s *small) place(*link.Placement) { s.misbehaved("a placed message on the small track") }

// busy implements track.
func (s *small) busy() bool {
	if s.toSelf {
		return false
	}
	s.mark()
	s.ctx.nic.run()
	return s.marked.Load() || !s.posts.empty() || s.pending.Load() > 0
}

// drop implements track.
func (s *small) drop() {
	c := s.ctx
	for p, ok := s.posts.pop(); ok; p, ok = s.posts.pop() {
		c.nic.put(p.chunk)
	}
	for k, ok := s.stash.pop(); ok; k, ok = s.stash.pop() {
		c.nic.put(k)
	}
	if s.sendBuf != nil {
		c.nic.put(s.sendBuf.Driver.Slot)
	}
	if s.hasKept {
		c.nic.put(s.kept)
	}
	release := func(id uint64) {
		if s.toSelf {
			c.Put(id)
		} else {
			s.lc.Release(id)
		}
	}
	for id, ok := s.done.pop(); ok; id, ok = s.done.pop() {
		release(id)
	}
	for p, ok := s.inbox.pop(); ok; p, ok = s.inbox.pop() {
		release(p.id)
	}
	s.recvs = driver.PacketQueue{}
}

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error {
	if !s.life.Enter() {
		return s.life.Failure("receive")
	}
	err := s.postRecv(p)
	s.life.Leave()
	return err
}

func (s *small) postRecv(p *driver.Packet) error {
	switch st := s.life.State(); {
	case st != driver.StateUp && !(st == driver.StatePeerClosed && s.life.HasMessage()):
		return s.life.Failure("receive")
	case p.Driver.Phase != driver.Idle:
		return s.life.Misuse("receive", p)
	case s.recvs.Full():
		s.life.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	p.Driver.Phase = driver.Posted
	s.recvs.Push(p)
	return nil
}

// nothing tells that a receive has nothing to wait for at the moment.
func (s *small) nothing() bool {
	if !s.life.Waited() || s.life.HasMessage() {
		return false
	}
	s.ctx.nic.run()
	return !s.life.HasMessage() && s.life.State() == driver.StateUp
}

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	if !s.life.Enter() {
		return s.life.Over(p, "receive")
	}
	var done bool
	var err error
	if p.Driver.Phase == driver.Idle {
		done, err = s.pollBuffer(p)
	} else {
		s.receive()
	}
	s.life.Leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Idle, driver.BufferOut:
		return done, err
	}
	return true, s.life.Misuse("receive poll", p)
}

// receive fills posted receives with what has arrived.
func (s *small) receive() {
	if !s.life.HasMessage() {
		s.ctx.nic.run()
	}
	for !s.recvs.Empty() && s.recvBuf == nil {
		if !s.life.HasMessage() {
			if s.life.State() != driver.StateUp && !s.life.HasMessage() {
				err := s.life.Failure("receive")
				for !s.recvs.Empty() {
					s.recvs.Pop().Driver.Finish(err)
				}
			}
			return
		}
		s.fill(s.recvs.Pop())
	}
}

// fill copies the first message.
func (s *small) fill(p *driver.Packet) {
	f, _ := s.inbox.pop()
	length := len(f.data)
	if !f.more && len(p.IOV) == 1 && len(p.IOV[0]) >= length {
		p.N = copy(p.IOV[0], f.data)
		s.done.push(f.id)
	} else {
		c := p.Cursor()
		p.N = c.Scatter(f.data)
		s.done.push(f.id)
		for f.more {
			f, _ = s.inbox.pop()
			length += len(f.data)
			p.N += c.Scatter(f.data)
			s.done.push(f.id)
		}
	}
	var err error
	if p.N < length {
		err = &driver.TruncatedError{Message: length, Buffer: p.N}
		s.life.Tally.Truncated.Add(1)
	}
	p.Driver.Finish(err)
	s.consumed(length)
}

// consumed counts a message that was received.
func (s *small) consumed(n int) {
	s.life.Taken()
	s.life.Tally.Received.Add(1)
	s.life.Tally.BytesReceived.Add(uint64(n))
	if s.done.len() >= handBack {
		s.mark()
	}
}

// pollBuffer receives without a copy, a message of one fragment.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if s.recvBuf != nil {
		return true, s.life.Misuse("receive", p)
	}
	if !s.recvs.Empty() {
		s.receive()
		return false, nil
	}
	if !s.life.HasMessage() {
		s.ctx.nic.run()
	}
	if s.life.HasMessage() {
		f := s.inbox.peek(0)
		p.Buf, p.N = f.data[:len(f.data):len(f.data)], len(f.data)
		if f.more {
			s.gather(p)
		}
		p.Driver.Phase = driver.BufferOut
		s.recvBuf = p
		return true, nil
	}
	if s.life.State() == driver.StateUp || s.life.HasMessage() {
		return false, nil
	}
	return true, s.life.Failure("receive")
}

// gather puts together a message of several fragments.
func (s *small) gather(p *driver.Packet) {
	if s.whole == nil {
		s.whole = make([]byte, 0, maxSmall)
	}
	p.Buf = s.whole[:0]
	for k := 0; ; k++ {
		f := s.inbox.peek(k)
		p.Buf = append(p.Buf, f.data...)
		if !f.more {
			break
		}
	}
	p.N = len(p.Buf)
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if p != s.recvBuf || p == nil {
		return s.life.Fault("release", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	s.recvBuf = nil
	n := p.N
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.life.Enter() {
		return s.life.Failure("release")
	}
	for more := true; more; {
		f, _ := s.inbox.pop()
		s.done.push(f.id)
		more = f.more
	}
	s.consumed(n)
	s.life.Leave()
	return nil
}

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Done:
		return nil
	case driver.Posted:
	default:
		if s.life.State() == driver.StateClosed {
			return s.life.Failure("cancel")
		}
		return s.life.Fault("cancel", fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid))
	}
	if !s.life.Enter() {
		return s.life.Failure("cancel")
	}
	defer s.life.Leave()
	if s.recvs.Remove(p) {
		s.life.Tally.Canceled.Add(1)
		p.Driver.Finish(driver.ErrCanceled)
	}
	return nil
}
