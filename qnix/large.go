//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

const (
	// transferDepth is how many packets can be posted in each direction on the large track.
	transferDepth = kit.LargeDepth
	// maxMessage is the length of the longest message, in bytes.
	maxMessage = nic.MaxMessage
	// tagsEach is how many tags the receives of one slot use in turn.
	tagsEach = 8
	// maxPieces is the most pieces of memory of a packet for the NIC; their descriptors fill a Context Region.
	maxPieces   = 16
	largeRegion = 16 * maxPieces
)

// tagsOf returns how many tags a call with that many receives has: tagsEach for each receive of the large track; on the
// small track one for each receive, and one for credits.
func tagsOf(t driver.Track, receives int) int {
	if t == driver.Large {
		return receives * tagsEach
	}
	return receives + 1
}

// transferTag is the tag of a receive.
func transferTag(first uint16, slot int, gen uint32) uint16 {
	return first + uint16(slot*tagsEach) + uint16(gen%tagsEach)
}

// large is an instance on the large track. A receive is posted with translated memory and a tag of its own, which the
// rdv data contains; the sender sends to that tag from translated memory. revoke.go describes how receives are
// cancelled.
type large struct {
	conn
	kit.Large
	kit.Prefetcher
	in     [transferDepth]recvSlot
	out    [transferDepth]sendSlot
	next   int // slot of in to try first
	ahead  regcache.Ahead[nic.Handle]
	bounce *bounce
	staged bool // the latest packet was copied

	delivered atomic.Uint64 // messages that were sent; only the drainer writes it

	revocation
}

// recvSlot is a posted receive.
type recvSlot struct {
	gen      uint32
	length   int
	memory   memory
	doorbell doorbell
	asked    bool        // its cancel was posted
	released atomic.Bool // this side has closed, and the NIC does not access the memory
	rdv      [rdvBytes]byte
}

// sendSlot is a posted send.
type sendSlot struct {
	busy     bool // a send is posted; guarded by revocation.mu
	length   int
	rdv      rdvData
	memory   memory
	doorbell doorbell
	asked    bool // its cancel was posted

	released atomic.Bool // this side has closed, and the NIC does not access the memory

	revoke bool // the peer asks for the outcome; guarded by revocation.mu
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
	_ driver.Prefetcher = (*large)(nil)
	_ kit.ClosingHooks  = (*large)(nil)
)

func newLarge(c *process) *large {
	l := &large{}
	l.Prefetcher.Init(&l.Conn, l)
	l.Large.Init(&l.Conn, l, c.Props.Capabilities.MaxMessage)
	l.ahead.Init(2*transferDepth, maxPieces)
	return l
}

func (l *large) prepare() {}

// doorbell stores the state of a doorbell when it was drained. The reader may post the context again.
type doorbell struct{ word atomic.Uint64 }

func (b *doorbell) reset() { b.word.Store(uint64(nic.Pending) << 32) }

func (b *doorbell) ring(s nic.State, n int) { b.word.Store(uint64(s)<<32 | uint64(uint32(n))) }

func (b *doorbell) read() (nic.State, int) {
	w := b.word.Load()
	return nic.State(w >> 32), int(uint32(w))
}

func (l *large) received(slot int, state nic.State, n int) {
	switch state {
	case nic.Done, nic.Truncated:
		l.came.Add(1)
	case nic.Canceled:
	default:
		if state == nic.Fault {
			l.came.Add(1) // the sender counts it as sent
		}
		l.doorbellFailed(state)
	}
	if slot == transferDepth {
		l.drained.ring(state, n)
	} else {
		l.in[slot].doorbell.ring(state, n)
	}
	l.rung()
}

func (l *large) sent(slot int, state nic.State, n int) {
	switch state {
	case nic.Done:
		l.delivered.Add(1)
	case nic.Canceled:
	default:
		l.doorbellFailed(state)
	}
	l.out[slot].doorbell.ring(state, n)
	l.rung()
}

// settle drains the Doorbell Ring.
func (l *large) settle() { l.ctx.Drain() }

func (l *large) Pending() bool {
	l.settle()
	return l.Sends.Len() > 0
}

func (l *large) counts() (uint64, uint32) { return l.delivered.Load(), 0 }

// quiesce implements track. It cancels sends.
func (l *large) quiesce() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	quiet := true
	for k := range l.out {
		s := &l.out[k]
		if !s.busy {
			continue
		}
		if state, _ := s.doorbell.read(); state == nic.Pending {
			quiet = false
			l.cancelSend(k)
		}
	}
	return quiet
}

// ended implements track. A connection to a peer that is gone may have sends left: the link may have come back before
// they were posted.
func (l *large) ended() bool { return l.quiesce() }

// cancelSend asks the NIC to cancel a send, once. The caller holds revocation.mu, or is the owner.
func (l *large) cancelSend(k int) {
	if s := &l.out[k]; !s.asked && l.ctx.post(l.ctx.proc.CancelSend(l.sends.at+k)) {
		s.asked = true
		l.ctx.kick()
	}
}

// cancelReceive asks the NIC to cancel a receive, once.
func (l *large) cancelReceive(k int) {
	if s := &l.in[k]; !s.asked && l.ctx.post(l.ctx.proc.CancelReceive(l.receives.at+k)) {
		s.asked = true
		l.ctx.kick()
	}
}

// waits implements track. Here the NIC waits for the peer, and not this side.
func (l *large) waits() bool { return false }

func (l *large) backgroundWork() {
	if l.closed {
		l.closeReceives()
	}
	l.sendRevocations()
}

// closeReceives cancels posted receives after this side has closed.
func (l *large) closeReceives() {
	for k := range l.in {
		s := &l.in[k]
		if l.Receives.At(k) == nil || s.released.Load() {
			continue
		}
		switch state, _ := s.doorbell.read(); state {
		case nic.Pending:
			l.cancelReceive(k)
			continue
		case nic.Canceled:
			l.rest(k, s.gen)
		}
		l.release(&s.memory)
		s.released.Store(true)
		l.Wake()
	}
}

func (l *large) settled() {
	for k := range l.in {
		l.release(&l.in[k].memory)
		l.in[k].released.Store(true)
	}
	for k := range l.out {
		l.release(&l.out[k].memory)
		l.out[k].released.Store(true)
	}
	l.bounce.close(l)
	l.Wake() // wakes waiters for packets that were posted when this side closed
}

func (l *large) Path() string {
	if l.staged {
		return "staged"
	}
	return "translated"
}
