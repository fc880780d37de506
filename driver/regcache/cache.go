package regcache

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// Access is a set of bits that limit the use of registered memory. The cache gives them no meaning, except that a
// registration with more bits serves a request for fewer.
type Access uint8

// Registrar registers memory with a device. Its methods are called by many
// goroutines at once, and from where memory goes (Arena.Close, the end of a
// declaration, the watcher): they must not call into this package or change
// mappings that are watched.
type Registrar[H any] interface {
	// Register makes b, which is never empty, available to the device. An
	// error with unix.ENOMEM or unix.ENOSPC in its chain makes the cache evict
	// and, if that freed anything, try once more.
	Register(b []byte, access Access) (H, error)

	// Deregister undoes Register: the device does not reach the memory any
	// more once it has returned nil. After an error the cache keeps the
	// memory pinned and tries again when memory is short, and in Close.
	Deregister(h H) error
}

// Config is the configuration of a cache. Zero values are defaults.
type Config struct {
	// Name is the driver and the device, for errors: "verbs mlx5_0".
	Name string

	// MaxBytes and MaxRegions are the budget: the least recently acquired regions that are not in use are deregistered
	// while more is registered. Regions in use never are, so that the budget can be exceeded; then regions go as soon as
	// they are released. Defaults: a quarter of the machine's memory, 65536 regions.
	MaxBytes   int64
	MaxRegions int
}

// prefetchQueue is how many prefetches may wait to be started.
const prefetchQueue = 64

func (cfg *Config) fill() {
	if cfg.Name == "" {
		cfg.Name = "regcache"
	}
	if cfg.MaxRegions <= 0 {
		cfg.MaxRegions = 1 << 16
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 1 << 30
		if total := totalMemory(); total > 0 {
			cfg.MaxBytes = total / 4
		}
	}
}

// Cache keeps registrations of one protection domain; H is the type of a registration's handle. Many goroutines may
// call all methods at once.
type Cache[H any] struct {
	// Read by hits, changed by misses.
	memo atomic.Pointer[memo[H]]
	sets atomic.Pointer[[]*set[H]] // those with the fewest access bits first
	_    [48]byte

	clock atomic.Uint64 // of the LRU: advances when another region is acquired than before
	_     [56]byte

	registrar Registrar[H]
	cfg       Config

	mu       sync.Mutex
	idle     *sync.Cond // busy became 0
	busy     int        // calls of the registrar that are under way or due, and the worker
	closed   bool       // Close was called
	gone     bool       // Close succeeded
	pending  []*pending[H]
	lru      lru[H]
	queue    []*job[H]
	working  bool
	arenas   map[uint64]func() // by id: cancels the hook at its Close
	stuck    []*Region[H]      // their Deregister failed
	stuckErr error
	total    Counters // without the hits in the regions of the index
}

// set is the regions of one access.
type set[H any] struct {
	access Access
	root   atomic.Pointer[index[H]]
}

// New makes a cache. Close it before the protection domain goes.
func New[H any](r Registrar[H], cfg Config) *Cache[H] {
	cfg.fill()
	c := &Cache[H]{registrar: r, cfg: cfg, arenas: make(map[uint64]func())}
	c.idle = sync.NewCond(&c.mu)
	c.memo.Store(newMemo[H](1))
	c.sets.Store(new([]*set[H]))
	join(c)
	return c
}

// Acquire returns a region that covers b with at least the given access, and a reference to it. When there is one
// already, it neither locks nor allocates nor calls the kernel. Otherwise it registers, which may take long, or blocks
// until another goroutine has registered the memory.
//
// Memory in an arena, declared by DeclareHeap or watched stays registered after
// Release; other memory is deregistered then, and pinned meanwhile if it is
// Go's. The memory must stay allocated until Release; an arena must be held by
// the caller.
//
// It fails with driver.ErrInvalid for an empty b, with driver.ErrClosed, or with the registrar's error.
func (c *Cache[H]) Acquire(b []byte, access Access) (*Region[H], error) {
	if r := c.Lookup(b, access); r != nil {
		return r, nil
	}
	return c.acquire(b, access)
}

// Lookup is Acquire for callers that must not block: it returns nil where Acquire would do more than find a region.
// Call Prefetch then.
func (c *Cache[H]) Lookup(b []byte, access Access) *Region[H] {
	if len(b) == 0 {
		return nil
	}
	lo, hi := span(b)
	slot := c.memo.Load().slot(lo, access)
	r := slot.Load()
	if r == nil || !r.hit(lo, hi, access) {
		r = c.find(lo, hi, access)
		if r == nil || !r.hit(lo, hi, access) {
			return nil
		}
		slot.Store(r)
	}
	c.touch(r)
	return r
}

// find looks for a region, first among those with the least access.
func (c *Cache[H]) find(lo, hi uintptr, access Access) *Region[H] {
	for _, s := range *c.sets.Load() {
		if s.access&access != access {
			continue
		}
		if r := s.root.Load().find(lo); r != nil && r.covers(lo, hi, access) {
			return r
		}
	}
	return nil
}

// touch makes r the most recently acquired one. Where it is already, nothing
// is written.
func (c *Cache[H]) touch(r *Region[H]) {
	if r.stamp.Load() != c.clock.Load() {
		r.stamp.Store(c.clock.Add(1))
	}
}

// Invalidate makes the cache forget all regions that overlap b: once it has
// returned, none of them is returned any more. Those not in use are
// deregistered, the others at their Release.
func (c *Cache[H]) Invalidate(b []byte) {
	if len(b) > 0 {
		c.drop(c.retireRange(span(b)))
	}
}

// Close deregisters everything. It blocks until background work is done; prefetches that were not started fail. From
// the first call on, nothing can be acquired. It fails with driver.ErrBusy while regions are in use: call it again when
// they are released; with the registrar's error if something could not be deregistered; with driver.ErrClosed after it
// succeeded.
func (c *Cache[H]) Close() error {
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return driver.ErrClosed
	}
	c.closed = true
	for _, j := range c.queue {
		j.finish(nil, c.closedError())
	}
	c.queue = nil
	c.settleLocked()
	victims := c.unstick()
	for _, s := range *c.sets.Load() {
		all := s.root.Load().touching(0, ^uintptr(0))
		if len(all) > 0 {
			victims = append(victims, c.retire(s, all)...)
		}
	}
	c.mu.Unlock()
	c.drop(victims)

	c.mu.Lock()
	c.settleLocked()
	var err error
	if n := c.total.Regions - len(c.stuck); n > 0 {
		err = fmt.Errorf("%s: close registration cache: %d regions are in use: %w", c.cfg.Name, n, driver.ErrBusy)
	}
	if len(c.stuck) > 0 {
		err = errors.Join(err, c.stuckErr)
	}
	c.gone = err == nil
	hooks := c.arenas
	if c.gone {
		c.arenas = nil
	}
	c.mu.Unlock()
	if err == nil {
		for _, cancel := range hooks {
			cancel()
		}
		leave(c)
	}
	return err
}

// settleLocked waits until nothing is under way.
func (c *Cache[H]) settleLocked() {
	for c.busy > 0 {
		c.idle.Wait()
	}
}

// rest ends n of what busy counts.
func (c *Cache[H]) rest(n int) {
	if c.busy -= n; c.busy == 0 {
		c.idle.Broadcast()
	}
}

func (c *Cache[H]) closedError() error {
	return fmt.Errorf("%s: registration cache: %w", c.cfg.Name, driver.ErrClosed)
}

// set returns the regions of an access. The lock is held.
func (c *Cache[H]) set(access Access) *set[H] {
	sets := *c.sets.Load()
	for _, s := range sets {
		if s.access == access {
			return s
		}
	}
	s := &set[H]{access: access}
	s.root.Store(new(index[H]))
	sets = append(slices.Clone(sets), s)
	slices.SortStableFunc(sets, func(x, y *set[H]) int {
		return bits.OnesCount8(uint8(x.access)) - bits.OnesCount8(uint8(y.access))
	})
	c.sets.Store(&sets)
	return s
}

func span(b []byte) (lo, hi uintptr) {
	lo = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return lo, lo + uintptr(len(b))
}
