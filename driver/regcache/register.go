package regcache

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// pending is a registration under way whose region will be cached. No two of them with the same access touch each
// other: a request for a touching one waits.
type pending[H any] struct {
	zone   zone
	set    *set[H]
	lo, hi uintptr
	gone   []*Region[H] // merged into it
	stale  bool         // its memory was invalidated meanwhile
	done   chan struct{}
}

// maxStale is how often an invalidation may come between before the memory is
// registered without caching it.
const maxStale = 4

var (
	errStale = errors.New("invalidated meanwhile")
	pageSize = uintptr(os.Getpagesize())
)

// acquire is Acquire after a miss.
func (c *Cache[H]) acquire(b []byte, access Access) (*Region[H], error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%s: register no bytes: %w", c.cfg.Name, driver.ErrInvalid)
	}
	missed := false
	for stale := 0; ; {
		settle()
		s := c.step(b, access, stale < maxStale, &missed)
		switch {
		case s.region != nil || s.err != nil:
			return s.region, s.err
		case s.wait != nil:
			<-s.wait
			continue
		case s.run != nil:
			c.run(s.run)
			continue
		case s.begun == nil:
			return c.transient(b, access)
		}
		c.drop(s.victims)
		r, err := c.complete(s.begun)
		switch {
		case err == nil:
			lo, _ := span(b)
			c.memo.Load().slot(lo, access).Store(r)
			return r, nil
		case err == errStale:
			stale++
		case s.begun.hi-s.begun.lo > uintptr(len(b)):
			return c.transient(b, access) // more was tried than asked for
		default:
			return nil, err
		}
	}
}

// step is what acquire is to do next.
type step[H any] struct {
	region  *Region[H] // found after all
	err     error
	wait    <-chan struct{} // another goroutine registers the memory, or some next to it
	run     *job[H]         // a prefetch of it was waiting, and this goroutine runs it now
	begun   *pending[H]     // to be completed; nil: register without caching
	victims []*Region[H]    // to be dropped before
}

func (c *Cache[H]) step(b []byte, access Access, caching bool, missed *bool) (s step[H]) {
	lo, hi := span(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		s.err = c.closedError()
		return s
	}
	if s.region = c.recheck(lo, hi, access); s.region != nil {
		return s
	}
	// The zone is looked up under the lock: a goroutine that withdraws it
	// afterwards will take the lock to invalidate, and then finds what begins here.
	z, cachable := zoneOf(b)
	if cachable && caching {
		if s.run = c.unqueue(lo, hi, access); s.run != nil {
			return s
		}
		p := c.plan(z, lo, hi, access)
		if s.wait = c.conflict(p, lo, hi); s.wait != nil {
			return s
		}
		if z.arena == nil || z.arena.Hold() { // not closed while it is registered
			c.grow(p, lo, hi)
			s.begun, s.victims = p, c.begin(p)
		}
	}
	if !*missed {
		*missed = true
		c.total.Misses++
	}
	return s
}

// recheck is Lookup with the lock held, after settle.
func (c *Cache[H]) recheck(lo, hi uintptr, access Access) *Region[H] {
	r := c.find(lo, hi, access)
	if r == nil {
		return nil
	}
	if r.state.Load()&manyHits != 0 {
		c.takeHits(r)
	}
	if !r.take() {
		return nil
	}
	c.touch(r)
	return r
}

// plan returns what to register so that [lo, hi) is: whole pages where that is
// safe, together with the regions that it touches.
func (c *Cache[H]) plan(z zone, lo, hi uintptr, access Access) *pending[H] {
	p := &pending[H]{zone: z, set: c.set(access), lo: lo, hi: hi}
	if z.kind != goHeap {
		p.lo = max(lo&^(pageSize-1), z.lo)
		p.hi = min((hi+pageSize-1)&^(pageSize-1), z.hi)
	}
	// Regions of one zone never touch each other; those of a neighbouring
	// zone may, and are left alone: memory is one allocation only within a
	// zone.
	for _, r := range p.set.root.Load().touching(p.lo, p.hi) {
		if z.lo <= r.lo && r.hi <= z.hi {
			p.gone = append(p.gone, r)
		}
	}
	if n := len(p.gone); n > 0 {
		p.lo, p.hi = min(p.lo, p.gone[0].lo), max(p.hi, p.gone[n-1].hi)
	}
	return p
}

// conflict returns what to wait for before p can begin, or nil.
func (c *Cache[H]) conflict(p *pending[H], lo, hi uintptr) <-chan struct{} {
	for _, q := range c.pending {
		touches := q.set == p.set && q.lo <= p.hi && p.lo <= q.hi
		serves := q.set.access&p.set.access == p.set.access && q.lo <= lo && hi <= q.hi
		if touches || serves {
			return q.done
		}
	}
	return nil
}

// grow takes in more of an arena, in the direction in which regions were
// merged, by half of what there is: else a series of buffers next to each
// other would register everything before it again with each. It stops a page
// before other regions, so that nothing is merged across a gap.
func (c *Cache[H]) grow(p *pending[H], lo, hi uintptr) {
	size := p.hi - p.lo
	if p.zone.kind != arenaMemory || len(p.gone) == 0 || int64(size+size/2) > c.cfg.MaxBytes {
		return
	}
	more := size / 2 &^ (pageSize - 1)
	if hi > p.gone[len(p.gone)-1].hi {
		end := min(p.hi+more, p.zone.hi)
		if near := c.neighbours(p, p.hi, end); len(near) > 0 {
			end = max(p.hi, near[0]-pageSize)
		}
		p.hi = end
	}
	if lo < p.gone[0].lo {
		start := max(p.lo-min(more, p.lo), p.zone.lo)
		if near := c.neighbours(p, start, p.lo); len(near) > 0 {
			start = min(p.lo, near[len(near)-1]+pageSize)
		}
		p.lo = start
	}
}

// neighbours returns the ends of what touches [lo, hi] and is not part of p,
// ascending.
func (c *Cache[H]) neighbours(p *pending[H], lo, hi uintptr) []uintptr {
	var ends []uintptr
	for _, r := range p.set.root.Load().touching(lo, hi) {
		if !slices.Contains(p.gone, r) {
			ends = append(ends, r.lo, r.hi)
		}
	}
	for _, q := range c.pending {
		if q.set == p.set && q.lo <= hi && lo <= q.hi {
			ends = append(ends, q.lo, q.hi)
		}
	}
	slices.Sort(ends)
	return ends
}

// begin commits to p. The regions that it replaces leave now, so that their memory is not registered twice where they
// are not in use; requests for them meanwhile wait for p.
func (c *Cache[H]) begin(p *pending[H]) (victims []*Region[H]) {
	c.total.Merged += uint64(len(p.gone))
	victims = c.retire(p.set, p.gone)
	c.reserve(p.hi - p.lo)
	p.done = make(chan struct{})
	c.pending = append(c.pending, p)
	c.busy++
	return append(victims, c.makeRoom()...)
}

// complete registers p and puts it into the index.
func (c *Cache[H]) complete(p *pending[H]) (*Region[H], error) {
	z := &p.zone
	if z.arena != nil {
		c.follow(z.arena)
		defer z.arena.Release()
	}
	r := &Region[H]{
		lo: p.lo, hi: p.hi, access: p.set.access, watched: z.kind == watchedMemory,
		cache: c, memory: &memory{arena: z.arena}, pos: -1,
	}
	if z.kind == goHeap {
		r.memory.pin.Pin(unsafe.SliceData(z.mem))
	}
	err := c.register(r, z.mem[p.lo-z.lo:p.hi-z.lo])

	c.mu.Lock()
	c.pending = slices.DeleteFunc(c.pending, func(q *pending[H]) bool { return q == p })
	close(p.done)
	if err != nil || p.stale || c.closed {
		c.unreserve(p.hi - p.lo)
		if err != nil {
			c.rest(1)
			r.memory.pin.Unpin()
		}
		c.mu.Unlock()
		if err == nil {
			c.drop([]*Region[H]{r}) // ends what begin made busy
			err = errStale
		}
		return nil, err
	}
	r.stamp.Store(c.clock.Add(1))
	if c.over() {
		r.state.Store(1 | parked)
	} else {
		r.state.Store(1)
		c.lru.add(r)
	}
	p.set.root.Store(p.set.root.Load().edit(nil, r))
	if n := c.total.Regions; 2*n > len(c.memo.Load().slots) && len(c.memo.Load().slots) < maxMemo {
		c.memo.Store(newMemo[H](2 * n))
	}
	c.rest(1)
	c.mu.Unlock()
	return r, nil
}

// transient returns a region of exactly b, registered for this one use and
// deregistered by Release.
func (c *Cache[H]) transient(b []byte, access Access) (*Region[H], error) {
	lo, hi := span(b)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, c.closedError()
	}
	c.reserve(hi - lo)
	c.busy++
	victims := c.makeRoom()
	c.mu.Unlock()
	c.drop(victims)

	r := &Region[H]{lo: lo, hi: hi, access: access, transient: true, cache: c, memory: new(memory), pos: -1}
	r.state.Store(1 | retired)
	r.memory.arena, _, _ = driver.ArenaOf(b)
	r.memory.pin.Pin(unsafe.SliceData(b)) // it accepts memory that is not Go's, too
	err := c.register(r, b)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest(1)
	if err != nil {
		c.unreserve(hi - lo)
		r.memory.pin.Unpin()
		return nil, err
	}
	return r, nil
}

// register calls the registrar, and once more after ENOMEM, or ENOSPC (a table of the device is full), if there was
// something to evict.
func (c *Cache[H]) register(r *Region[H], mem []byte) (err error) {
	r.handle, err = c.registrar.Register(mem, r.access)
	var needed uintptr
	switch {
	case errors.Is(err, syscall.ENOMEM):
		needed = r.hi - r.lo
	case errors.Is(err, syscall.ENOSPC):
		needed = 1 // any region takes an entry
	}
	if needed > 0 && c.relieve(needed) {
		r.handle, err = c.registrar.Register(mem, r.access)
	}
	if err == nil {
		return nil
	}
	remedy := ""
	if errors.Is(err, syscall.ENOMEM) {
		remedy = " (raise the limit of locked memory: ulimit -l; or lower the budget of the cache)"
	}
	return fmt.Errorf("%s: register %d bytes at %#x: %w%s", c.cfg.Name, len(mem), r.lo, err, remedy)
}

// follow has the arena's regions forgotten when it is closed. The caller holds
// the arena.
func (c *Cache[H]) follow(a *driver.Arena) {
	c.mu.Lock()
	_, known := c.arenas[a.ID()]
	c.mu.Unlock()
	if known {
		return
	}
	lo, hi := span(a.Bytes())
	cancel := a.AtClose(func() {
		victims := c.retireRange(lo, hi)
		c.mu.Lock()
		delete(c.arenas, a.ID())
		c.mu.Unlock()
		c.drop(victims)
	})
	c.mu.Lock()
	if _, known = c.arenas[a.ID()]; !known {
		c.arenas[a.ID()] = cancel
	}
	c.mu.Unlock()
	if known {
		cancel()
	}
}
