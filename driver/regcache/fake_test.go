//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// device is a registrar that only keeps books.
type device struct {
	mu    sync.Mutex
	last  int
	live  map[int]span2 // by handle
	bytes uintptr
	peak  uintptr
	calls int
	tries []span2 // in Register, whether they failed or not

	fail   func(lo, hi uintptr) error // of Register, if not nil
	refuse func(h int) error          // of Deregister
	during func(lo, hi uintptr)       // called inside Register, without the lock
}

type span2 struct {
	lo, hi uintptr
	access Access
}

var errBooks = errors.New("deregistered what is not registered")

func newDevice() *device { return &device{live: make(map[int]span2)} }

func (d *device) Register(b []byte, access Access) (int, error) {
	lo, hi := span(b)
	d.mu.Lock()
	during := d.during
	d.mu.Unlock()
	if during != nil {
		during(lo, hi)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.tries = append(d.tries, span2{lo, hi, access})
	if d.fail != nil {
		if err := d.fail(lo, hi); err != nil {
			return 0, err
		}
	}
	d.last++
	d.live[d.last] = span2{lo, hi, access}
	d.bytes += hi - lo
	d.peak = max(d.peak, d.bytes)
	return d.last, nil
}

func (d *device) Deregister(h int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.live[h]
	if !ok {
		panic(errBooks)
	}
	if d.refuse != nil {
		if err := d.refuse(h); err != nil {
			return err
		}
	}
	delete(d.live, h)
	d.bytes -= s.hi - s.lo
	return nil
}

// check fails unless r is registered and covers b.
func (d *device) check(r *Region[int], b []byte, access Access) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	lo, hi := span(b)
	s, ok := d.live[r.Handle()]
	switch {
	case !ok:
		return fmt.Errorf("region of handle %d is not registered", r.Handle())
	case s.lo != r.Addr() || s.hi != r.Addr()+uintptr(r.Len()) || s.access != r.Access():
		return fmt.Errorf("region is [%#x +%d) for %d, registered is %+v", r.Addr(), r.Len(), r.Access(), s)
	case s.lo > lo || s.hi < hi || s.access&access != access:
		return fmt.Errorf("region %+v does not cover [%#x,%#x) for %d", s, lo, hi, access)
	}
	return nil
}

func (d *device) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}

// ranges returns what is registered, in order, as offsets from base.
func (d *device) ranges(base uintptr) [][2]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all [][2]int
	for _, s := range d.live {
		all = append(all, [2]int{int(s.lo - base), int(s.hi - base)})
	}
	slices.SortFunc(all, func(x, y [2]int) int { return slices.Compare(x[:], y[:]) })
	return all
}

func newArena(tb testing.TB, size int) *driver.Arena {
	tb.Helper()
	a, err := driver.NewArena(size)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close() })
	return a
}

// newCache makes a cache over d that must have nothing left in the end.
func newCache(tb testing.TB, d *device, cfg Config) *Cache[int] {
	tb.Helper()
	c := New(d, cfg)
	tb.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, driver.ErrClosed) {
			tb.Errorf("close: %v", err)
		}
		if n := d.count(); n != 0 {
			tb.Errorf("%d registrations are left", n)
		}
	})
	return c
}

func mustAcquire(tb testing.TB, c *Cache[int], b []byte, access Access) *Region[int] {
	tb.Helper()
	r, err := c.Acquire(b, access)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// slots are where mapping maps: far from where the kernel does by itself. So the
// Go runtime gets nothing there, and tests can unmap and map again.
var slots atomic.Int64

const (
	firstSlot = 0x5000_0000_0000
	slotSize  = 1 << 30
)

// mapping is anonymous memory, unmapped in the end. The addresses behind it are free.
func mapping(tb testing.TB, size int) []byte {
	tb.Helper()
	at := unsafe.Add(unsafe.Pointer(nil), firstSlot+slots.Add(1)*slotSize)
	p, err := unix.MmapPtr(-1, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.MunmapPtr(p, slotSize) })
	return unsafe.Slice((*byte)(p), size)
}
