package regcache

import (
	"math/bits"
	"sync/atomic"
)

// memo remembers, by the page a request starts in, which region served it last: what a TLB is to a page table. Any
// goroutine may overwrite a slot, so a reader asks the region itself for confirmation.
type memo[H any] struct {
	shift uint
	slots []atomic.Pointer[Region[H]]
}

const (
	minMemo = 1 << 6
	maxMemo = 1 << 18 // 2 MiB
)

// newMemo makes a memo with two slots or more for each of n regions.
func newMemo[H any](n int) *memo[H] {
	width := max(bits.Len(uint(2*n-1)), bits.Len(minMemo-1))
	width = min(width, bits.Len(maxMemo-1))
	return &memo[H]{shift: uint(64 - width), slots: make([]atomic.Pointer[Region[H]], 1<<width)}
}

// slot is where a request that starts at lo is remembered. The access is part
// of the key so that a buffer used in two ways has two slots.
func (m *memo[H]) slot(lo uintptr, access Access) *atomic.Pointer[Region[H]] {
	key := uint64(lo)>>12 ^ uint64(access)<<48
	return &m.slots[key*0x9e3779b97f4a7c15>>m.shift]
}

// forget drops a region from where it most likely is, so that it can be freed.
func (m *memo[H]) forget(r *Region[H]) {
	m.slot(r.lo, r.access).CompareAndSwap(r, nil)
}
