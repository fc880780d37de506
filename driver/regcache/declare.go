package regcache

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// zone is memory of which registrations can be cached: an arena, or what a
// Declaration still covers. Zones do not overlap. A region lies in one zone.
type zone struct {
	kind   kind
	lo, hi uintptr
	mem    []byte
	arena  *driver.Arena // of arenaMemory
	by     *Declaration  // of the others
}

type kind uint8

const (
	arenaMemory   kind = iota // its Close invalidates
	goHeap                    // pinned, so that it cannot go while it is registered
	watchedMemory             // the watcher invalidates
)

// Declaration declares memory whose registrations can be cached. It holds for all caches of the process until Close.
type Declaration struct {
	kind kind
	once atomic.Bool
}

// declared is what programs declared, and the caches that have to be notified when
// that ends.
var declared struct {
	sync.Mutex
	zones  atomic.Pointer[[]zone] // by address; never changed in place
	caches map[forgetter]struct{}
}

// forgetter is a cache of any handle type.
type forgetter interface {
	// invalidateRange retires what overlaps [lo, hi) at once, and returns what
	// remains to be done: deregistration.
	invalidateRange(lo, hi uintptr) (rest func())
}

func (c *Cache[H]) invalidateRange(lo, hi uintptr) func() {
	victims := c.retireRange(lo, hi)
	return func() { c.drop(victims) }
}

// DeclareHeap declares b as memory that Go allocated, so that its registrations can be cached. The memory is pinned,
// and thereby kept, while it is registered; the budget of the cache bounds that. The declaration itself keeps b too.
// Use it for buffers that live long, and Close the declaration when b is no longer sent from or received into.
//
// b must really be Go's: of other memory, which can be unmapped while it is pinned, a cache would keep registrations
// that lead to pages which are gone. It fails with driver.ErrInvalid if b is empty or overlaps declared memory.
func DeclareHeap(b []byte) (*Declaration, error) {
	d := &Declaration{kind: goHeap}
	lo, hi := span(b)
	if err := declare(zone{kind: goHeap, lo: lo, hi: hi, mem: b, by: d}); err != nil {
		return nil, fmt.Errorf("declare Go heap memory: %w", err)
	}
	return d, nil
}

// Close ends the declaration: regions of its memory are forgotten, and deregistered when they are not in use any more.
// From then on the memory is registered for each transfer. It deregisters, and so may take long. A second call fails
// with driver.ErrClosed.
func (d *Declaration) Close() error {
	if d.once.Swap(true) {
		return driver.ErrClosed
	}
	if d.kind == watchedMemory {
		return watch.end(d)
	}
	finish(withdraw(d.except))
	return nil
}

// except keeps what is not of the declaration.
func (d *Declaration) except(z zone) []zone {
	if z.by == d {
		return nil
	}
	return []zone{z}
}

func declare(z zone) error {
	if z.lo == z.hi {
		return fmt.Errorf("%w: no bytes", driver.ErrInvalid)
	}
	if _, _, ok := driver.ArenaOf(z.mem[:1]); ok {
		return fmt.Errorf("%w: an arena needs no declaration", driver.ErrInvalid)
	}
	declared.Lock()
	defer declared.Unlock()
	list := slices.Clone(zones())
	at, _ := slices.BinarySearchFunc(list, z, func(x, y zone) int { return cmp.Compare(x.lo, y.lo) })
	if at > 0 && list[at-1].hi > z.lo || at < len(list) && list[at].lo < z.hi {
		return fmt.Errorf("%w: %d bytes at %#x overlap memory that is declared already", driver.ErrInvalid, z.hi-z.lo, z.lo)
	}
	list = slices.Insert(list, at, z)
	declared.zones.Store(&list)
	return nil
}

// withdraw replaces each zone by what keep leaves of it, and invalidates the
// rest everywhere. The caller has to call what it returns, when it holds no
// lock.
func withdraw(keep func(zone) []zone) (rest []func()) {
	declared.Lock()
	defer declared.Unlock()
	var list, lost []zone
	for _, z := range zones() {
		left := keep(z)
		list = append(list, left...)
		if len(left) != 1 || left[0].lo != z.lo || left[0].hi != z.hi {
			lost = append(lost, without(z, left)...)
		}
	}
	declared.zones.Store(&list)
	for _, z := range lost {
		rest = append(rest, invalidateAll(z.lo, z.hi)...)
	}
	return rest
}

// without returns the parts of z that are not in left.
func without(z zone, left []zone) (lost []zone) {
	lo := z.lo
	for _, l := range left {
		if lo < l.lo {
			lost = append(lost, z.part(lo, l.lo))
		}
		lo = l.hi
	}
	if lo < z.hi {
		lost = append(lost, z.part(lo, z.hi))
	}
	return lost
}

// part is the zone from lo to hi.
func (z zone) part(lo, hi uintptr) zone {
	z.mem = z.mem[lo-z.lo : hi-z.lo]
	z.lo, z.hi = lo, hi
	return z
}

// invalidateAll does so in all caches. The lock of declared is held.
func invalidateAll(lo, hi uintptr) (rest []func()) {
	for c := range declared.caches {
		rest = append(rest, c.invalidateRange(lo, hi))
	}
	return rest
}

func finish(rest []func()) {
	for _, f := range rest {
		f()
	}
}

func zones() []zone {
	if l := declared.zones.Load(); l != nil {
		return *l
	}
	return nil
}

// Cachable reports whether a registration of b may be kept for the next use: b
// lies in an arena, or in memory that was declared.
func Cachable(b []byte) bool {
	_, ok := zoneOf(b)
	return ok
}

// zoneOf finds the zone that b lies in, as a whole. An arena is not held yet.
func zoneOf(b []byte) (zone, bool) {
	if a, _, ok := driver.ArenaOf(b); ok {
		lo, hi := span(a.Bytes())
		return zone{kind: arenaMemory, lo: lo, hi: hi, mem: a.Bytes(), arena: a}, true
	}
	lo, hi := span(b)
	list := zones()
	i, found := slices.BinarySearchFunc(list, lo, func(z zone, p uintptr) int { return cmp.Compare(z.lo, p) })
	if !found {
		i--
	}
	if i < 0 || hi > list[i].hi {
		return zone{}, false
	}
	return list[i], true
}

func join(c forgetter) {
	declared.Lock()
	defer declared.Unlock()
	if declared.caches == nil {
		declared.caches = make(map[forgetter]struct{})
	}
	declared.caches[c] = struct{}{}
}

func leave(c forgetter) {
	declared.Lock()
	defer declared.Unlock()
	delete(declared.caches, c)
}
