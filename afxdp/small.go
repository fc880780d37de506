//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"fmt"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// small is an instance on the small track. Its owner writes messages into frames and reads them from frames; the engine
// moves frames between the rings and the connection.
type small struct {
	conn
	kit.Small

	posts ring[post]   // owner to engine: fragments to be sent
	stash ring[uint32] // engine to owner: chunks to write messages into
	inbox ring[piece]  // engine to owner: fragments that have arrived
	done  ring[uint64] // owner to engine: frames that were read

	// The fields below belong to the engine.
	length int // bytes so far of the message that is arriving

	kept    uint32 // chunk of the send buffer, lent or not, until it is sent
	hasKept bool
	keptCut int    // bytes of a packet when the buffer was lent
	quota   uint16 // quota of chunks to send from; belongs to the engine
}

// post is a fragment in a chunk.
type post struct {
	chunk uint32
	n     uint16
	more  bool
}

// piece is a fragment that has arrived.
type piece struct {
	id   uint64
	data []byte
	more bool
}

const (
	maxSmall   = 8 << 10 // bytes of the longest message
	postRoom   = 256     // fragments that wait to be sent
	stashRoom  = 64      // enough for the longest message in the shortest packets
	stashed    = 16      // of them while chunks are scarce
	handBack   = 4       // frames that were read before the engine is notified
	smallDepth = kit.PacketQueueDepth
)

func newSmall(c *share) *small {
	s := &small{}
	s.ctx = c
	s.Init(&s.Conn, s)
	s.posts, s.stash = newRing[post](postRoom), newRing[uint32](stashRoom)
	room := max(2*c.opts.windowOf(driver.Small), 2*postRoom)
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

// enter gives the connection its quota of chunks.
func (s *small) enter() error {
	n := s.ctx.nic
	n.mustLock()
	defer n.unlock()
	id, ok := n.memory.quotas.open()
	if !ok {
		return s.ctx.full(fmt.Errorf("%d of the small track", n.memory.quotas.room))
	}
	s.quota = id
	return nil
}

// restock gives the owner chunks to write into, at least enough for the longest message.
func (s *small) restock() {
	n := s.ctx.nic
	least := min(max(stashed, parts(maxSmall, int(s.fragment.Load()))), stashRoom)
	for s.stash.len() < least || s.stash.len() < max(2*stashed, least) && n.memory.quotas.plenty() {
		k, ok := n.take(s.quota)
		if !ok {
			return
		}
		s.stash.push(k)
	}
}

func (s *small) serve() {
	c := s.ctx
	for id, ok := s.done.pop(); ok; id, ok = s.done.pop() {
		if s.toSelf {
			c.Put(id)
		} else {
			s.lc.Release(id)
		}
	}
	if s.State() != kit.StateUp {
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
			if !s.lc.Fits(c.nic.now, int(s.posts.peek(0).n)) {
				return // the connection has ended, which gives back all posted chunks
			}
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
	s.Announce()
	s.Wake()
}

func (s *small) place(*link.Placement) { s.misbehaved("a placed message on the small track") }

func (s *small) Pending() bool {
	if s.toSelf {
		return false
	}
	s.mark()
	s.ctx.nic.run()
	return s.marked.Load() || !s.posts.empty() || s.pending.Load() > 0
}

func (s *small) drop() {
	c := s.ctx
	for p, ok := s.posts.pop(); ok; p, ok = s.posts.pop() {
		c.nic.put(p.chunk)
	}
	for k, ok := s.stash.pop(); ok; k, ok = s.stash.pop() {
		c.nic.put(k)
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
	s.Drop()
	c.nic.memory.quotas.close(s.quota)
}

// nothing reports, without entering the instance, that a receive cannot complete now.
func (s *small) nothing() bool {
	if !s.Waited() || s.HasMessage() {
		return false
	}
	s.ctx.nic.run()
	return !s.HasMessage() && s.State() == kit.StateUp
}

func (s *small) RecvPoll(p *driver.Packet) (done bool, err error) {
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	return s.Small.RecvPoll(p)
}

func (s *small) Settle() {
	if !s.HasMessage() {
		s.ctx.nic.run()
	}
}

// First implements kit.SmallHooks. Each fragment lies in a frame.
func (s *small) First(k int) (fragment []byte, more, ok bool) {
	f := s.inbox.peek(k)
	return f.data, f.more, true
}

// Consumed implements kit.SmallHooks. The frames belong to the engine again.
func (s *small) Consumed(int) {
	for more := true; more; {
		f, _ := s.inbox.pop()
		s.done.push(f.id)
		more = f.more
	}
	if s.done.len() >= handBack {
		s.mark()
	}
}
