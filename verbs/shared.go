//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// With many peers, receive buffers for each connection would cost hundreds of kilobytes a peer, and most of them would
// be idle. In shared mode (option srq) the messages of all peers go into receives of one queue. A few receives are
// reserved for each peer; the rest is lent to peers that send.
//
// # Credits in shared mode
//
// A receive must be posted for every message that a peer may send, as in small. So the sum of the messages that peers
// may send never exceeds the posted receives. Each connection counts the messages that it has allowed and not yet
// received. The first sharedBase of them, and control messages, use its own receives. Beyond that it takes receives
// from spare, and gives them back after the buffer is posted again. A connection may take an eighth of spare (a dynamic
// threshold): many senders share it, a single sender gets its whole window, and senders that fall silent with unused
// credits leave seven eighths to the others.
//
// Soft-RoCE loses a receive with the queue pair of a peer that dies in the middle of a message, and does not report that;
// other devices report when the receives of a queue pair are back (see awaitLast). Control receives are never all in use,
// so a queue with less than one receive for each connection has lost some: the device's limit event reports it, and the
// queue gets new ones.
const (
	sharedBase    = 8
	sharedControl = 8 // a shrinking limit takes at most log2(512/8) messages, a close message one
	sharedPeer    = sharedBase + sharedControl
	sharedSends   = 32 // depth of a send queue: the completion queue bounds their sum
	sharedSlots   = 16 // send buffers of a connection
	sharedShare   = 8

	sharedSlabBits = 8 // receives are added 256 at a time
	sharedSlabs    = 256
	sharedMax      = sharedSlabs << sharedSlabBits
)

// shared holds the receives of a context in shared mode.
type shared struct {
	ctx   *opened
	srq   *ibv.SRQ
	depth int          // the most receives that can be posted
	spare atomic.Int32 // posted receives that no peer may use
	slabs [sharedSlabs]atomic.Pointer[slab]

	last atomic.Int32 // whether the device reports the end of a queue pair's receives; see awaitLast

	// Guarded by the context's mutex.
	total int // receives, including lost ones
	peers int
	chain *ibv.RecvChain

	returned *ibv.RecvChain // receives of closed queue pairs; guarded by the completion queue's lock
}

func newShared(c *opened, depth int) (*shared, error) {
	s := &shared{ctx: c, depth: depth}
	var err error
	if s.srq, err = c.pd.CreateSRQ(depth, 1); err != nil {
		return nil, err
	}
	if s.chain, err = ibv.NewRecvChain(1<<sharedSlabBits, 1); err == nil {
		s.returned, err = ibv.NewRecvChain(1, 1)
	}
	if err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// adopt posts a receive again that a closed queue pair had taken. The caller holds the completion queue's lock.
func (s *shared) adopt(id uint32) {
	s.put(s.returned, id)
	if _, err := s.srq.PostRecv(s.returned); err != nil {
		s.returned.Reset()
	}
}

func (s *shared) close() error {
	err := s.srq.Close()
	for k := range s.slabs {
		s.slabs[k].Load().close()
	}
	return err
}

// buffer returns the memory and key of receive id. Only the device supplies ids.
func (s *shared) buffer(id uint32) ([]byte, uint32) {
	m := s.slabs[id>>sharedSlabBits].Load()
	return m.recv(id & (1<<sharedSlabBits - 1)), m.lkey
}

// join reserves the receives of a connection. The caller holds the context's mutex.
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
	if err := s.srq.SetLimit(s.peers); err != nil {
		s.leave(0)
		return err
	}
	return nil
}

// leave gives the reserved receives of a connection back, and lent more. The connection holds no receive any more.
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

// replace posts receives for lost ones, whose number is unknown.
func (s *shared) replace() {
	s.ctx.Mu.Lock()
	defer s.ctx.Mu.Unlock()
	if n := min(1<<sharedSlabBits, s.depth-s.total); s.ctx.IsClosed() || n == 0 || s.grow(n) != nil {
		return
	}
	_ = s.srq.SetLimit(s.peers)
}

// put adds receive id to the chain.
func (s *shared) put(chain *ibv.RecvChain, id uint32) {
	b, lkey := s.buffer(id)
	wr := chain.Next()
	if wr == nil { // a peer sends what nobody takes
		if _, err := s.srq.PostRecv(chain); err != nil {
			chain.Reset()
		}
		wr = chain.Next()
	}
	wr.ID = requestID(eventRecv, id)
	wr.AddSGE(address(b), uint32(len(b)), lkey)
}

// take takes n receives of spare if at least keep are left.
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

// more returns by how many messages a peer's limit grows after one of its messages was received. The peer may send out
// messages already.
func (s *shared) more(out, window int) (n uint32) {
	if out < sharedBase {
		n, out = 1, out+1
	}
	// It grows by one more than was used, so that the window doubles each time the peer uses it up.
	for range 2 {
		if out >= min(window, sharedBase+int(s.spare.Load())/sharedShare) || !s.take(1, 0) {
			break
		}
		n++
		out++
	}
	return n
}
