package driver

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Arena is page-aligned memory outside the Go heap, which the garbage
// collector neither frees nor scans and which drivers register, or map into a
// peer, once. Fast programs use it for long messages and for one-sided
// access.
//
// It is a memfd (Linux 3.17) sealed against shrinking and growing, so that a
// peer that maps it cannot be made to fault. Its pages are allocated at first
// touch and count as shared memory of this process. It must not hold Go
// pointers.
type Arena struct {
	id    uint64
	fd    int
	mem   []byte
	mu    sync.Mutex
	next  int
	gone  bool
	users atomic.Int64
	hooks map[int]func()
	hook  int
}

var arenas struct {
	sync.Mutex
	lastID uint64
	sorted atomic.Pointer[[]*Arena] // by address; never changed in place
}

// NewArena makes an arena of size bytes, rounded up to whole pages. Errors:
// ErrInvalid for a size that is not positive, else the kernel's, with a remedy.
// Transparent huge pages are asked for where the machine offers them for
// shared memory.
func NewArena(size int) (*Arena, error) {
	if size <= 0 || int64(size) > 1<<46 {
		return nil, fmt.Errorf("%w: arena of %d bytes", ErrInvalid, size)
	}
	page := os.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	a := new(Arena)
	if err := a.create(size); err != nil {
		return nil, fmt.Errorf("create arena of %d bytes: %w", size, err)
	}

	arenas.Lock()
	defer arenas.Unlock()
	arenas.lastID++
	a.id = arenas.lastID
	list := append(slices.Clone(arenaList()), a)
	slices.SortFunc(list, func(x, y *Arena) int { return cmp.Compare(x.addr(), y.addr()) })
	arenas.sorted.Store(&list)
	return a, nil
}

// Bytes is the whole arena.
func (a *Arena) Bytes() []byte { return a.mem }

// Alloc hands out n bytes that no other caller has got, aligned to a cache line,
// or to a page if n is at least a page. nil when the arena is full. It can be
// called from any goroutine. There is no free: make an arena for things that
// live as long as it does.
func (a *Arena) Alloc(n int) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	align := 64
	if page := os.Getpagesize(); n >= page {
		align = page
	}
	start := (a.next + align - 1) &^ (align - 1)
	if n < 0 || a.gone || start > len(a.mem) || n > len(a.mem)-start {
		return nil
	}
	a.next = start + n
	return a.mem[start : start+n : start+n]
}

// Hold keeps the memory mapped until as many calls of Release; drivers hold
// an arena while a packet or a region lies in it. It fails on a closed arena.
func (a *Arena) Hold() bool {
	for {
		n := a.users.Load()
		if n < 0 {
			return false
		}
		if a.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release undoes Hold.
func (a *Arena) Release() { a.users.Add(-1) }

// closedArena marks users of a closed arena: below any count.
const closedArena = -1 << 62

// Close unmaps the arena. ErrBusy while drivers hold it: regions are registered
// in it, or packets posted that a peer or a device reaches; ErrClosed the second
// time. Slices of it are invalid afterwards: touching them faults, so that
// packets which the caller's own polls copy (those of a small track) must be
// done before. What peers have mapped stays with them and
// is not memory of this process any more.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return ErrClosed
	}
	if !a.users.CompareAndSwap(0, closedArena) {
		return fmt.Errorf("close arena: packets or regions use it: %w", ErrBusy)
	}
	a.gone = true
	for _, f := range a.hooks {
		f()
	}
	a.hooks = nil
	arenas.Lock()
	list := slices.DeleteFunc(slices.Clone(arenaList()), func(x *Arena) bool { return x == a })
	arenas.sorted.Store(&list)
	arenas.Unlock()
	return a.destroy()
}

// AtClose has f called when the arena is closed, unless cancel was called
// before. Drivers use it to make peers unmap what they have mapped. f must
// not block and must not use the arena.
func (a *Arena) AtClose(f func()) (cancel func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hooks == nil {
		a.hooks = make(map[int]func())
	}
	n := a.hook
	a.hook++
	a.hooks[n] = f
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.hooks, n)
	}
}

// ID is unique in this process and never reused.
func (a *Arena) ID() uint64 { return a.id }

// FD is the memfd, for drivers that pass it to a peer. It is valid while the
// arena is held.
func (a *Arena) FD() int { return a.fd }

func (a *Arena) addr() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))) }

func arenaList() []*Arena {
	if l := arenas.sorted.Load(); l != nil {
		return *l
	}
	return nil
}

// ArenaOf finds the arena that b lies in, as a whole, and where. It takes no
// lock and does not allocate. An empty b lies in none.
func ArenaOf(b []byte) (a *Arena, offset int, ok bool) {
	list := arenaList()
	if len(list) == 0 || len(b) == 0 {
		return nil, 0, false
	}
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	lo, hi := 0, len(list) // the first arena that starts after p
	for lo < hi {
		m := int(uint(lo+hi) / 2)
		if list[m].addr() <= p {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 {
		return nil, 0, false
	}
	a = list[lo-1]
	off := p - a.addr()
	if off >= uintptr(len(a.mem)) || uintptr(len(b)) > uintptr(len(a.mem))-off {
		return nil, 0, false
	}
	return a, int(off), true
}
