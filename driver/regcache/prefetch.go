package regcache

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Fetch is a registration that Prefetch started. The zero value is none. It is
// used by one goroutine at a time, must not be copied while it is active, and
// ends by a successful Acquire or TryAcquire, by an error of theirs, or by
// Cancel.
type Fetch[H any] struct {
	cache  *Cache[H]
	b      []byte
	access Access
	region *Region[H] // with a reference, or
	job    *job[H]    // not done when last looked at
}

// job is a prefetch that found no region. Its fields are guarded by the cache's
// lock, and constant once done is closed.
type job[H any] struct {
	b        []byte
	access   Access
	canceled bool // no goroutine waits for the outcome any more
	region   *Region[H]
	err      error
	finished atomic.Bool
	done     chan struct{}
}

// Prefetch starts what Acquire would do, in the background, and never blocks.
// Where the region is there already, it is taken and nothing is allocated. The
// memory must stay allocated until the fetch has ended.
//
// Errors: driver.ErrBusy when 64 are waiting: do without;
// driver.ErrInvalid for an empty b; driver.ErrClosed. The registrar's come with
// TryAcquire and Acquire, and driver.ErrBusy where the budget has no room.
func (c *Cache[H]) Prefetch(b []byte, access Access) (Fetch[H], error) {
	f := Fetch[H]{cache: c, b: b, access: access}
	if f.region = c.Lookup(b, access); f.region != nil {
		return f, nil
	}
	if len(b) == 0 {
		return Fetch[H]{}, fmt.Errorf("%s: register no bytes: %w", c.cfg.Name, driver.ErrInvalid)
	}
	f.job = &job[H]{b: b, access: access, done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Fetch[H]{}, c.closedError()
	}
	if len(c.queue) >= prefetchQueue {
		return Fetch[H]{}, driver.ErrBusy
	}
	c.queue = append(c.queue, f.job)
	if !c.working {
		c.working = true
		c.busy++
		go c.work()
	}
	return f, nil
}

// work runs jobs until there are none.
func (c *Cache[H]) work() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.working = false
			c.rest(1)
			c.mu.Unlock()
			return
		}
		j := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		c.mu.Unlock()
		c.run(j)
	}
}

// run does a job that was taken from the queue.
func (c *Cache[H]) run(j *job[H]) {
	var r *Region[H]
	err := driver.ErrBusy
	if c.roomAhead(len(j.b)) {
		r, err = c.acquire(j.b, j.access)
	}
	c.mu.Lock()
	canceled := j.canceled
	if !canceled {
		j.finish(r, err)
	}
	c.mu.Unlock()
	if canceled && r != nil {
		r.Release()
	}
}

// roomAhead evicts until a prefetch of n bytes keeps the budget. False if it cannot: what may not be needed does not
// exceed the budget.
func (c *Cache[H]) roomAhead(n int) bool {
	if int64(n) > c.cfg.MaxBytes {
		return false
	}
	c.mu.Lock()
	var victims []*Region[H]
	for c.total.Bytes+int64(n) > c.cfg.MaxBytes {
		r := c.evict()
		if r == nil {
			break
		}
		victims = append(victims, r)
	}
	fits := c.total.Bytes+int64(n) <= c.cfg.MaxBytes
	c.mu.Unlock()
	c.drop(victims)
	return fits
}

// finish publishes the outcome. The lock is held.
func (j *job[H]) finish(r *Region[H], err error) {
	j.region, j.err = r, err
	j.finished.Store(true)
	close(j.done)
}

// unqueue takes the first job that would serve the request from the queue. The
// lock is held.
func (c *Cache[H]) unqueue(lo, hi uintptr, access Access) *job[H] {
	for i, j := range c.queue {
		if first, last := span(j.b); first <= lo && hi <= last && j.access&access == access {
			c.queue = slices.Delete(c.queue, i, i+1)
			return j
		}
	}
	return nil
}

// Active reports whether there is a fetch that has not ended.
func (f *Fetch[H]) Active() bool { return f.cache != nil }

// TryAcquire ends the fetch if its region is there, and passes the reference
// to the caller: done is true. It also is with an error, that of Acquire. It
// never registers, so that it never blocks for long; when the region was
// invalidated or merged since, another one is looked up or fetched, which can
// be refused with driver.ErrBusy.
func (f *Fetch[H]) TryAcquire() (r *Region[H], done bool, err error) {
	if f.job != nil {
		if !f.job.finished.Load() {
			return nil, false, nil
		}
		f.region, err = f.job.region, f.job.err
		f.job = nil
	}
	if err == nil && f.region == nil {
		err = fmt.Errorf("Acquire of a Fetch that was not started: %w", driver.ErrInvalid)
	}
	if err != nil {
		*f = Fetch[H]{}
		return nil, true, err
	}
	if r = f.region; r.fresh() {
		*f = Fetch[H]{}
		return r, true, nil
	}
	again, err := f.cache.Prefetch(f.b, f.access)
	r.Release()
	*f = again
	return nil, err != nil, err
}

// Acquire ends the fetch and returns its region, as Cache.Acquire would. It
// waits for the registration if it is under way, and does it itself if it is
// still queued.
func (f *Fetch[H]) Acquire() (*Region[H], error) {
	c, b, access := f.cache, f.b, f.access
	if c == nil {
		return nil, fmt.Errorf("Acquire of a Fetch that was not started: %w", driver.ErrInvalid)
	}
	if j := f.job; j != nil {
		if c.withdrawJob(j) {
			*f = Fetch[H]{}
			return c.acquire(b, access)
		}
		<-j.done
		f.job, f.region = nil, j.region
		if j.err != nil {
			*f = Fetch[H]{}
			if j.err == driver.ErrBusy { // too much to prefetch, but now it is needed
				return c.acquire(b, access)
			}
			return nil, j.err
		}
	}
	r := f.region
	*f = Fetch[H]{}
	if r.fresh() {
		return r, nil
	}
	r.Release()
	return c.Acquire(b, access)
}

// AcquireFrom ends the fetch, if there is one, and returns its region. Otherwise, or if the fetch has failed, it is
// Cache.Acquire of b, which may be the beginning of the fetch's memory.
func (f *Fetch[H]) AcquireFrom(c *Cache[H], b []byte, access Access) (*Region[H], error) {
	if f.Active() {
		if r, err := f.Acquire(); err == nil {
			return r, nil
		}
	}
	return c.Acquire(b, access)
}

// Cancel ends the fetch without waiting for a registration. One that was not started never is; one under way is undone
// when it is there. A region that is there is released as by Release. Cancel does nothing if there is no fetch.
func (f *Fetch[H]) Cancel() {
	c, j, r := f.cache, f.job, f.region
	*f = Fetch[H]{}
	if j != nil && !c.withdrawJob(j) {
		c.mu.Lock()
		j.canceled = true
		r = j.region // nil unless it is finished
		c.mu.Unlock()
	}
	if r != nil {
		r.Release()
	}
}

// withdrawJob takes a job from the queue; false if it is not there any more.
func (c *Cache[H]) withdrawJob(j *job[H]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.queue, j)
	if i < 0 {
		return false
	}
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

// fresh reports whether a region that is held may still be used for its memory.
// As in hit, the epoch comes first.
func (r *Region[H]) fresh() bool {
	if r.transient {
		return true
	}
	if r.watched && watch.epoch.Load()&1 != 0 {
		return false
	}
	return r.state.Load()&retired == 0
}
