//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"
)

const heapBuffer = 256 << 10

// collect frees what is not reachable and gives its pages back to the kernel.
func collect() {
	runtime.GC()
	debug.FreeOSMemory()
}

// registration is a region and where its memory is, which keeps nothing alive.
type registration struct {
	region *Region[int]
	at     uintptr
	freed  chan struct{} // closed when the garbage collector takes the buffer
	frames []uint64      // of the buffer when it was registered; nil without privilege
}

// registerAndForget acquires a new buffer, and drops all references to it.
//
//go:noinline
func registerAndForget(tb testing.TB, c *Cache[int], declared bool) registration {
	tb.Helper()
	b := make([]byte, heapBuffer)
	freed := make(chan struct{})
	runtime.AddCleanup(&b[0], func(freed chan struct{}) { close(freed) }, freed)
	if declared {
		d, err := DeclareHeap(b)
		if err != nil {
			tb.Fatal(err)
		}
		defer d.Close() // while the region is in use
	}
	r := mustAcquire(tb, c, b, 1)
	lo, hi := span(b)
	return registration{r, lo, freed, frames(lo, hi)}
}

// Go memory stays where it is for as long as a device can write to it, though
// nothing refers to it but the region: writes arrive in it, and in nothing
// else, through garbage collections with all free memory given back. Once it is
// released, it is free.
func TestHeapMemoryIsKeptWhileRegistered(t *testing.T) {
	for _, declared := range []bool{false, true} {
		t.Run(fmt.Sprintf("declared=%v", declared), func(t *testing.T) {
			d := newDMA(t)
			c := New(d, Config{})
			defer closeCache(t, c)
			rounds := 20
			if testing.Short() {
				rounds = 3
			}
			for i := range rounds {
				x := registerAndForget(t, c, declared)
				collect()
				others := canaries(byte(i))
				memory := unsafe.Slice(*(**byte)(unsafe.Pointer(&x.at)), heapBuffer) // it is pinned
				if err := d.check(x.region, memory, byte(i)); err != nil {
					t.Fatalf("%v\n%v", err, inspect(x, canary{memory, x.frames}, pattern(byte(i), heapBuffer)))
				}
				for _, o := range others {
					if slices.ContainsFunc(o.mem, func(v byte) bool { return v != byte(i) }) {
						t.Fatalf("an object that was not registered has changed\n%v", inspect(x, o, filled8(byte(i))))
					}
				}
				if x.isFreed() {
					t.Fatal("memory was freed while it was registered")
				}
				x.region.Release()
				waitFreed(t, x.freed)
			}
		})
	}
}

// canary is an object that no device may write to.
type canary struct {
	mem    []byte
	frames []uint64 // when it was filled
}

// canaries are objects that lie where the buffer was if it was freed.
func canaries(v byte) []canary {
	all := make([]canary, 64)
	for i := range all {
		mem := filled8(v)
		lo, hi := span(mem)
		all[i] = canary{mem, frames(lo, hi)}
	}
	return all
}

// filled8 is a buffer of the same byte throughout.
func filled8(v byte) []byte { return bytes.Repeat([]byte{v}, heapBuffer) }

func waitFreed(t *testing.T, freed chan struct{}) {
	t.Helper()
	for range 200 {
		runtime.GC()
		select {
		case <-freed:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
	t.Fatal("memory is kept after the release")
}

// Without pinning, memory is freed while it is registered, its pages go, and
// what is allocated there next does not see what the device writes: the test
// above would notice.
func TestUnpinnedHeapMemoryWouldBeStale(t *testing.T) {
	d := newDMA(t)
	var held [][]byte // fills what is free elsewhere
	defer func() { runtime.KeepAlive(held) }()
	for range 20 {
		slots := make(map[uintptr]int) // by address
		var all []chan struct{}
		for range 32 {
			slot, at, freed := registerUnpinned(t, d)
			slots[at], all = slot, append(all, freed)
		}
		for _, freed := range all {
			waitFreed(t, freed)
		}
		collect()
		for range 200 {
			b := make([]byte, heapBuffer)
			at, _ := span(b)
			if slot, again := slots[at]; again {
				writeStale(t, d, slot, b)
				return
			}
			held = append(held, b)
		}
		for _, slot := range slots {
			if err := d.Deregister(slot); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("no memory was used again: nothing was shown")
}

func writeStale(t *testing.T, d *dma, slot int, b []byte) {
	t.Helper()
	at, _ := span(b)
	if err := d.write(slot, at, bytes.Repeat([]byte{7}, len(b))); err != nil {
		t.Fatal(err)
	}
	if b[0] == 7 {
		t.Fatal("the device wrote into the new object: its pages were not given back")
	}
}

//go:noinline
func registerUnpinned(t *testing.T, d *dma) (slot int, at uintptr, freed chan struct{}) {
	t.Helper()
	b := make([]byte, heapBuffer)
	freed = make(chan struct{})
	runtime.AddCleanup(&b[0], func(freed chan struct{}) { close(freed) }, freed)
	slot, err := d.Register(b, 1)
	if err != nil {
		t.Fatal(err)
	}
	at, _ = span(b)
	return slot, at, freed
}

// Devices write into Go memory, declared and not, while the collector and the
// scavenger run all the time and the rest of the heap comes and goes.
func TestHeapThroughCollections(t *testing.T) {
	d := newDMA(t)
	c := New(d, Config{MaxBytes: 4 << 20})
	defer closeCache(t, c)
	duration := 2 * time.Second
	if testing.Short() {
		duration = 200 * time.Millisecond
	}
	deadline := time.Now().Add(duration)
	var wg sync.WaitGroup
	wg.Go(func() {
		for time.Now().Before(deadline) {
			collect()
		}
	})
	for g := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			n := 0
			for ; time.Now().Before(deadline) && !t.Failed(); n++ {
				b := make([]byte, page+rng.IntN(heapBuffer))
				var decl *Declaration
				if n%2 == 0 {
					decl, _ = DeclareHeap(b)
				}
				for i := range 8 {
					at := rng.IntN(len(b) / 2)
					if err := d.receive(c, b[at:at+1+rng.IntN(len(b)/2)], byte(n+i)); err != nil {
						t.Error(err)
					}
				}
				if decl != nil {
					decl.Close()
				}
			}
			t.Logf("%d buffers", n)
		})
	}
	wg.Wait()
	if got := c.Counters(); got.Hits == 0 || got.Misses == 0 {
		t.Errorf("%+v", got)
	}
}

func TestCachableIsWhatIsDeclared(t *testing.T) {
	heap, other := make([]byte, 1<<16), make([]byte, 1<<16)
	d, err := DeclareHeap(heap)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		b    []byte
		want bool
	}{
		{"an arena", newArena(t, 1<<16).Bytes()[100:200], true},
		{"declared heap", heap[1:], true},
		{"other heap", other, false},
	} {
		if got := Cachable(x.b); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if Cachable(heap) {
		t.Error("heap is cachable after its declaration was closed")
	}
}
