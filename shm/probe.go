//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
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
}

// perProbe is the number of instances that a probe looks at besides the active one.
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

func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	b := &c.prober
	if !b.held.CompareAndSwap(0, 1) {
		return nil, driver.ErrAgain
	}
	return c.nextNamed(b.look(perProbe))
}

func (c smallContext) RecvLookAny() (driver.Instance, error) {
	c.prober.lock()
	return c.nextNamed(c.prober.look(len(c.prober.list)))
}

func (c smallContext) nextNamed(s *small) (driver.Instance, error) {
	c.prober.unlock()
	if s != nil {
		return s, nil
	}
	return nil, c.Nothing()
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

// nameable reports whether a receive would succeed, or fail at once, and no prober
// was notified. The prober is locked; the owner may be receiving meanwhile.
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
	if st := s.State(); st != kit.StateUp && st != kit.StateConnecting && !s.endNamed {
		// Look again: it may have come before the end. A peer that has died in the middle of a message leaves a part.
		if s.whole(head) {
			return false
		}
		s.endNamed = true
		return true
	}
	return false
}

// whole reports whether all of the message at pos is there: of a message in steps, the last step.
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
