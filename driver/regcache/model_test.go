//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/bywash/bywash/driver"
)

// model is what the cache promises, in the plainest way: a list. It is about
// memory by addresses.
type model struct {
	maxBytes   int64
	maxRegions int
	zones      []zone
	regions    []*modelRegion // registered, cached or not
	clock      int
	failing    int // Register calls that will fail for want of memory
	counters   Counters
}

type modelRegion struct {
	lo, hi  uintptr
	access  Access
	refs    int
	cached  bool // may be returned
	lastUse int
	real    *Region[int]
}

func (m *model) over() bool {
	var bytes int64
	for _, r := range m.regions {
		bytes += int64(r.hi - r.lo)
	}
	return bytes > m.maxBytes || len(m.regions) > m.maxRegions
}

func (m *model) remove(r *modelRegion) {
	m.regions = slices.DeleteFunc(m.regions, func(x *modelRegion) bool { return x == r })
}

// evict removes the least recently used region that is not in use.
func (m *model) evict() *modelRegion {
	var oldest *modelRegion
	for _, r := range m.regions {
		if r.cached && r.refs == 0 && (oldest == nil || r.lastUse < oldest.lastUse) {
			oldest = r
		}
	}
	if oldest != nil {
		m.counters.Evicted++
		m.remove(oldest)
	}
	return oldest
}

func (m *model) makeRoom() {
	for m.over() && m.evict() != nil {
	}
}

// retire makes r unavailable: gone at once, or when it is released.
func (m *model) retire(r *modelRegion) {
	r.cached = false
	if r.refs == 0 {
		m.remove(r)
	}
}

// register adds a region after the registrar's failures; nil if it fails.
func (m *model) register(lo, hi uintptr, access Access, cached bool) *modelRegion {
	r := &modelRegion{lo: lo, hi: hi, access: access, refs: 1}
	m.regions = append(m.regions, r)
	m.makeRoom()
	if m.failing > 0 {
		m.failing--
		freed := uintptr(0)
		for freed < hi-lo {
			gone := m.evict()
			if gone == nil {
				break
			}
			freed += gone.hi - gone.lo
		}
		if freed == 0 {
			m.remove(r)
			return nil
		}
		m.counters.Retries++
		if m.failing > 0 {
			m.failing--
			m.remove(r)
			return nil
		}
	}
	r.cached = cached
	m.clock++
	r.lastUse = m.clock
	return r
}

func (m *model) zoneOf(lo, hi uintptr) *zone {
	for i := range m.zones {
		if z := &m.zones[i]; z.lo <= lo && hi <= z.hi {
			return z
		}
	}
	return nil
}

// hits returns the regions that may serve a request.
func (m *model) hits(lo, hi uintptr, access Access) (all []*modelRegion) {
	for _, r := range m.regions {
		if r.cached && r.lo <= lo && hi <= r.hi && r.access&access == access {
			all = append(all, r)
		}
	}
	return all
}

// merge returns what a request in z must register at least, and the regions
// that this replaces.
func (m *model) merge(z *zone, lo, hi uintptr, access Access) (uintptr, uintptr, []*modelRegion) {
	if z.kind != goHeap {
		lo, hi = lo&^4095, (hi+4095)&^4095
	}
	var gone []*modelRegion
	for again := true; again; {
		again = false
		for _, r := range m.regions {
			if r.cached && r.access == access && r.lo <= hi && lo <= r.hi && z.lo <= r.lo && r.hi <= z.hi &&
				!slices.Contains(gone, r) {
				gone = append(gone, r)
				lo, hi = min(lo, r.lo), max(hi, r.hi)
				again = true
			}
		}
	}
	return lo, hi, gone
}

// machine runs the cache and the model side by side.
type machine struct {
	model
	c      *Cache[int]
	d      *device
	memory [][]byte // arena, declared heap, as if watched, neither
	held   []*modelRegion
}

func newMachine(t *rapid.T) *machine {
	m := &machine{d: newDevice()}
	m.maxBytes = rapid.Int64Range(1, 64).Draw(t, "maxBytes") * 2048
	m.maxRegions = rapid.IntRange(1, 12).Draw(t, "maxRegions")
	m.c = New(m.d, Config{MaxBytes: m.maxBytes, MaxRegions: m.maxRegions})
	return m
}

// lay out the memory once: the cache looks at addresses alone.
func (m *machine) use(a *driver.Arena, heap, mapped, plain []byte) (undo func(), err error) {
	m.memory = [][]byte{a.Bytes(), heap, mapped, plain}
	lo, hi := span(a.Bytes())
	m.zones = append(m.zones, zone{kind: arenaMemory, lo: lo, hi: hi})
	d, err := DeclareHeap(heap)
	if err != nil {
		return nil, err
	}
	lo, hi = span(heap)
	m.zones = append(m.zones, zone{kind: goHeap, lo: lo, hi: hi})
	// Two that touch: nothing may be merged from one into the other.
	w := &Declaration{}
	for _, part := range [][]byte{mapped[:len(mapped)/2], mapped[len(mapped)/2:]} {
		lo, hi = span(part)
		z := zone{kind: watchedMemory, lo: lo, hi: hi, mem: part, by: w}
		if err := declare(z); err != nil {
			return nil, err
		}
		m.zones = append(m.zones, z)
	}
	return func() {
		d.Close()
		finish(withdraw(w.except))
	}, nil
}

func (m *machine) slice(t *rapid.T) []byte {
	mem := m.memory[rapid.IntRange(0, len(m.memory)-1).Draw(t, "memory")]
	// Near to each other, and often at the bounds of pages.
	at := rapid.IntRange(0, 15).Draw(t, "page")*4096 + rapid.SampledFrom([]int{0, 0, 0, 1, 100, 4095}).Draw(t, "offset")
	n := rapid.SampledFrom([]int{1, 100, 3996, 4095, 4096, 4096, 4097, 8192, 20000}).Draw(t, "length")
	at = min(at, len(mem)-1)
	return mem[at:min(at+n, len(mem))]
}

func (m *machine) acquire(t *rapid.T) {
	b := m.slice(t)
	access := Access(rapid.IntRange(1, 3).Draw(t, "access"))
	lo, hi := span(b)
	if hits := m.hits(lo, hi, access); len(hits) > 0 {
		m.hit(t, b, access, hits)
		return
	}
	m.counters.Misses++
	z := m.zoneOf(lo, hi)
	var want *modelRegion
	var gone []*modelRegion
	m.d.tries = nil
	m.d.fail = m.shortage()
	r, err := m.c.Acquire(b, access)
	m.d.fail = nil
	tried := uintptr(0)
	if z != nil {
		var first, last uintptr
		first, last, gone = m.merge(z, lo, hi, access)
		first, last = m.grown(t, z, m.d.tries[0], first, last, gone)
		for _, g := range gone {
			m.counters.Merged++
			m.retire(g)
		}
		tried = last - first
		want = m.register(first, last, access, true)
	}
	if want == nil && (z == nil || tried > hi-lo) {
		want = m.register(lo, hi, access, false)
	}
	if (err == nil) != (want != nil) {
		t.Fatalf("acquire: %v after %d tries, want a region: %v", err, len(m.d.tries), want != nil)
	}
	if err != nil {
		if !errors.Is(err, unix.ENOMEM) {
			t.Fatalf("acquire: %v, want ENOMEM", err)
		}
		return
	}
	if r.Addr() != want.lo || r.Addr()+uintptr(r.Len()) != want.hi || r.Access() != access {
		t.Fatalf("acquire %#x +%d: got [%#x +%d), want [%#x,%#x)", lo, len(b), r.Addr(), r.Len(), want.lo, want.hi)
	}
	want.real = r
	m.held = append(m.held, want)
}

func (m *machine) hit(t *rapid.T, b []byte, access Access, hits []*modelRegion) {
	calls := m.d.calls
	r, err := m.c.Acquire(b, access)
	if err != nil {
		t.Fatalf("hit: %v", err)
	}
	i := slices.IndexFunc(hits, func(x *modelRegion) bool { return x.real == r })
	if i < 0 || m.d.calls != calls {
		t.Fatalf("%d calls of the registrar and region [%#x +%d), want one of %d cached ones",
			m.d.calls-calls, r.Addr(), r.Len(), len(hits))
	}
	m.counters.Hits++
	m.clock++
	hits[i].lastUse = m.clock
	hits[i].refs++
	m.held = append(m.held, hits[i])
}

// grown checks how far what was tried to be registered exceeds what was needed,
// and returns its bounds.
func (m *machine) grown(t *rapid.T, z *zone, tried span2, lo, hi uintptr, gone []*modelRegion) (uintptr, uintptr) {
	rlo, rhi := tried.lo, tried.hi
	size := hi - lo
	switch {
	case rlo == lo && rhi == hi:
	case z.kind != arenaMemory || len(gone) == 0:
		t.Fatalf("got [%#x,%#x), want [%#x,%#x)", rlo, rhi, lo, hi)
	case rlo > lo || rhi < hi || rlo < z.lo || rhi > z.hi || lo-rlo > size/2 || rhi-hi > size/2 || (rlo|rhi)&4095 != 0:
		t.Fatalf("grown to [%#x,%#x) from [%#x,%#x)", rlo, rhi, lo, hi)
	default:
		for _, x := range m.regions {
			if x.cached && x.access == tried.access && !slices.Contains(gone, x) && x.lo <= rhi && rlo <= x.hi &&
				z.lo <= x.lo && x.hi <= z.hi {
				t.Fatalf("grown to [%#x,%#x), which touches [%#x,%#x) across a gap", rlo, rhi, x.lo, x.hi)
			}
		}
	}
	return rlo, rhi
}

// shortage makes Register fail as often as the model does.
func (m *machine) shortage() func(lo, hi uintptr) error {
	n := m.failing
	return func(uintptr, uintptr) error {
		if n == 0 {
			return nil
		}
		n--
		return fmt.Errorf("injected: %w", unix.ENOMEM)
	}
}

func (m *machine) release(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nothing is held")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "held")
	m.giveBack(i)
}

func (m *machine) giveBack(i int) {
	r := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	r.real.Release()
	if r.refs--; r.refs == 0 {
		if !r.cached {
			m.remove(r)
		}
		m.makeRoom()
	}
}

func (m *machine) invalidate(t *rapid.T) {
	b := m.slice(t)
	lo, hi := span(b)
	m.c.Invalidate(b)
	for _, r := range slices.Clone(m.regions) {
		if r.cached && r.lo < hi && lo < r.hi {
			m.counters.Invalidated++
			m.retire(r)
		}
	}
}

// check compares what is registered, and the counters.
func (m *machine) check(t *rapid.T) {
	got := m.d.ranges(0)
	var want [][2]int
	m.counters.Bytes, m.counters.Regions = 0, len(m.regions)
	for _, r := range m.regions {
		want = append(want, [2]int{int(r.lo), int(r.hi)})
		m.counters.Bytes += int64(r.hi - r.lo)
	}
	slices.SortFunc(want, func(x, y [2]int) int { return slices.Compare(x[:], y[:]) })
	if !slices.Equal(got, want) {
		t.Fatalf("registered: %#x, want %#x", got, want)
	}
	if c := m.c.Counters(); c != m.counters {
		t.Fatalf("counters:\n got %+v\nwant %+v", c, m.counters)
	}
	for _, r := range m.held {
		if r.real.Addr() != r.lo {
			t.Fatalf("a held region changed")
		}
	}
}

// The cache behaves as the model in all it can be asked: hits, merging, budget
// and order of eviction, failures, invalidation, counters.
func TestCacheFollowsModel(t *testing.T) {
	if pageSize != 4096 {
		t.Skip("the model has pages of 4096 bytes")
	}
	arena := newArena(t, 16*4096)
	heap, plain := make([]byte, 40_000), make([]byte, 40_000)
	mapped := mapping(t, 16*4096)
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		undo, err := m.use(arena, heap, mapped, plain)
		if err != nil {
			t.Fatal(err)
		}
		defer undo()
		defer func() { // after a failure, too: pinned memory must not leak
			for _, r := range m.held {
				r.real.Release()
			}
			m.c.Close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"acquire":  m.acquire,
			"acquire2": m.acquire,
			"fail": func(t *rapid.T) {
				m.failing = rapid.IntRange(1, 4).Draw(t, "failures")
				m.acquire(t)
				m.failing = 0
			},
			"release":    m.release,
			"release2":   m.release,
			"invalidate": m.invalidate,
			"":           m.check,
		})
		for len(m.held) > 0 {
			m.giveBack(len(m.held) - 1)
		}
		if err := m.c.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
		if n := m.d.count(); n != 0 {
			t.Fatalf("%d registrations left after Close", n)
		}
	})
}
