//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
)

// filled is a cache that got n regions of a page each, in random order, and
// keeps limit of them.
func filled(tb testing.TB, n, limit int) (*Cache[int], memoryOf) {
	tb.Helper()
	if os.Getpagesize() != 4096 {
		tb.Skip("made for pages of 4096 bytes")
	}
	mem := memoryOf{b: newArena(tb, n*stride).Bytes()}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		mem.at = append(mem.at, uint32(i*stride/4096+rng.IntN(3)))
	}
	c := newCache(tb, newDevice(), Config{MaxRegions: limit, MaxBytes: 1 << 40})
	for range 2 { // the second time, so that the memo is warm
		for _, i := range rng.Perm(n) {
			mustAcquire(tb, c, mem.region(i), 1).Release()
		}
	}
	return c, mem
}

// memoryOf is memory for regions of a page each, irregularly apart so that they
// do not merge and the memo is not flattered.
type memoryOf struct {
	b  []byte
	at []uint32 // page of each
}

const stride = 4 * 4096 // on average

func (m memoryOf) region(i int) []byte { return m.b[int(m.at[i])*4096:][:4096:4096] }

// dice is a generator that costs a ns and touches no memory, so that what is
// measured is the cache.
type dice uint64

func (d *dice) below(n int) int {
	x := *d
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*d = x
	return int(uint64(uint32(x)) * uint64(n) >> 32)
}

var regionCounts = []int{1, 10, 100, 1_000, 10_000, 100_000}

func overRegions(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			f(b, n)
		})
	}
}

func acquireRelease(b *testing.B, c *Cache[int], mem []byte) {
	r, err := c.Acquire(mem, 1)
	if err != nil {
		b.Fatal(err)
	}
	r.Release()
}

// One op is Acquire and Release of the same memory again and again.
func BenchmarkHitRepeated(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, mem := filled(b, n, n)
		for b.Loop() {
			acquireRelease(b, c, mem.region(n/2))
		}
	})
}

// One op is Acquire and Release of memory chosen uniformly at random.
func BenchmarkHitRandom(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, mem := filled(b, n, n)
		d := dice(1)
		for b.Loop() {
			acquireRelease(b, c, mem.region(d.below(n)))
		}
	})
}

// The same by as many goroutines as there are processors.
func BenchmarkHitParallel(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, mem := filled(b, n, n)
		var seed atomic.Uint64
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			d := dice(seed.Add(1))
			for pb.Next() {
				acquireRelease(b, c, mem.region(d.below(n)))
			}
		})
	})
}

// A random hit that the memo cannot help with.
func BenchmarkHitIndex(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, mem := filled(b, n, n)
		d := dice(1)
		for b.Loop() {
			lo, hi := span(mem.region(d.below(n)))
			r := c.find(lo, hi, 1)
			if r == nil || !r.hit(lo, hi, 1) {
				b.Fatal("not found")
			}
			c.touch(r)
			r.Release()
		}
	})
}

// One op is Acquire and Release of a random page of a single region of so many
// pages.
func BenchmarkHitInside(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		mem := newArena(b, n*4096).Bytes()
		c := newCache(b, newDevice(), Config{MaxBytes: 1 << 40})
		mustAcquire(b, c, mem, 1).Release()
		d := dice(1)
		for b.Loop() {
			acquireRelease(b, c, mem[d.below(n)*4096:][:4096])
		}
	})
}

// One op is a repeated hit on watched memory.
func BenchmarkHitWatched(b *testing.B) {
	mem := fenced(b, page)
	d, err := Watch(mem)
	if err != nil {
		b.Skip(err)
	}
	defer d.Close()
	c := newCache(b, newDevice(), Config{})
	b.ReportAllocs()
	for b.Loop() {
		acquireRelease(b, c, mem)
	}
}

// The limit of processor and memory, for comparison: one op is a load from a table with two slots for each region, and
// the atomic operations of a hit and a release in the cache line that it points to.
func BenchmarkHitLimit(b *testing.B) {
	type line struct {
		count, stamp atomic.Uint64
		_            [48]byte
	}
	overRegions(b, func(b *testing.B, n int) {
		table := make([]*line, len(newMemo[int](n).slots))
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(table))[:n] {
			table[i] = new(line)
		}
		used := make([]uint32, 0, n)
		for i, l := range table {
			if l != nil {
				used = append(used, uint32(i))
			}
		}
		for i, l := range table {
			if l == nil {
				table[i] = table[used[i%n]]
			}
		}
		var clock atomic.Uint64
		d := dice(1)
		for b.Loop() {
			l := table[d.below(len(table))]
			s := l.count.Load()
			l.count.CompareAndSwap(s, s+1)
			l.stamp.Store(clock.Add(1))
			l.count.Add(^uint64(0))
		}
	})
}

// One op is the registration of a page and the eviction of another, with a
// registrar that does nothing but keep books.
func BenchmarkMiss(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, mem := filled(b, 2*n, n)
		for i := 0; b.Loop(); i++ {
			acquireRelease(b, c, mem.region(i%(2*n)))
		}
		if got := c.Counters(); got.Hits > uint64(b.N)/10+uint64(n) {
			b.Fatalf("%d hits", got.Hits)
		}
	})
}

func BenchmarkCounters(b *testing.B) {
	overRegions(b, func(b *testing.B, n int) {
		c, _ := filled(b, n, n)
		for b.Loop() {
			c.Counters()
		}
	})
}
