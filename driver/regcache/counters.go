package regcache

// Counters are totals since the cache was made, and what it holds now.
type Counters struct {
	Hits        uint64 // requests that found a region
	Misses      uint64 // requests that had to register
	Merged      uint64 // regions that went because a bigger one took their place
	Evicted     uint64 // regions that went for the budget, or because memory was short
	Invalidated uint64 // regions that went because their memory did
	Retries     uint64 // registrations tried again after ENOMEM or ENOSPC and eviction
	Failures    uint64 // deregistrations that failed
	Regions     int    // registered now, or about to be
	Bytes       int64  // covered by them
}

// Counters returns the counters. It visits every region: some ten ns for each.
func (c *Cache[H]) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := c.total
	for _, s := range *c.sets.Load() {
		for _, l := range s.root.Load().leaves {
			for _, r := range l.regions {
				total.Hits += r.state.Load() >> hitShift
			}
		}
	}
	return total
}

// takeHits moves the hits of a region to the total.
func (c *Cache[H]) takeHits(r *Region[H]) {
	hits := r.state.Load() >> hitShift
	r.state.Add(-(hits << hitShift))
	c.total.Hits += hits
}
