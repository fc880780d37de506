//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

const fixed = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED

// remapAt maps fresh memory over b.
func remapAt(b []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, fixed)
	return err
}

func unmap(b []byte) error { return unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b))) }

func mremap(from []byte, flags int, to unsafe.Pointer, size int) (unsafe.Pointer, error) {
	return unix.MremapPtr(unsafe.Pointer(&from[0]), uintptr(len(from)), to, uintptr(size), flags)
}

func mustWatch(tb testing.TB, b []byte) *Declaration {
	tb.Helper()
	d, err := Watch(b)
	if errors.Is(err, driver.ErrUnsupported) {
		tb.Skipf("needs userfaultfd: %v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.Close() })
	return d
}

// changes are the ways by which other pages come to lie at the same address.
var changes = []struct {
	name  string
	keeps bool // the memory is still watched afterwards
	do    func(b []byte) error
}{
	{"munmap and mmap", false, func(b []byte) error { return errors.Join(unmap(b), remapAt(b)) }},
	{"mmap over it", false, remapAt},
	{"mremap away", false, func(b []byte) error {
		p, err := mremap(b, unix.MREMAP_MAYMOVE, nil, 2*len(b)) // something is behind it: it must move
		if err != nil {
			return err
		}
		if p == unsafe.Pointer(&b[0]) {
			return errors.New("mremap did not move")
		}
		return errors.Join(remapAt(b), unix.MunmapPtr(p, uintptr(2*len(b))))
	}},
	{"mremap over it", false, func(b []byte) error {
		p, err := unix.MmapPtr(-1, 0, nil, uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, fixed&^unix.MAP_FIXED)
		if err != nil {
			return err
		}
		other := unsafe.Slice((*byte)(p), len(b))
		_, err = mremap(other, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, unsafe.Pointer(&b[0]), len(b))
		return err
	}},
	{"mremap leaving the mapping", false, func(b []byte) error {
		p, err := mremap(b, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP, nil, len(b))
		if err != nil {
			return err
		}
		return unix.MunmapPtr(p, uintptr(len(b)))
	}},
	{"MADV_DONTNEED", true, func(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }},
}

// fenced is memory with a page behind it that keeps it from growing in place.
func fenced(tb testing.TB, size int) []byte { return mapping(tb, size+int(pageSize))[:size:size] }

// A program that changes a mapping, in order with its transfers, sees the data that a device writes by a registration
// from the cache; and the registration is cached as long as the mapping is watched.
func TestWatchedMemoryIsNeverStale(t *testing.T) {
	for _, change := range changes {
		t.Run(change.name, func(t *testing.T) {
			d := newDMA(t)
			c := New(d, Config{})
			defer closeCache(t, c)
			b := fenced(t, 2*int(pageSize))
			w := mustWatch(t, b)
			defer func() { w.Close() }()
			stop := disturb()
			defer stop()
			n := 200
			if testing.Short() {
				n = 30
			}
			for i := range n {
				calls := d.calls.Load()
				for range 2 { // the second time it is a hit
					if err := d.receive(c, b, byte(i)); err != nil {
						t.Fatalf("before change %d: %v", i, err)
					}
				}
				if n := d.calls.Load() - calls; n > 1 {
					t.Fatalf("change %d: %d registrations for two transfers: not cached", i, n)
				}
				if err := change.do(b); err != nil {
					t.Fatal(err)
				}
				if err := d.receive(c, b, byte(i+1)); err != nil {
					t.Fatalf("after change %d: %v", i, err)
				}
				if change.keeps {
					continue
				}
				if c.Lookup(b, 1) != nil {
					t.Fatal("memory that is not watched any more was cached")
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				w = mustWatch(t, b)
			}
		})
	}
}

// The same changes do lead to stale registrations without Watch: the
// test above would notice one.
func TestUnwatchedMemoryWouldBeStale(t *testing.T) {
	for _, change := range changes {
		t.Run(change.name, func(t *testing.T) {
			d := newDMA(t)
			c := New(d, Config{})
			defer closeCache(t, c)
			b := fenced(t, 2*int(pageSize))
			lie, err := DeclareHeap(b) // which it is not
			if err != nil {
				t.Fatal(err)
			}
			defer lie.Close()
			if err := d.receive(c, b, 1); err != nil {
				t.Fatal(err)
			}
			if err := change.do(b); err != nil {
				t.Fatal(err)
			}
			if err := d.receive(c, b, 2); err == nil || !strings.HasPrefix(err.Error(), "stale") {
				t.Fatalf("got %v, want stale data", err)
			}
		})
	}
}

// disturb keeps the processors busy, so that threads are scheduled away at
// every point.
func disturb() (stop func()) {
	done := make(chan struct{})
	for range 4 {
		go func() {
			for {
				select {
				case <-done:
					return
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	return func() { close(done) }
}

func closeCache[H any](tb testing.TB, c *Cache[H]) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Errorf("close: %v", err)
	}
}

// Between the moment when an event was read, and the thread that unmaps
// continues, and the moment when it was acted upon, there is no hit.
func TestNoHitWhileEventIsInHand(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := fenced(t, int(pageSize))
	mustWatch(t, b)
	old := mustAcquire(t, c, b, 1)
	old.Release()
	if r := c.Lookup(b, 1); r != old {
		t.Fatalf("got %v, want the region", r)
	}
	old.Release()

	declared.Lock() // the watcher cannot act now
	err := remapAt(b)
	r := c.Lookup(b, 1)
	retired := old.state.Load()&retired != 0
	declared.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if retired {
		t.Fatal("the event was acted upon: nothing was tested")
	}
	if r != nil {
		t.Fatal("a hit on the old mapping")
	}
	r = mustAcquire(t, c, b, 1)
	if r == old || !r.transient {
		t.Fatalf("got the region %p (transient %v), the old one was %p", r, r.transient, old)
	}
	r.Release()
}

// While a thread that unmaps waits for its event to be read, another one can get the addresses: it gets no registration
// of the old memory.
func TestNoHitBeforeTheEventIsRead(t *testing.T) {
	c := newCache(t, newDevice(), Config{})
	b := fenced(t, int(pageSize))
	mustWatch(t, b)
	old := mustAcquire(t, c, b, 1)
	old.Release()
	watch.mu.Lock() // the watcher reads nothing now
	unmapped := make(chan error, 1)
	go func() { unmapped <- unmap(b) }()
	const noReplace = 0x100000 // MAP_FIXED_NOREPLACE
	for {
		_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, fixed|noReplace)
		if err == nil {
			break
		}
		if err != unix.EEXIST {
			t.Fatal(err)
		}
	}
	r := c.Lookup(b, 1)
	waits := len(unmapped) == 0
	watch.mu.Unlock()
	if err := <-unmapped; err != nil {
		t.Fatal(err)
	}
	if !waits {
		t.Fatal("the event has been read: nothing was tested")
	}
	if r != nil {
		t.Error("a hit on the old mapping")
		r.Release()
	}
	if r = mustAcquire(t, c, b, 1); r == old {
		t.Error("the region of the old mapping")
	}
	r.Release()
}

// A region in use stays registered when its memory goes, and is deregistered
// at its release.
func TestRegionInUseOutlivesMapping(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := fenced(t, int(pageSize))
	mustWatch(t, b)
	r := mustAcquire(t, c, b, 1)
	if err := unmap(b); err != nil {
		t.Fatal(err)
	}
	settle()
	if n := dev.count(); n != 1 {
		t.Fatalf("%d registrations while one is in use", n)
	}
	if got := c.Counters().Invalidated; got != 1 {
		t.Fatalf("invalidated: %d, want 1", got)
	}
	r.Release()
	if n := dev.count(); n != 0 {
		t.Fatalf("%d registrations after the release", n)
	}
}

// Unmapping a part leaves the rest watched and its regions cached.
func TestPartialUnmap(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	page := int(pageSize)
	b := fenced(t, 8*page)
	mustWatch(t, b)
	for _, i := range []int{0, 3, 6} {
		mustAcquire(t, c, b[i*page:][:page], 1).Release()
	}
	if err := errors.Join(unmap(b[2*page:5*page]), remapAt(b[2*page:5*page])); err != nil {
		t.Fatal(err)
	}
	settle()
	for i, want := range []bool{0: true, 3: false, 6: true, 7: false} {
		r := c.Lookup(b[i*page:][:page], 1)
		if (r != nil) != want {
			t.Errorf("page %d: hit %v, want %v", i, r != nil, want)
		}
		if r != nil {
			r.Release()
		}
	}
	// The rest is a zone of its own: nothing is merged across the hole.
	r := mustAcquire(t, c, b[5*page:8*page], 1)
	if r.transient || r.Len() != 3*page {
		t.Errorf("got %d bytes (transient %v), want 3 pages", r.Len(), r.transient)
	}
	r.Release()
	r = mustAcquire(t, c, b[page:3*page], 1)
	if !r.transient {
		t.Error("memory that is watched in part was cached")
	}
	r.Release()
}

// Memory that moved is not watched in its new place, until it is again.
func TestMovedMemory(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := fenced(t, int(pageSize))
	w := mustWatch(t, b)
	mustAcquire(t, c, b, 1).Release()
	p, err := mremap(b, unix.MREMAP_MAYMOVE, nil, 2*len(b))
	if err != nil {
		t.Fatal(err)
	}
	moved := unsafe.Slice((*byte)(p), 2*len(b))
	defer unmap(moved)
	if n := dev.count(); n != 0 {
		settle()
		if n = dev.count(); n != 0 {
			t.Errorf("%d registrations of the old place", n)
		}
	}
	r := mustAcquire(t, c, moved, 1)
	if !r.transient {
		t.Error("memory that is not watched was cached")
	}
	r.Release()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	mustWatch(t, moved)
	mustAcquire(t, c, moved, 1).Release()
	if c.Lookup(moved, 1) == nil {
		t.Fatal("not cached")
	} else {
		r := c.Lookup(moved, 1)
		r.Release()
		r.Release()
	}
}

// Moved memory is not watched, neither at its old nor at its new place: another userfaultfd can have it.
func TestMovedMemoryIsLetGo(t *testing.T) {
	b := fenced(t, page)
	mustWatch(t, b)
	p, err := mremap(b, unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP, nil, len(b))
	if err != nil {
		t.Fatal(err)
	}
	moved := unsafe.Slice((*byte)(p), len(b))
	defer unmap(moved)
	settle()
	other, err := openUffd()
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	for _, b := range [][]byte{b, moved} {
		if err := other.register(span(b)); err != nil {
			t.Errorf("memory at %p: %v", &b[0], err)
		}
	}
}

// Memory that cannot be watched is refused with the reason, and nothing is left behind.
func TestWatchRefuses(t *testing.T) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	file, err := unix.Mmap(int(self.Fd()), 0, int(pageSize), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(file)
	b := mapping(t, 8*int(pageSize))
	hole := b[4*pageSize:]
	if err := unmap(hole); err != nil {
		t.Fatal(err)
	}
	mustWatch(t, b[:pageSize])
	for _, x := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", b[:0], driver.ErrInvalid},
		{"Go heap", make([]byte, 1<<20), driver.ErrInvalid},
		{"arena", newArena(t, 4096).Bytes(), driver.ErrInvalid},
		{"watched already", b[1:2], driver.ErrInvalid},
		{"file", file, driver.ErrUnsupported},
		{"not mapped", hole, driver.ErrUnsupported},
	} {
		t.Run(x.name, func(t *testing.T) {
			before := len(zones())
			d, err := Watch(x.b)
			if !errors.Is(err, x.want) {
				t.Fatalf("got %v, %v, want %v", d, err, x.want)
			}
			t.Log(err)
			if n := len(zones()); n != before {
				t.Fatalf("%d zones, want %d", n, before)
			}
			var u *driver.UnavailableError
			if x.want == driver.ErrUnsupported && (!errors.As(err, &u) || u.Remedy == "" || u.Err == nil) {
				t.Fatalf("no remedy or cause in %v", err)
			}
		})
	}
}

// Memory of another userfaultfd is refused; shared memory and memfds are not.
func TestWatchKindsOfMemory(t *testing.T) {
	other, err := openUffd()
	if err != nil {
		t.Skipf("needs userfaultfd: %v", err)
	}
	defer other.close()
	b := mapping(t, int(pageSize))
	lo, hi := span(b)
	if err := other.register(lo, hi); err != nil {
		t.Fatal(err)
	}
	if _, err := Watch(b); !errors.Is(err, unix.EBUSY) || !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("got %v, want EBUSY", err)
	}
	fd, err := unix.MemfdCreate("watched", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4*int64(pageSize)); err != nil {
		t.Fatal(err)
	}
	shared, err := unix.Mmap(fd, 0, 4*int(pageSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(shared)
	mustWatch(t, shared)
	d := newDMA(t)
	c := New(d, Config{})
	defer closeCache(t, c)
	for i, advice := range []int{unix.MADV_REMOVE, unix.MADV_DONTNEED, unix.MADV_REMOVE} {
		if err := d.receive(c, shared, byte(i)); err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(shared, advice); err != nil {
			t.Fatal(err)
		}
		if err := d.receive(c, shared, byte(i+10)); err != nil {
			t.Fatalf("after advice %d: %v", advice, err)
		}
	}
}

// When the descriptor fails, memory is registered per transfer, and no goroutine
// waits for events to be read.
func TestWatcherFails(t *testing.T) {
	dev := newDevice()
	c := newCache(t, dev, Config{})
	b := mapping(t, int(pageSize))
	w := mustWatch(t, b)
	mustAcquire(t, c, b, 1).Release()
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // always readable, never read
	if err != nil {
		t.Fatal(err)
	}
	broken := &uffd{dir}
	watch.mu.Lock()
	working := watch.uffd.Swap(broken)
	watch.mu.Unlock()
	defer func() { // w is closed: nothing is of broken any more
		watch.mu.Lock()
		watch.uffd.Store(working)
		watch.mu.Unlock()
	}()
	watch.follow(broken) // it returns because it cannot read
	if r := c.Lookup(b, 1); r != nil {
		t.Error("a hit on memory that is not watched")
		r.Release()
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Close(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("second close: %v, want ErrClosed", err)
	}
}

func TestExplanations(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS, unix.EINVAL, unix.EMFILE} {
		var u *driver.UnavailableError
		if err := noUffd(os.NewSyscallError("userfaultfd", errno)); !errors.As(err, &u) || u.Remedy == "" ||
			!errors.Is(err, errno) || !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%v: %v", errno, fmt.Sprint(err))
		}
	}
}
