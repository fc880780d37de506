package regcache

import (
	"runtime"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Region is registered memory; its holder has one reference. It covers the requested memory, and possibly more. It is
// valid until Release.
//
// With a handle of one word it is one cache line.
type Region[H any] struct {
	state     atomic.Uint64 // references, flags and hits: see below
	stamp     atomic.Uint64 // the cache's clock when it was acquired last
	lo, hi    uintptr
	access    Access
	watched   bool  // hits must look at the watcher's epoch
	transient bool  // registered for one use, never in the index
	pos       int32 // in the LRU heap, guarded by the cache's lock; -1: not in it
	cache     *Cache[H]
	handle    H
	memory    *memory
}

// memory is what kind of memory a region covers.
type memory struct {
	arena *driver.Arena
	pin   runtime.Pinner
}

// The state of a region is one word, so that a hit is one compare-and-swap that also counts. The goroutine that makes
// it retired with no references left deregisters; as a retired region gets no new references, that is a single
// goroutine.
const (
	countMask  = 1<<28 - 1       // references
	retired    = uint64(1) << 28 // no hit may return it any more
	parked     = uint64(1) << 29 // not in the LRU heap: in use when it was looked at
	hitShift   = 30              // hits, until they are moved to the cache's total:
	hit        = 1 << hitShift   //
	manyHits   = uint64(1) << 63 // now is the time to
	noNewTaker = retired | manyHits
)

// Handle is what the registrar returned.
func (r *Region[H]) Handle() H { return r.handle }

// Addr returns the address of the first registered byte.
func (r *Region[H]) Addr() uintptr { return r.lo }

// Len is the number of bytes that are registered.
func (r *Region[H]) Len() int { return int(r.hi - r.lo) }

// Access returns the access of the registration: at least the requested one.
func (r *Region[H]) Access() Access { return r.access }

// Arena is the arena the region lies in, or nil. The cache does not hold the arena; a driver that posts memory in it
// does.
func (r *Region[H]) Arena() *driver.Arena { return r.memory.arena }

// Release gives the reference back; the region may not be used afterwards. It
// deregisters, and then may block, if the region is not cached, has been
// invalidated or merged, or the cache is over its budget. It panics if there
// is no reference to give back.
func (r *Region[H]) Release() {
	s := r.state.Add(^uint64(0))
	if s&countMask == countMask {
		panic("regcache: region released more often than acquired")
	}
	if s&countMask == 0 && s&(retired|parked) != 0 {
		r.cache.released(r, s)
	}
}

func (r *Region[H]) covers(lo, hi uintptr, access Access) bool {
	return r.lo <= lo && hi <= r.hi && r.access&access == access
}

// hit takes a reference if the region covers the range and may be given out.
// The order of these looks makes a hit on watched memory safe: see watch.go.
func (r *Region[H]) hit(lo, hi uintptr, access Access) bool {
	if !r.covers(lo, hi, access) || r.watched && (watch.changing() || watch.epoch.Load()&1 != 0) {
		return false
	}
	return r.take()
}

func (r *Region[H]) take() bool {
	for {
		s := r.state.Load()
		if s&noNewTaker != 0 {
			return false
		}
		if r.state.CompareAndSwap(s, s+hit+1) {
			return true
		}
	}
}
