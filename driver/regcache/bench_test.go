package regcache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
)

// stride keeps regions of one page apart, so that they do not merge.
const stride = 2 * 4096

// filled is a cache with n regions of a page each, and their memory.
func filled(tb testing.TB, n int) (*Cache[int], [][]byte) {
	tb.Helper()
	return filledTo(tb, n, n)
}

// filledTo is the same with room for limit regions alone.
func filledTo(tb testing.TB, n, limit int) (*Cache[int], [][]byte) {
	tb.Helper()
	if os.Getpagesize() != 4096 {
		tb.Skip("made for pages of 4096 bytes")
	}
	mem := newArena(tb, n*stride).Bytes()
	c := newCache(tb, newDevice(), Config{MaxRegions: limit, MaxBytes: 1 << 40})
	all := make([][]byte, n)
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		all[i] = mem[at*stride:][:4096]
		mustAcquire(tb, c, all[i], 1).Release()
	}
	return c, all
}

var regionCounts = []int{1, 10, 100, 1_000, 10_000, 100_000}

// One op is Acquire and Release of the same memory again and again.
func BenchmarkHitRepeated(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, all := filled(b, n)
			mem := all[n/2]
			b.ReportAllocs()
			for b.Loop() {
				r, err := c.Acquire(mem, 1)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}

// One op is Acquire and Release of memory chosen uniformly at random, in an
// order that the processor cannot have learnt.
func BenchmarkHitRandom(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, all := filled(b, n)
			order := randomOrder(all, 1)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				r, err := c.Acquire(order[i&(len(order)-1)], 1)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
				i++
			}
		})
	}
}

// One op is Acquire and Release of a random page of a single region of so many
// pages.
func BenchmarkHitInside(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("pages=%d", n), func(b *testing.B) {
			mem := newArena(b, n*page).Bytes()
			c := newCache(b, newDevice(), Config{MaxBytes: 1 << 40})
			mustAcquire(b, c, mem, 1).Release()
			all := make([][]byte, n)
			for i := range all {
				all[i] = mem[i*page:][:page]
			}
			order := randomOrder(all, 1)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				r, err := c.Acquire(order[i&(len(order)-1)], 1)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
				i++
			}
		})
	}
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
		r, err := c.Acquire(mem, 1)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}

// The same by as many goroutines as there are processors.
func BenchmarkHitParallel(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, all := filled(b, n)
			orders := make(chan [][]byte, runtime.GOMAXPROCS(0))
			for i := range cap(orders) {
				orders <- randomOrder(all, uint64(i))
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				order := <-orders
				for i := 0; pb.Next(); i++ {
					r, err := c.Acquire(order[i&(len(order)-1)], 1)
					if err != nil {
						b.Error(err)
						return
					}
					r.Release()
				}
			})
		})
	}
}

// A random hit that the memo cannot help with.
func BenchmarkHitIndex(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, all := filled(b, n)
			order := randomOrder(all, 1)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				lo, hi := span(order[i&(len(order)-1)])
				r := c.find(lo, hi, 1)
				if r == nil || !r.hit(lo, hi, 1) {
					b.Fatal("not found")
				}
				c.touch(r)
				r.Release()
				i++
			}
		})
	}
}

// One op is the registration of a page and the eviction of another, with a
// registrar that does nothing.
func BenchmarkMiss(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, all := filledTo(b, 2*n, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r, err := c.Acquire(all[i%len(all)], 1)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}

func BenchmarkCounters(b *testing.B) {
	for _, n := range regionCounts {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			c, _ := filled(b, n)
			for b.Loop() {
				c.Counters()
			}
		})
	}
}

func randomOrder(all [][]byte, seed uint64) [][]byte {
	order := make([][]byte, 1<<20)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range order {
		order[i] = all[rng.IntN(len(all))]
	}
	return order
}
