//go:build linux && !(386 || arm || mips || mipsle)

package driver_test

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func newArena(t testing.TB, size int) *driver.Arena {
	t.Helper()
	a, err := driver.NewArena(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func TestArenaSizes(t *testing.T) {
	for _, n := range []int{0, -1, 1<<46 + 1, -1 << 63} {
		if _, err := driver.NewArena(n); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("arena of %d bytes: got %v, want %v", n, err, driver.ErrInvalid)
		}
	}
	page := os.Getpagesize()
	for _, n := range []int{1, page - 1, page, page + 1} {
		if got, want := len(newArena(t, n).Bytes()), (n+page-1)/page*page; got != want {
			t.Errorf("arena of %d bytes has %d, want %d", n, got, want)
		}
	}
}

func TestArenaCannotBeResizedByPeers(t *testing.T) {
	a := newArena(t, 1<<16)
	for _, n := range []int64{0, 1 << 15, 1 << 17} {
		if err := unix.Ftruncate(a.FD(), n); !errors.Is(err, unix.EPERM) {
			t.Errorf("ftruncate to %d: got %v, want %v", n, err, unix.EPERM)
		}
	}
}

func TestArenaAllocations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, err := driver.NewArena(1 << 18)
		if err != nil {
			rt.Fatal(err)
		}
		defer a.Close()
		page := os.Getpagesize()
		end := 0 // of the last piece: they are handed out in order
		for _, n := range rapid.SliceOf(rapid.IntRange(-2, 3*page)).Draw(rt, "sizes") {
			b := a.Alloc(n)
			if b == nil {
				continue
			}
			align := 64
			if n >= page {
				align = page
			}
			if len(b) != n || cap(b) != n || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(align) != 0 {
				rt.Fatalf("Alloc(%d): length %d, capacity %d, address %p; want alignment %d", n, len(b), cap(b), b, align)
			}
			if n == 0 {
				continue
			}
			of, off, ok := driver.ArenaOf(b)
			if !ok || of != a || off < end {
				rt.Fatalf("Alloc(%d) lies at %d, %v; earlier pieces end at %d", n, off, ok, end)
			}
			end = off + n
		}
	})
	if b := newArena(t, 1).Alloc(1 << 20); b != nil {
		t.Errorf("a full arena hands out %d bytes", len(b))
	}
}

func TestArenaAllocIsForManyGoroutines(t *testing.T) {
	const goroutines, pieces = 8, 100
	a := newArena(t, goroutines*pieces*64)
	var mu sync.Mutex
	var starts []int
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range pieces {
				_, off, ok := driver.ArenaOf(a.Alloc(64))
				if !ok {
					t.Error("no memory, or not in the arena")
					return
				}
				mu.Lock()
				starts = append(starts, off)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(starts)
	if got := len(slices.Compact(starts)); got != goroutines*pieces {
		t.Errorf("%d pieces, want %d", got, goroutines*pieces)
	}
}

func TestArenaOf(t *testing.T) {
	var all []*driver.Arena
	for range 20 {
		all = append(all, newArena(t, 3<<12))
	}
	for _, a := range all {
		b := a.Bytes()
		for _, r := range [][2]int{{0, len(b)}, {0, 1}, {len(b) - 1, len(b)}, {5000, 9000}} {
			of, off, ok := driver.ArenaOf(b[r[0]:r[1]])
			if of != a || off != r[0] || !ok {
				t.Errorf("bytes %d to %d: found %v at %d, want at %d", r[0], r[1], ok, off, r[0])
			}
		}
	}
	over := unsafe.Slice(unsafe.SliceData(all[0].Bytes()), len(all[0].Bytes())+1)
	for name, b := range map[string][]byte{"heap": make([]byte, 10), "nil": nil, "empty": all[0].Bytes()[:0], "beyond the end": over} {
		if _, _, ok := driver.ArenaOf(b); ok {
			t.Errorf("%s memory lies in an arena", name)
		}
	}
	b := all[3].Bytes()[100:200]
	if n := testing.AllocsPerRun(100, func() { driver.ArenaOf(b) }); n != 0 {
		t.Errorf("ArenaOf allocates %v times, want 0", n)
	}
}

func TestArenaClose(t *testing.T) {
	a, err := driver.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	id := a.ID()
	for range 2 {
		if !a.Hold() {
			t.Fatal("Hold fails on an open arena")
		}
	}
	for range 2 {
		if err := a.Close(); !errors.Is(err, driver.ErrBusy) {
			t.Errorf("close while held: got %v, want %v", err, driver.ErrBusy)
		}
		a.Release()
	}
	if err := a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := a.Close(); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("second close: got %v, want %v", err, driver.ErrClosed)
	}
	if a.Hold() || a.Alloc(1) != nil {
		t.Error("a closed arena can be used")
	}
	if newArena(t, 1).ID() == id {
		t.Error("an id is used again")
	}
}
