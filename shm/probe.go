package shm

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// prober finds instances with something to receive, among all of a context. Its
// cost stays flat as idle peers grow: each call looks at a few instances in
// turn and at the one that was active last.
type prober struct {
	held atomic.Uint32 // try-lock: one goroutine probes, the others find nothing

	// Guarded by held.
	list   []*small
	turn   int
	active *small
	gone   bool

	cancels atomic.Uint32
	users   atomic.Int32 // goroutines inside wait, which touch the bell
}

// perProbe is how many instances a probe looks at besides the active one.
const perProbe = 2

func (b *prober) lock() {
	for !b.held.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
}

func (b *prober) unlock() { b.held.Store(0) }

func (b *prober) add(s *small) {
	b.lock()
	b.list = append(b.list, s)
	b.unlock()
}

// remove also makes sure that no probe looks at the instance any more.
func (b *prober) remove(s *small) {
	b.lock()
	b.list = slices.DeleteFunc(b.list, func(x *small) bool { return x == s })
	if b.active == s {
		b.active = nil
	}
	b.unlock()
}

// probe implements driver.Prober.
func (b *prober) probe(c *Context) (driver.Instance, error) {
	if !b.held.CompareAndSwap(0, 1) {
		return nil, driver.ErrAgain
	}
	s := b.look(perProbe)
	gone := b.gone
	b.unlock()
	switch {
	case s != nil:
		return s, nil
	case gone:
		return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
	}
	return nil, driver.ErrAgain
}

// look looks at so many instances in turn, and at the active one.
func (b *prober) look(n int) *small {
	for range min(n, len(b.list)) {
		if b.turn >= len(b.list) {
			b.turn = 0
		}
		s := b.list[b.turn]
		b.turn++
		if s.nameable() {
			b.active = s
			return s
		}
	}
	if b.active != nil && b.active.nameable() {
		return b.active
	}
	return nil
}

// nameable reports whether a receive would succeed, or fail at once, and nobody
// has been told. The prober is locked; the owner may be receiving meanwhile.
func (s *small) nameable() bool {
	if load32(&s.named) != 0 {
		return false
	}
	head := load64(&s.recv.head)
	if s.whole(head) {
		if load64(&s.recv.head) != head {
			return false // its owner has just received it
		}
		store32(&s.named, 1)
		return true
	}
	if st := s.state.Load(); st != stateUp && st != stateConnecting && !s.deathSaid {
		// Look again: it may have come before the end. A peer that has died in the middle of a message leaves a part.
		if s.whole(head) {
			return false
		}
		s.deathSaid = true
		return true
	}
	return false
}

// whole reports whether all of the message at pos is there. One in steps is when its last one is.
func (s *small) whole(pos uint64) bool {
	h := s.header(pos)
	if (h^lap(pos))>>lapShift != 0 {
		return false
	}
	if uint8(h>>kindShift) == kindSteps && h&lenMask <= maxSmall {
		return s.flagged(pos + slotsOf(int(h&lenMask)) - 1)
	}
	return true
}

func (s *small) header(pos uint64) uint64 {
	return load64((*uint64)(unsafe.Add(s.recv.slots, (pos&(ringSlots-1))*slotBytes)))
}

// flagged reports whether the slot at pos has been written in this lap.
func (s *small) flagged(pos uint64) bool { return (s.header(pos)^lap(pos))>>lapShift == 0 }

// wait implements driver.Prober.
func (b *prober) wait(ctx context.Context, c *Context) (driver.Instance, error) {
	b.users.Add(1)
	defer b.users.Add(-1)
	cancels := b.cancels.Load()
	for range spins {
		if s, err := b.probe(c); s != nil || err != driver.ErrAgain {
			return s, err
		}
	}
	stop := context.AfterFunc(ctx, func() { b.rouse(c) })
	defer stop()
	for {
		b.lock()
		gone := b.gone
		b.unlock()
		if gone {
			return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
		}
		seq := &c.bell.seq
		val := atomic.LoadUint32(seq)
		raise(&c.bell.raised, c.barrier)
		b.lock()
		s := b.look(len(b.list))
		b.unlock()
		switch {
		case s != nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case b.cancels.Load() != cancels:
			return nil, driver.ErrCanceled
		}
		c.waits.Add(1)
		sleep(seq, val, longestSleep)
	}
}

// rouse wakes this context's waits, if it still has a bell.
func (b *prober) rouse(c *Context) {
	b.users.Add(1)
	defer b.users.Add(-1)
	b.lock()
	gone := b.gone
	b.unlock()
	if !gone {
		wake(&c.bell.seq)
	}
}

// cancel implements driver.Prober.
func (b *prober) cancel(c *Context) error {
	b.lock()
	gone := b.gone
	b.unlock()
	if gone {
		return &driver.Error{Driver: Name, Op: "cancel", Err: driver.ErrClosed}
	}
	b.cancels.Add(1)
	b.rouse(c)
	return nil
}

// stop ends probing: waits return, and nobody looks at instances any more.
func (b *prober) stop(c *Context) {
	b.lock()
	b.gone = true
	b.unlock()
	if c.bell != nil {
		wake(&c.bell.seq)
	}
}

// close waits until nobody is inside any more, and unmaps the bell.
func (b *prober) close(c *Context) {
	b.stop(c)
	if c.bell == nil {
		return
	}
	for b.users.Load() != 0 {
		wake(&c.bell.seq)
		runtime.Gosched()
	}
	_ = unix.MunmapPtr(unsafe.Pointer(c.bell), bellBytes)
	c.bell = nil
}
