//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

var page = int(pageSize)

// declaredHeap is Go heap memory that is declared until the test ends.
func declaredHeap(tb testing.TB, size int) []byte {
	tb.Helper()
	b := make([]byte, size)
	d, err := DeclareHeap(b)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.Close() })
	return b
}

// Which memory stays registered after Release, and in what bounds.
func TestWhatIsCached(t *testing.T) {
	arena := newArena(t, 16*page).Bytes()
	heap := declaredHeap(t, 16*page)
	plain := make([]byte, 16*page)
	foreign := mapping(t, 16*page)
	for _, x := range []struct {
		name   string
		b      []byte
		cached bool
		want   [2]int // offsets from b
	}{
		{"arena, whole pages", arena[page+5 : 2*page+6], true, [2]int{-5, 2*page - 5}},
		{"declared heap, exactly", heap[100:300], true, [2]int{0, 200}},
		{"Go heap, exactly", plain[100:300], false, [2]int{0, 200}},
		{"mapping, exactly", foreign[page+5 : 2*page+6], false, [2]int{0, page + 1}},
		{"half declared", slices.Clip(heap[:16*page])[16*page-10:], true, [2]int{0, 10}},
	} {
		t.Run(x.name, func(t *testing.T) {
			dev := newDevice()
			c := newCache(t, dev, Config{})
			r := mustAcquire(t, c, x.b, 1)
			lo, _ := span(x.b)
			if got := dev.ranges(lo); len(got) != 1 || got[0] != x.want {
				t.Errorf("registered %v, want %v", got, x.want)
			}
			if err := dev.check(r, x.b, 1); err != nil {
				t.Error(err)
			}
			r.Release()
			if got := dev.count() == 1; got != x.cached {
				t.Errorf("registered after the release: %v, want %v", got, x.cached)
			}
			r = c.Lookup(x.b, 1)
			if got := r != nil; got != x.cached {
				t.Errorf("hit: %v, want %v", got, x.cached)
			}
			if r != nil {
				r.Release()
			}
		})
	}
}

// A registration serves requests with fewer access bits, never with more, and
// the one with the least that suffices is taken.
func TestLeastAccess(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, page).Bytes()
	for _, x := range []struct{ ask, get Access }{{3, 3}, {1, 3}, {2, 3}, {0, 3}, {4, 4}, {7, 7}, {6, 7}} {
		r := mustAcquire(t, c, b, x.ask)
		if r.Access() != x.get {
			t.Errorf("asked %d: got %d, want %d", x.ask, r.Access(), x.get)
		}
		r.Release()
	}
	for _, access := range []Access{7, 3} {
		lo, hi := span(b)
		if r := c.find(lo, hi, 2); r.Access() != 3 {
			t.Errorf("asked 2: found %d, want 3 though there is %d", r.Access(), access)
		}
	}
}

func TestMisuse(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{Name: "test dev0"})
	if _, err := c.Acquire(nil, 1); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("acquire of nothing: %v", err)
	}
	if _, err := c.Prefetch(nil, 1); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("prefetch of nothing: %v", err)
	}
	if r := c.Lookup(nil, 1); r != nil {
		t.Error("found nothing")
	}
	c.Invalidate(nil)
	if _, err := DeclareHeap(nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("declare nothing: %v", err)
	}
	heap := declaredHeap(t, 100)
	if _, err := DeclareHeap(heap[50:60]); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("declared twice: %v", err)
	}
	var none Fetch[int]
	none.Cancel()
	if _, done, err := none.TryAcquire(); !done || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Acquire of a Fetch that was not started: %v, %v", done, err)
	}
	if _, err := none.Acquire(); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("Acquire of a Fetch that was not started: %v", err)
	}
	r := mustAcquire(t, c, heap, 1)
	r.Release()
	defer func() {
		if recover() == nil {
			t.Error("releasing too often did not panic")
		}
		r.state.Add(1)
	}()
	r.Release()
}

// A registrar's error names the device, the operation and the cause; for want
// of memory there is advice. Nothing is left behind.
func TestErrorsOfTheRegistrar(t *testing.T) {
	for _, cause := range []error{unix.ENOMEM, unix.EFAULT} {
		dev := newDevice()
		dev.fail = func(uintptr, uintptr) error { return cause }
		c := newCache(t, dev, Config{Name: "test dev0"})
		for _, b := range [][]byte{newArena(t, page).Bytes(), newArena(t, 2*page).Bytes()[5:10], make([]byte, 10)} {
			_, err := c.Acquire(b, 1)
			want := fmt.Sprintf("test dev0: register %d bytes at ", len(b))
			if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v", err)
			}
			if strings.Contains(err.Error(), "ulimit -l") != (cause == unix.ENOMEM) {
				t.Errorf("advice in %v", err)
			}
		}
		if got := c.Counters(); got.Regions != 0 || got.Bytes != 0 || got.Misses != 3 {
			t.Errorf("counters: %+v", got)
		}
	}
}

// A region that cannot be deregistered stays pinned and counted, is tried again
// when memory is short and by Close, which returns why it failed.
func TestFailingDeregister(t *testing.T) {
	dev := newDevice()
	broken := errors.New("broken")
	refused := 0
	dev.refuse = func(int) error { refused++; return broken }
	c := New(dev, Config{Name: "test dev0"})
	heap := declaredHeap(t, 3*page)
	mustAcquire(t, c, heap[:page], 1).Release()
	c.Invalidate(heap)
	if got := c.Counters(); refused != 1 || got.Failures != 1 || got.Regions != 1 || got.Bytes != int64(page) {
		t.Fatalf("refused %d times; %+v", refused, got)
	}
	if r := c.Lookup(heap[:page], 1); r != nil {
		t.Fatal("a region that was to be deregistered was found")
	}

	short := true
	dev.fail = func(uintptr, uintptr) error {
		if short {
			short = false
			return unix.ENOSPC
		}
		return nil
	}
	mustAcquire(t, c, heap[2*page:], 1).Release()
	if got := c.Counters(); refused != 2 || got.Retries != 1 || got.Failures != 2 || got.Regions != 2 {
		t.Fatalf("refused %d times; %+v", refused, got)
	}

	err := c.Close()
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), fmt.Sprintf("test dev0: deregister %d bytes at ", page)) {
		t.Fatalf("close: %v", err)
	}
	dev.refuse = nil
	if err := c.Close(); err != nil || dev.count() != 0 {
		t.Fatalf("close: %v, %d left", err, dev.count())
	}
	if err := c.Close(); !errors.Is(err, driver.ErrClosed) {
		t.Fatalf("third close: %v", err)
	}
}

// Close fails while a region is in use, but refuses further calls.
func TestCloseWhileInUse(t *testing.T) {
	dev := newDevice()
	c := New(dev, Config{})
	arena := newArena(t, 4*page).Bytes()
	held := []*Region[int]{mustAcquire(t, c, arena[:page], 1), mustAcquire(t, c, make([]byte, 10), 1)}
	mustAcquire(t, c, arena[2*page:], 1).Release()
	if err := c.Close(); !errors.Is(err, driver.ErrBusy) || !strings.Contains(err.Error(), "2 regions") {
		t.Fatalf("close: %v", err)
	}
	if n := dev.count(); n != 2 {
		t.Errorf("%d registrations, want those in use", n)
	}
	for _, b := range [][]byte{arena[:page], make([]byte, 10)} {
		if _, err := c.Acquire(b, 1); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("acquire: %v", err)
		}
		if _, err := c.Prefetch(b, 1); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("prefetch: %v", err)
		}
	}
	for _, r := range held {
		r.Release()
	}
	if err := c.Close(); err != nil || dev.count() != 0 {
		t.Fatalf("close: %v, %d left", err, dev.count())
	}
}

// Closing an arena forgets its regions; the next arena, wherever it lies, is
// registered anew.
func TestArenaClose(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	for range 20 {
		a, err := driver.NewArena(4 * page)
		if err != nil {
			t.Fatal(err)
		}
		r := mustAcquire(t, c, a.Bytes()[:page], 1)
		if r.Arena() != a {
			t.Fatal("region is of another arena")
		}
		mustAcquire(t, c, a.Bytes()[2*page:], 1).Release()
		if err := a.Close(); err != nil { // the caller did not hold it
			t.Fatal(err)
		}
		if n := dev.count(); n != 1 {
			t.Fatalf("%d registrations after Close, want the one in use", n)
		}
		r.Release()
		if n := dev.count(); n != 0 {
			t.Fatalf("%d registrations after the release", n)
		}
	}
	c.mu.Lock()
	n := len(c.arenas)
	c.mu.Unlock()
	if n != 0 {
		t.Errorf("%d hooks left", n)
	}
	if got := c.Counters(); got.Invalidated != 40 || got.Misses != 40 {
		t.Errorf("counters: %+v", got)
	}
}

// An arena that is being registered cannot be closed.
func TestArenaHeldWhileRegistering(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	a := newArena(t, page)
	var inside error
	dev.during = func(uintptr, uintptr) { inside = a.Close() }
	mustAcquire(t, c, a.Bytes(), 1).Release()
	if !errors.Is(inside, driver.ErrBusy) {
		t.Errorf("close while registering: %v", inside)
	}
	if err := a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// The end of a declaration ends caching in all caches.
func TestDeclarationEnds(t *testing.T) {
	devs := []*device{newDevice(), newDevice()}
	b := make([]byte, 100)
	d, err := DeclareHeap(b)
	if err != nil {
		t.Fatal(err)
	}
	var caches []*Cache[int]
	for _, dev := range devs {
		c := newCache(t, dev, Config{})
		mustAcquire(t, c, b, 1).Release()
		caches = append(caches, c)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for i, c := range caches {
		if n := devs[i].count(); n != 0 {
			t.Errorf("%d registrations left", n)
		}
		mustAcquire(t, c, b, 1).Release()
		if c.Lookup(b, 1) != nil {
			t.Error("cached")
		}
	}
	if err := d.Close(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}

// Memory that is invalidated while it is being registered never enters the
// cache.
func TestInvalidatedWhileRegistering(t *testing.T) {
	for _, times := range []int{1, maxStale - 1, maxStale, 1000} {
		dev := newDevice()
		c := newCache(t, dev, Config{})
		b := newArena(t, page).Bytes()
		n := 0
		dev.during = func(uintptr, uintptr) {
			if n++; n <= times {
				c.Invalidate(b)
			}
		}
		r := mustAcquire(t, c, b, 1)
		if err := dev.check(r, b, 1); err != nil {
			t.Error(err)
		}
		if r.transient != (times >= maxStale) || n != min(times, maxStale)+1 || dev.count() != 1 {
			t.Errorf("%d invalidations: %d registrations, %d left, transient: %v", times, n, dev.count(), r.transient)
		}
		r.Release()
	}
}

// Touching buffers, one after the other, cost a number of bytes registered
// that is in proportion to the memory.
func TestMergingIsLinear(t *testing.T) {
	const n = 1 << 12
	for _, order := range []string{"ascending", "descending"} {
		dev := newDevice()
		c := newCache(t, dev, Config{MaxBytes: 1 << 40})
		b := newArena(t, n*page).Bytes()
		for i := range n {
			if order == "descending" {
				i = n - 1 - i
			}
			mustAcquire(t, c, b[i*page:][:page], 1).Release()
		}
		var total int
		for _, s := range dev.tries {
			total += int(s.hi - s.lo)
		}
		if got := dev.ranges(0); len(got) != 1 || total > 4*len(b) {
			t.Errorf("%s: %d regions in the end, %d bytes registered for %d", order, len(got), total, len(b))
		}
	}
}

// Hits are counted even beyond what a region can count.
func TestManyHits(t *testing.T) {
	c := newCache(t, newDevice(), Config{})
	b := newArena(t, page).Bytes()
	r := mustAcquire(t, c, b, 1)
	const almost = 1<<33 - 2
	r.state.Add(almost << hitShift)
	for range 10 {
		if mustAcquire(t, c, b, 1) != r {
			t.Fatal("another region")
		}
	}
	for range 11 {
		r.Release()
	}
	if got := c.Counters(); got.Hits != almost+10 || got.Misses != 1 {
		t.Errorf("counters: %+v, want %d hits", got, uint64(almost+10))
	}
	if got := r.state.Load() >> hitShift; got > 100 {
		t.Errorf("%d hits are still in the region", got)
	}
}

// Nothing is allocated where nothing is registered.
func TestHitsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := newCache(t, newDevice(), Config{})
	memory := map[string][]byte{"arena": newArena(t, page).Bytes(), "heap": declaredHeap(t, page)}
	b := fenced(t, page)
	if d, err := Watch(b); err == nil {
		defer d.Close()
		memory["watched"] = b
	} else {
		t.Log(err)
	}
	for name, b := range memory {
		mustAcquire(t, c, b, 1).Release()
		for what, f := range map[string]func(){
			"Acquire": func() { mustAcquire(t, c, b, 1).Release() },
			"Lookup":  func() { c.Lookup(b, 1).Release() },
			"Prefetch and TryAcquire": func() {
				f, err := c.Prefetch(b, 1)
				r, done, err2 := f.TryAcquire()
				if err != nil || err2 != nil || !done {
					t.Fatal(err, err2, done)
				}
				r.Release()
			},
			"Prefetch and Cancel": func() {
				f, _ := c.Prefetch(b, 1)
				f.Cancel()
			},
		} {
			if n := testing.AllocsPerRun(1000, f); n != 0 {
				t.Errorf("%s of %s: %v allocations", what, name, n)
			}
		}
	}
}
