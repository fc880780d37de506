//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// gate lets registrations pass one by one.
type gate struct {
	entered chan uintptr // where each starts
	pass    chan struct{}
}

func newGate(d *device) *gate {
	g := &gate{make(chan uintptr), make(chan struct{})}
	d.during = func(lo, _ uintptr) {
		g.entered <- lo
		<-g.pass
	}
	return g
}

func mustPrefetch(tb testing.TB, c *Cache[int], b []byte) Fetch[int] {
	tb.Helper()
	f, err := c.Prefetch(b, 1)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// kinds is memory that is cached, and memory that is not.
func kinds(t *testing.T, f func(t *testing.T, b []byte, cached bool)) {
	t.Run("cached", func(t *testing.T) { f(t, newArena(t, 64*page).Bytes(), true) })
	t.Run("per transfer", func(t *testing.T) { f(t, make([]byte, 64*page), false) })
}

// A fetch is registered in the background, and its reference passes to the goroutine that
// acquires it.
func TestPrefetch(t *testing.T) {
	kinds(t, func(t *testing.T, b []byte, cached bool) {
		dev := newDevice()
		c := newCache(t, dev, Config{})
		g := newGate(dev)
		f := mustPrefetch(t, c, b)
		<-g.entered
		if _, done, err := f.TryAcquire(); done || err != nil || !f.Active() {
			t.Fatalf("done %v, %v, active %v while it is registered", done, err, f.Active())
		}
		g.pass <- struct{}{}
		r, err := f.Acquire()
		if err != nil || f.Active() {
			t.Fatal(err, f.Active())
		}
		if err := dev.check(r, b, 1); err != nil {
			t.Error(err)
		}
		if dev.calls != 1 {
			t.Errorf("%d registrations", dev.calls)
		}
		r.Release()
		if got := dev.count() == 1; got != cached {
			t.Errorf("registered after the release: %v, want %v", got, cached)
		}
	})
}

// Acquire, by address alone, waits for the prefetch that is under way.
func TestAcquireJoinsRunningPrefetch(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, 4*page).Bytes()
	g := newGate(dev)
	f := mustPrefetch(t, c, b)
	<-g.entered
	got := make(chan *Region[int])
	go func() {
		r, err := c.Acquire(b[page:2*page], 1)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	mustWait(t, g)
	g.pass <- struct{}{}
	r1 := <-got
	r2, err := f.Acquire()
	if err != nil || r1 != r2 || dev.calls != 1 {
		t.Fatalf("%p, %p, %v after %d registrations", r1, r2, err, dev.calls)
	}
	r1.Release()
	r2.Release()
}

// A request for less access joins, too.
func TestAcquireJoinsMoreAccess(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, page).Bytes()
	g := newGate(dev)
	f, err := c.Prefetch(b, 3)
	if err != nil {
		t.Fatal(err)
	}
	<-g.entered
	got := make(chan *Region[int])
	go func() { got <- mustAcquire(t, c, b, 1) }()
	mustWait(t, g)
	g.pass <- struct{}{}
	r := <-got
	if r.Access() != 3 {
		t.Errorf("got access %d, want that of the prefetch", r.Access())
	}
	r.Release()
	f.Cancel()
}

// mustWait fails if another registration starts, within the time in which one
// that is wrong would.
func mustWait(t *testing.T, g *gate) {
	t.Helper()
	select {
	case at := <-g.entered:
		close(g.pass) // let all go, so that the test ends
		go func() {
			for range g.entered {
			}
		}()
		t.Fatalf("a second registration, at %#x", at)
	case <-time.After(20 * time.Millisecond):
	}
}

// Requests at the same time for memory that touches become one region: the
// second waits for the first, and takes it in.
func TestConcurrentRequestsMerge(t *testing.T) {
	for _, from := range []int{0, 1} { // overlapping, touching
		dev := newDevice()
		c := newCache(t, dev, Config{})
		heap := declaredHeap(t, 4*page)
		g := newGate(dev)
		done := make(chan *Region[int], 2)
		acquire := func(b []byte) { done <- mustAcquire(t, c, b, 1) }
		go acquire(heap[:page])
		<-g.entered
		go acquire(heap[from*page : 2*page])
		mustWait(t, g)
		g.pass <- struct{}{}
		<-g.entered
		g.pass <- struct{}{}
		for range 2 {
			(<-done).Release()
		}
		lo, _ := span(heap)
		if got := dev.ranges(lo); len(got) != 1 || got[0] != [2]int{0, 2 * page} {
			t.Errorf("registered %v", got)
		}
	}
}

// Acquire does what is still queued itself, instead of waiting for what is
// queued before it.
func TestAcquireOvertakesTheQueue(t *testing.T) {
	kinds(t, func(t *testing.T, b []byte, cached bool) {
		dev := newDevice()
		c := newCache(t, dev, Config{})
		g := newGate(dev)
		first, second := mustPrefetch(t, c, b[:page]), mustPrefetch(t, c, b[8*page:16*page])
		lo, _ := span(b)
		if at := <-g.entered; at != lo {
			t.Fatal("another one first")
		}
		got := make(chan *Region[int])
		go func() {
			r, err := second.Acquire()
			if cached { // by address
				r.Release()
				r, err = c.Acquire(b[9*page:10*page], 1)
			}
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		if at := <-g.entered; at != lo+8*pageSize {
			t.Fatalf("started at %d, want the second fetch", at-lo)
		}
		g.pass <- struct{}{} // either: both must go on
		g.pass <- struct{}{}
		(<-got).Release()
		r, err := first.Acquire()
		if err != nil || dev.calls != 2 {
			t.Fatalf("%v after %d registrations", err, dev.calls)
		}
		r.Release()
	})
}

// An Acquire by address takes a whole queued prefetch over, so that nothing is
// registered twice.
func TestAcquireTakesQueuedPrefetchOver(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, 64*page).Bytes()
	g := newGate(dev)
	first, second := mustPrefetch(t, c, b[:page]), mustPrefetch(t, c, b[8*page:16*page])
	<-g.entered
	got := make(chan *Region[int])
	go func() { got <- mustAcquire(t, c, b[9*page:10*page], 1) }()
	<-g.entered
	g.pass <- struct{}{}
	g.pass <- struct{}{}
	r := <-got
	r2, err := second.Acquire()
	if err != nil || r != r2 || r.Len() != 8*page {
		t.Fatalf("got %d bytes, %p and %p, %v", r.Len(), r, r2, err)
	}
	r.Release()
	r2.Release()
	first.Cancel()
	if err := c.Close(); err != nil || dev.calls != 2 {
		t.Errorf("%v after %d registrations", err, dev.calls)
	}
}

// A fetch that is cancelled before it starts registers nothing; one under way is undone without blocking the caller; a
// finished one stays cached.
func TestCancel(t *testing.T) {
	kinds(t, func(t *testing.T, b []byte, cached bool) {
		dev := newDevice()
		c := New(dev, Config{})
		g := newGate(dev)
		running, queued := mustPrefetch(t, c, b[:page]), mustPrefetch(t, c, b[8*page:9*page])
		<-g.entered
		queued.Cancel()
		running.Cancel() // does not block
		g.pass <- struct{}{}
		dev.during = nil
		done := mustPrefetch(t, c, b[16*page:17*page])
		for {
			if r, ready, err := done.TryAcquire(); err != nil {
				t.Fatal(err)
			} else if ready {
				done = Fetch[int]{cache: c, b: b[16*page : 17*page], access: 1, region: r}
				break
			}
		}
		done.Cancel()
		want := 0
		if cached {
			want = 2
		}
		if n := dev.count(); dev.calls != 2 || n != want {
			t.Errorf("%d registrations, %d left, want 2 and %d", dev.calls, n, want)
		}
		if err := c.Close(); err != nil || dev.count() != 0 {
			t.Errorf("close: %v, %d left", err, dev.count())
		}
	})
}

// The queue is bounded, and returns ErrBusy when it is full.
func TestPrefetchQueueIsBounded(t *testing.T) {
	dev := newDevice()
	c := New(dev, Config{})
	b := newArena(t, (2*prefetchQueue+6)*page).Bytes()
	last := b[len(b)-page:]
	g := newGate(dev)
	fetches := []Fetch[int]{mustPrefetch(t, c, b[:page])}
	<-g.entered
	for i := range prefetchQueue {
		fetches = append(fetches, mustPrefetch(t, c, b[(2*i+2)*page:][:page]))
	}
	if _, err := c.Prefetch(last, 1); err != driver.ErrBusy {
		t.Fatalf("got %v, want ErrBusy", err)
	}
	// Close fails what is queued and waits for what is under way.
	closed := make(chan error)
	go func() { closed <- c.Close() }()
	for err := error(nil); !errors.Is(err, driver.ErrClosed); {
		_, err = c.Prefetch(last, 1)
	}
	for _, f := range fetches[1:] {
		if _, err := f.Acquire(); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("queued fetch: %v, want ErrClosed", err)
		}
	}
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	case g.pass <- struct{}{}:
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := fetches[0].Acquire(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("running fetch: %v, want ErrClosed", err)
	}
	if n := dev.count(); n != 0 {
		t.Errorf("%d registrations left", n)
	}
}

// The registrar's error comes with the fetch, once.
func TestPrefetchFails(t *testing.T) {
	kinds(t, func(t *testing.T, b []byte, _ bool) {
		dev := newDevice()
		dev.fail = func(uintptr, uintptr) error { return unix.EFAULT }
		c := newCache(t, dev, Config{})
		for _, end := range []func(f *Fetch[int]) error{
			func(f *Fetch[int]) error { _, err := f.Acquire(); return err },
			func(f *Fetch[int]) error {
				for {
					if _, done, err := f.TryAcquire(); done || err != nil {
						return err
					}
				}
			},
		} {
			f := mustPrefetch(t, c, b)
			if err := end(&f); !errors.Is(err, unix.EFAULT) || f.Active() {
				t.Errorf("got %v, active %v", err, f.Active())
			}
		}
		f := mustPrefetch(t, c, b)
		f.Cancel()
	})
}

// A fetch whose region was invalidated or merged meanwhile gives another one.
func TestFetchedRegionGoes(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, 4*page).Bytes()
	for name, change := range map[string]func(){
		"invalidated": func() { c.Invalidate(b) },
		"merged":      func() { mustAcquire(t, c, b[:2*page], 1).Release() },
	} {
		for _, try := range []bool{false, true} {
			c.Invalidate(b)
			mustAcquire(t, c, b[:page], 1).Release()
			f := mustPrefetch(t, c, b[:page]) // a hit
			change()
			r, err := tryOrAcquire(&f, try)
			if err != nil {
				t.Fatal(err)
			}
			if err := dev.check(r, b[:page], 1); err != nil || r.state.Load()&retired != 0 {
				t.Errorf("%s: %v, retired %v", name, err, r.state.Load()&retired != 0)
			}
			r.Release()
		}
	}
}

func tryOrAcquire(f *Fetch[int], try bool) (*Region[int], error) {
	if !try {
		return f.Acquire()
	}
	for {
		if r, done, err := f.TryAcquire(); done || err != nil {
			return r, err
		}
	}
}

// Cold pipelining: while the whole is being registered, pieces go by
// registrations of their own, which do not merge with it.
func TestTransientBesidePrefetch(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := newArena(t, 16*page).Bytes()
	g := newGate(dev)
	whole := mustPrefetch(t, c, b)
	<-g.entered
	dev.mu.Lock()
	dev.during = nil
	dev.mu.Unlock()
	piece, err := c.transient(b[:page], 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.check(piece, b[:page], 1); err != nil || piece.Len() != page {
		t.Error(err, piece.Len())
	}
	g.pass <- struct{}{}
	r, err := whole.Acquire()
	if err != nil || r == piece {
		t.Fatal(err)
	}
	piece.Release()
	r.Release()
	if n := dev.count(); n != 1 {
		t.Errorf("%d registrations, want the whole alone", n)
	}
}

// What may not be needed does not exceed the budget: the prefetch fails, and whoever needs the memory registers it.
func TestPrefetchKeepsTheBudget(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{MaxBytes: int64(16 * page)})
	b := make([]byte, 64*page)
	used, err := c.Acquire(b[:12*page], 1)
	if err != nil {
		t.Fatal(err)
	}
	ended := func(f *Fetch[int]) (r *Region[int], err error) {
		for done := false; !done; runtime.Gosched() {
			r, done, err = f.TryAcquire()
		}
		return r, err
	}
	f := mustPrefetch(t, c, b[20*page:28*page])
	if _, err := ended(&f); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("a prefetch beyond the budget: %v, want %v", err, driver.ErrBusy)
	}
	f = mustPrefetch(t, c, b[20*page:28*page])
	r, err := f.AcquireFrom(c, b[20*page:24*page], 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.check(r, b[20*page:24*page], 1); err != nil {
		t.Error(err)
	}
	r.Release()
	used.Release()
	f = mustPrefetch(t, c, b[20*page:28*page])
	if r, err = ended(&f); err != nil {
		t.Fatalf("a prefetch within the budget: %v", err)
	}
	r.Release()
}

// A packet that is posted with the beginning of its memory takes what was prefetched and covers that; a part that does
// not cover a piece is not taken.
func TestPacketTakesWhatWasPrefetched(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := make([]byte, 32*page)
	var a Ahead[int]
	a.Init(1, 4)
	var p driver.Packet
	parts := [][]byte{b[:16*page], b[16*page:]}
	prefetch := func() *Fetched[int] {
		t.Helper()
		if err := a.Begin(c, &p, [][]byte{b}, parts, 1); err != nil {
			t.Fatal(err)
		}
		f, err := a.Of(&p, [][]byte{b[:20*page]})
		if err != nil || f.Part() != 16*page {
			t.Fatalf("%v, parts of %d bytes", err, f.Part())
		}
		return f
	}
	f := prefetch()
	if err := a.Begin(c, new(driver.Packet), nil, nil, 1); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("one packet more than there is room for: %v", err)
	}
	for k, piece := range [][]byte{b[:16*page], b[16*page : 20*page]} {
		fetch := f.Take(k, piece, 1)
		if !fetch.Active() {
			t.Fatalf("part %d was not prefetched", k)
		}
		r, err := fetch.AcquireFrom(c, piece, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.check(r, piece, 1); err != nil {
			t.Error(err)
		}
		r.Release()
	}
	a.Forget(&p)

	f = prefetch()
	for _, x := range []struct {
		k      int
		b      []byte
		access Access
	}{{0, b[:20*page], 1}, {2, b[:page], 1}, {0, b[:page], 2}} {
		if fetch := f.Take(x.k, x.b, x.access); fetch.Active() {
			t.Errorf("part %d of %d bytes with access %d was taken", x.k, len(x.b), x.access)
		}
	}
	r, err := f.Acquire(c, 0, b[:20*page], 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.check(r, b[:20*page], 1); err != nil {
		t.Error(err)
	}
	r.Release()
	a.Forget(&p)
	if err := a.Undo(&p); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("unfetch of what is not prefetched: %v", err)
	}
}
