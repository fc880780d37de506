package regcache

import "fmt"

// The lock is held by the callers of all but retireRange, drop, released and
// relieve.

func (c *Cache[H]) reserve(bytes uintptr) {
	c.total.Bytes += int64(bytes)
	c.total.Regions++
}

func (c *Cache[H]) unreserve(bytes uintptr) {
	c.total.Bytes -= int64(bytes)
	c.total.Regions--
}

func (c *Cache[H]) over() bool {
	return c.total.Bytes > c.cfg.MaxBytes || c.total.Regions > c.cfg.MaxRegions
}

// makeRoom evicts until the budget is kept. If that cannot be, then every cached
// region is in use and parked when it returns, so that its release will look at
// the budget again. The caller drops what it returns.
func (c *Cache[H]) makeRoom() (victims []*Region[H]) {
	for c.over() {
		r := c.evict()
		if r == nil {
			break
		}
		victims = append(victims, r)
	}
	return victims
}

// evict makes the least recently used region leave; nil if all are in use.
func (c *Cache[H]) evict() *Region[H] {
	r := c.lru.evict()
	if r == nil {
		return nil
	}
	s := c.set(r.access)
	s.root.Store(s.root.Load().edit([]*Region[H]{r}, nil))
	c.total.Evicted++
	c.prepareDrop(r)
	return r
}

// retire makes regions, neighbours in s, leave. Those not in use are returned,
// for the caller to drop.
func (c *Cache[H]) retire(s *set[H], regions []*Region[H]) (victims []*Region[H]) {
	if len(regions) == 0 {
		return nil
	}
	s.root.Store(s.root.Load().edit(regions, nil))
	for _, r := range regions {
		c.lru.remove(r)
		if old := r.state.Or(retired); old&countMask == 0 {
			c.prepareDrop(r)
			victims = append(victims, r)
		} else {
			c.forget(r)
		}
	}
	return victims
}

// retireRange makes all regions that overlap [lo, hi) leave.
func (c *Cache[H]) retireRange(lo, hi uintptr) (victims []*Region[H]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pending {
		if p.lo < hi && lo < p.hi {
			p.stale = true
		}
	}
	for _, s := range *c.sets.Load() {
		gone := s.root.Load().overlapping(lo, hi)
		c.total.Invalidated += uint64(len(gone))
		victims = append(victims, c.retire(s, gone)...)
	}
	return victims
}

// forget takes what belongs to the cache from a region that is retired.
func (c *Cache[H]) forget(r *Region[H]) {
	c.takeHits(r)
	c.memo.Load().forget(r)
}

// prepareDrop is forget for a region that will be dropped.
func (c *Cache[H]) prepareDrop(r *Region[H]) {
	c.forget(r)
	c.unreserve(r.hi - r.lo)
	c.busy++
}

// drop deregisters regions that are retired and not in use, and counted as
// busy.
func (c *Cache[H]) drop(victims []*Region[H]) {
	if len(victims) == 0 {
		return
	}
	var stuck []*Region[H]
	var cause error
	for _, r := range victims {
		if err := c.registrar.Deregister(r.handle); err != nil {
			cause = fmt.Errorf("%s: deregister %d bytes at %#x: %w", c.cfg.Name, r.Len(), r.lo, err)
			stuck = append(stuck, r)
			continue
		}
		r.memory.pin.Unpin()
	}
	c.mu.Lock()
	for _, r := range stuck {
		c.reserve(r.hi - r.lo)
		c.stuck = append(c.stuck, r)
		c.stuckErr = cause
		c.total.Failures++
	}
	c.rest(len(victims))
	c.mu.Unlock()
}

// unstick returns the regions that could not be deregistered, to be dropped
// again.
func (c *Cache[H]) unstick() []*Region[H] {
	victims := c.stuck
	c.stuck = nil
	for _, r := range victims {
		c.unreserve(r.hi - r.lo)
		c.busy++
	}
	return victims
}

// released is called when the last reference of a flagged region went; s is its
// state at that moment.
func (c *Cache[H]) released(r *Region[H], s uint64) {
	var victims []*Region[H]
	c.mu.Lock()
	if s&retired != 0 {
		c.unreserve(r.hi - r.lo)
		c.busy++
		victims = []*Region[H]{r}
	} else if now := r.state.Load(); now&(retired|countMask) == 0 && now&parked != 0 {
		r.state.And(^parked)
		c.lru.add(r)
		victims = c.makeRoom()
	}
	c.mu.Unlock()
	c.drop(victims)
}

// relieve frees what it can after ENOMEM or ENOSPC, the least recently used first, until
// as much is free as is needed. It reports whether it freed anything.
func (c *Cache[H]) relieve(need uintptr) bool {
	c.mu.Lock()
	victims := c.unstick()
	freed := uintptr(0)
	for _, r := range victims {
		freed += r.hi - r.lo
	}
	for freed < need {
		r := c.evict()
		if r == nil {
			break
		}
		freed += r.hi - r.lo
		victims = append(victims, r)
	}
	if freed > 0 {
		c.total.Retries++
	}
	c.mu.Unlock()
	c.drop(victims)
	return freed > 0
}
