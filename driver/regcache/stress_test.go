//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// Many goroutines do everything at once, with a small budget and a registrar
// that fails now and then: each region that a goroutine has is registered,
// covers his memory, and stays until he releases it; in the end nothing is
// left, and no count is off.
func TestManyGoroutines(t *testing.T) {
	const goroutines = 8
	duration := time.Second
	if testing.Short() {
		duration = 300 * time.Millisecond
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dev := newDevice()
	var calls atomic.Uint64
	dev.fail = func(uintptr, uintptr) error {
		if calls.Add(1)%17 == 0 {
			return unix.ENOMEM
		}
		return nil
	}
	c := newCache(t, dev, Config{MaxBytes: 60 * int64(page), MaxRegions: 24})
	memory := [][]byte{
		newArena(t, 16*page).Bytes(), declaredHeap(t, 16*page), make([]byte, 16*page), fenced(t, 16*page),
	}
	if d, err := Watch(memory[3]); err == nil {
		defer d.Close()
	} else {
		t.Log(err)
	}
	var acquired atomic.Uint64
	deadline := time.Now().Add(duration)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			w := stressor{t: t, c: c, dev: dev, rng: rand.New(rand.NewPCG(seed, uint64(g))), memory: memory}
			for time.Now().Before(deadline) && !t.Failed() {
				w.step()
			}
			w.end()
			acquired.Add(w.acquired)
		})
	}
	wg.Wait()
	c.mu.Lock()
	c.settleLocked() // fetches that were cancelled while they ran
	c.mu.Unlock()
	got := c.Counters()
	t.Logf("%d acquired; %+v", acquired.Load(), got)
	if min(got.Hits, got.Misses, got.Merged, got.Evicted, got.Invalidated, got.Retries) == 0 {
		t.Errorf("something did not happen: %+v", got)
	}
	dev.mu.Lock()
	bytes, regions := dev.bytes, len(dev.live)
	dev.mu.Unlock()
	if got.Bytes != int64(bytes) || got.Regions != regions || got.Bytes > 60*int64(page) || got.Regions > 24 {
		t.Errorf("%+v, registered are %d bytes in %d regions", got, bytes, regions)
	}
}

// stressor is one goroutine of the test.
type stressor struct {
	t        *testing.T
	c        *Cache[int]
	dev      *device
	rng      *rand.Rand
	memory   [][]byte
	held     []heldRegion
	fetches  []Fetch[int]
	acquired uint64
}

type heldRegion struct {
	r      *Region[int]
	b      []byte
	access Access
}

func (w *stressor) slice() []byte {
	mem := w.memory[w.rng.IntN(len(w.memory))]
	at := w.rng.IntN(len(mem))
	return mem[at:min(at+1+w.rng.IntN(2*page), len(mem))]
}

func (w *stressor) step() {
	b, access := w.slice(), Access(1+w.rng.IntN(3))
	switch p := w.rng.IntN(100); {
	case p < 40:
		r, err := w.c.Acquire(b, access)
		w.keep(r, err, b, access)
	case p < 50:
		if r := w.c.Lookup(b, access); r != nil {
			w.keep(r, nil, b, access)
		}
	case p < 55:
		r, err := w.c.transient(b, access)
		w.keep(r, err, b, access)
	case p < 62:
		f, err := w.c.Prefetch(b, access)
		if err == nil {
			w.fetches = append(w.fetches, f)
		} else if err != driver.ErrBusy {
			w.t.Error(err)
		}
	case p < 70:
		w.endFetch()
	case p < 73:
		w.c.Invalidate(b)
	case p < 74:
		mem := w.memory[3]
		at := w.rng.IntN(16) * page
		if err := unix.Madvise(mem[at:at+page], unix.MADV_DONTNEED); err != nil {
			w.t.Error(err)
		}
	case p < 75:
		w.c.Counters()
		if err := checkDisjoint(w.c); err != nil {
			w.t.Error(err)
		}
	default:
		w.release()
	}
}

// checkDisjoint checks what the index relies on.
func checkDisjoint(c *Cache[int]) error {
	for _, s := range *c.sets.Load() {
		var last *Region[int]
		for _, l := range s.root.Load().leaves {
			for i, r := range l.regions {
				if r.access != s.access || r.lo != l.starts[i] || last != nil && last.hi > r.lo {
					return fmt.Errorf("region [%#x,%#x) after %+v in the index of access %d", r.lo, r.hi, last, s.access)
				}
				last = r
			}
		}
	}
	return nil
}

func (w *stressor) keep(r *Region[int], err error, b []byte, access Access) {
	if err != nil {
		if !errors.Is(err, unix.ENOMEM) {
			w.t.Error(err)
		}
		return
	}
	w.acquired++
	w.held = append(w.held, heldRegion{r, b, access})
	if len(w.held) > 3 {
		w.release()
	}
}

// release gives a region back, after checking that it still is what it was.
func (w *stressor) release() {
	if len(w.held) == 0 {
		return
	}
	i := w.rng.IntN(len(w.held))
	h := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	if err := w.dev.check(h.r, h.b, h.access); err != nil {
		w.t.Error(err)
	}
	h.r.Release()
}

func (w *stressor) endFetch() {
	if len(w.fetches) == 0 {
		return
	}
	f := &w.fetches[0]
	b, access := f.b, f.access
	switch w.rng.IntN(3) {
	case 0:
		f.Cancel()
	case 1:
		r, err := f.Acquire()
		w.keep(r, err, b, access)
	default:
		r, done, err := f.TryAcquire()
		if err != nil && err != driver.ErrBusy || r != nil {
			w.keep(r, err, b, access)
		} else if !done {
			return
		}
	}
	w.fetches = w.fetches[1:]
}

func (w *stressor) end() {
	for len(w.held) > 0 {
		w.release()
	}
	for i := range w.fetches {
		w.fetches[i].Cancel()
	}
}

// Caches are made, filled and closed while others work in the same memory and
// arenas and declarations come and go.
func TestComingAndGoing(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				if err := comeAndGo(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	declared.Lock()
	defer declared.Unlock()
	if n := len(declared.caches); n != 0 {
		t.Errorf("%d caches left", n)
	}
	if n := len(zones()); n != 0 {
		t.Errorf("%d zones left", n)
	}
}

func comeAndGo() error {
	dev := newDevice()
	c := New(dev, Config{})
	a, err := driver.NewArena(8 * page)
	if err != nil {
		return err
	}
	heap := make([]byte, 8*page)
	d, err := DeclareHeap(heap)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for j := range 8 {
				for _, b := range [][]byte{a.Bytes(), heap} {
					r, err := c.Acquire(b[(i+j)%8*page:][:page], Access(j%2))
					if err != nil {
						panic(err)
					}
					r.Release()
				}
			}
		})
	}
	wg.Wait()
	err = errors.Join(d.Close(), a.Close())
	if n := dev.count(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d registrations left", n))
	}
	return errors.Join(err, c.Close())
}
