//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// The index finds what a sorted list finds, at every size and after every kind
// of change.
func TestIndexFollowsList(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	x := new(index[int])
	var list []*Region[int]
	for step := range 4000 {
		// Disjoint regions of 1 to 3 units; grow to some thousands, then shrink.
		grow := step < 2500
		at := uintptr(rng.IntN(1 << 16))
		lo, hi := at, at+1+uintptr(rng.IntN(3))
		if !grow && rng.IntN(4) == 0 {
			hi = at + uintptr(rng.IntN(1<<12)) + 1
		}
		gone := overlappingInList(list, lo, hi)
		if got := x.overlapping(lo, hi); !slices.Equal(got, gone) {
			t.Fatalf("step %d: overlapping: %d, want %d", step, len(got), len(gone))
		}
		var add *Region[int]
		if grow {
			add = &Region[int]{lo: lo, hi: hi}
			for _, r := range gone {
				add.lo, add.hi = min(add.lo, r.lo), max(add.hi, r.hi)
			}
		}
		if len(gone) == 0 && add == nil {
			continue
		}
		x = x.edit(gone, add)
		list = slices.DeleteFunc(list, func(r *Region[int]) bool { return slices.Contains(gone, r) })
		if add != nil {
			at, _ := slices.BinarySearchFunc(list, add, func(a, b *Region[int]) int { return int(a.lo) - int(b.lo) })
			list = slices.Insert(list, at, add)
		}
		checkIndex(t, x, list, rng)
	}
}

func overlappingInList(list []*Region[int], lo, hi uintptr) (found []*Region[int]) {
	for _, r := range list {
		if r.lo < hi && lo < r.hi {
			found = append(found, r)
		}
	}
	return found
}

func checkIndex(t *testing.T, x *index[int], list []*Region[int], rng *rand.Rand) {
	t.Helper()
	var all []*Region[int]
	for i, l := range x.leaves {
		if len(l.regions) == 0 || len(l.regions) > maxLeaf || l.starts[0] != x.starts[i] {
			t.Fatalf("leaf %d has %d regions", i, len(l.regions))
		}
		all = append(all, l.regions...)
	}
	if !slices.Equal(all, list) {
		t.Fatalf("index has %d regions, want %d", len(all), len(list))
	}
	if n := len(x.leaves); n > 2+4*len(list)/maxLeaf*2 {
		t.Fatalf("%d leaves for %d regions", n, len(list))
	}
	for range 4 {
		p := uintptr(rng.IntN(1 << 16))
		var want *Region[int]
		for _, r := range list {
			if r.lo <= p {
				want = r
			}
		}
		if got := x.find(p); got != want {
			t.Fatalf("find %d: %+v, want %+v", p, got, want)
		}
	}
}

// With many regions, through growth of the memo and eviction, every region is
// found, and none that is gone.
func TestManyRegions(t *testing.T) {
	n := 20_000
	if testing.Short() {
		n = 2_000
	}
	dev := newDevice()
	c := newCache(t, dev, Config{MaxRegions: n / 2, MaxBytes: 1 << 40})
	b := newArena(t, n*2*page).Bytes()
	rng := rand.New(rand.NewPCG(1, 1))
	for _, i := range rng.Perm(n) {
		mem := b[i*2*page:][:page]
		r := mustAcquire(t, c, mem, 1)
		if err := dev.check(r, mem, 1); err != nil {
			t.Fatal(err)
		}
		r.Release()
	}
	hits := 0
	for i := range n {
		if r := c.Lookup(b[i*2*page+100:][:page-100], 1); r != nil {
			if err := dev.check(r, b[i*2*page+100:][:page-100], 1); err != nil {
				t.Fatal(err)
			}
			r.Release()
			hits++
		}
	}
	if hits != n/2 {
		t.Errorf("%d hits, want %d", hits, n/2)
	}
	c.Invalidate(b[:len(b)/2])
	for i := range n {
		if r := c.Lookup(b[i*2*page:][:page], 1); r != nil {
			if i < n/2 {
				t.Fatalf("region %d was invalidated", i)
			}
			r.Release()
		}
	}
	if got := c.Counters(); got.Evicted != uint64(n/2) || got.Regions != dev.count() {
		t.Errorf("counters: %+v, %d registered", got, dev.count())
	}
}

// The memo does not keep what is gone.
func TestMemoForgets(t *testing.T) {
	c := newCache(t, newDevice(), Config{})
	b := newArena(t, page).Bytes()
	mustAcquire(t, c, b, 1).Release()
	mustAcquire(t, c, b, 1).Release()
	c.Invalidate(b)
	for i := range c.memo.Load().slots {
		if r := c.memo.Load().slots[i].Load(); r != nil {
			t.Errorf("slot %d has %p", i, r)
		}
	}
}

// A hit touches one cache line of its region.
func TestRegionIsOneCacheLine(t *testing.T) {
	if n := unsafe.Sizeof(Region[*int]{}); n != 64 {
		t.Errorf("a region has %d bytes, want 64", n)
	}
}
