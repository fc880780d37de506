package verbs

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// With many peers, receive buffers of their own would cost a context hundreds of
// kilobytes a peer, most of them idle. In shared mode (option srq) all peers' messages go
// into receives of one queue. Every peer has a few of them for sure; the rest is
// lent to those that send.
//
// # Credits in shared mode
//
// A receive must be there for every message that a peer may send, as in small. So the
// sum of what peers may send never exceeds what is posted: each connection counts
// what it has granted and not yet received, of which the first sharedBase and what
// control takes are its own; beyond that it takes from spare, and puts back there once
// the buffer is posted again. A connection may have an eighth of what is spare
// (a dynamic threshold): many that send share, one alone gets its whole window,
// and those that fall silent with credits in hand leave seven eighths to the others.
//
// A receive can be lost: with the queue pair of a peer that dies in the middle of a
// message, and the device does not say so. Control receives are never all used,
// so a queue with less than one a connection has lost some: the device's limit event
// tells, and the queue gets new ones.
const (
	sharedBase    = 8
	sharedControl = 8 // a limit that shrinks is told in at most log2(512/8) steps; and a goodbye
	sharedPeer    = sharedBase + sharedControl
	sharedSends   = 32 // depth of a send queue: completion queues bound their sum
	sharedSlots   = 16 // send buffers of a connection
	sharedShare   = 8

	sharedSlabBits = 8 // receives that are added at a time: 256
	sharedSlabs    = 256
	sharedMax      = sharedSlabs << sharedSlabBits
)

// shared is a context's receives.
type shared struct {
	ctx   *opened
	srq   *ibv.SRQ
	depth int          // the most that can be posted
	spare atomic.Int32 // posted, and nobody may send into them
	slabs [sharedSlabs]atomic.Pointer[slab]

	// Guarded by the context's mutex.
	total int // receives that there are, the lost ones among them
	peers int
	chain *ibv.RecvChain

	orphans *ibv.RecvChain // of queue pairs that are gone; guarded by the completion queue's lock
}

func newShared(c *opened, depth int) (*shared, error) {
	s := &shared{ctx: c, depth: depth}
	var err error
	if s.srq, err = c.pd.CreateSRQ(depth, 1); err != nil {
		return nil, err
	}
	if s.chain, err = ibv.NewRecvChain(1<<sharedSlabBits, 1); err == nil {
		s.orphans, err = ibv.NewRecvChain(1, 1)
	}
	if err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// adopt posts a receive that a queue pair has used that is gone. The caller
// holds the completion queue's lock.
func (s *shared) adopt(id uint32) {
	s.put(s.orphans, id)
	if _, err := s.srq.PostRecv(s.orphans); err != nil {
		s.orphans.Reset()
	}
}

func (s *shared) close() error {
	err := s.srq.Close()
	for k := range s.slabs {
		s.slabs[k].Load().close()
	}
	return err
}

// buffer is where receive id lies. Ids come back from the device only.
func (s *shared) buffer(id uint32) ([]byte, uint32) {
	m := s.slabs[id>>sharedSlabBits].Load()
	return m.recv(id & (1<<sharedSlabBits - 1)), m.lkey
}

// join reserves what a connection has for sure. The caller holds the context's
// mutex.
func (s *shared) join() error {
	lendable := int32(8 * s.ctx.opts.window)
	for s.spare.Load() < lendable+sharedPeer && s.total < s.depth {
		n := min(1<<sharedSlabBits, s.depth-s.total)
		if err := s.grow(n); err != nil {
			return err
		}
		s.spare.Add(int32(n))
	}
	if !s.take(sharedPeer, 0) {
		return fmt.Errorf("%w: %d peers fill the shared receive queue of %d receives: use a larger option srq", driver.ErrBusy, s.peers, s.depth)
	}
	s.peers++
	return s.srq.SetLimit(s.peers)
}

// leave gives that back, and what the connection was lent. It has put all it held.
func (s *shared) leave(lent int) {
	s.peers--
	s.spare.Add(int32(sharedPeer + lent))
}

// grow posts n more receives. The caller holds the context's mutex.
func (s *shared) grow(n int) error {
	slot := 0
	for slot < sharedSlabs && s.slabs[slot].Load() != nil {
		slot++
	}
	if slot == sharedSlabs {
		return fmt.Errorf("a shared receive queue grows %d times at most", sharedSlabs)
	}
	m, err := newSlab(s.ctx.pd, s.ctx.opts.buffer, n, 0, 0, ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	s.slabs[slot].Store(m)
	for k := range n {
		s.put(s.chain, uint32(slot<<sharedSlabBits|k))
	}
	if _, err := s.srq.PostRecv(s.chain); err != nil {
		s.chain.Reset()
		return err
	}
	s.total += n
	return nil
}

// replace posts receives for those that were lost, which nobody can count.
func (s *shared) replace() {
	s.ctx.Mu.Lock()
	defer s.ctx.Mu.Unlock()
	if n := min(1<<sharedSlabBits, s.depth-s.total); s.ctx.IsClosed() || n == 0 || s.grow(n) != nil {
		return
	}
	_ = s.srq.SetLimit(s.peers)
}

// put makes a receive one that is posted with the chain.
func (s *shared) put(chain *ibv.RecvChain, id uint32) {
	b, lkey := s.buffer(id)
	wr := chain.Next()
	wr.ID = requestID(eventRecv, id)
	wr.AddSGE(address(b), uint32(len(b)), lkey)
}

// take takes n of what is spare, if more than keep are left.
func (s *shared) take(n, keep int32) bool {
	for {
		have := s.spare.Load()
		if have-n < keep {
			return false
		}
		if s.spare.CompareAndSwap(have, have-n) {
			return true
		}
	}
}

// more is how many messages more a peer may send, now that one of its messages
// was received and it may send out of them.
func (s *shared) more(out, window int) (n uint32) {
	if out < sharedBase {
		n, out = 1, out+1
	}
	// One more than it used, so that a window doubles in the time it takes to use it.
	for range 2 {
		if out >= min(window, sharedBase+int(s.spare.Load())/sharedShare) || !s.take(1, 0) {
			break
		}
		n++
		out++
	}
	return n
}
