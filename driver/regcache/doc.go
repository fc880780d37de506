// Package regcache caches memory registrations. A device can only reach memory
// that was registered with it, which pins its pages and takes from some
// microseconds to milliseconds; so drivers keep registrations after use, in the
// hope that the same memory is sent from or received into again.
//
// It knows no device: a driver gives each [Cache] a [Registrar], and makes one
// for each protection domain.
//
//	c := regcache.New(registrar, regcache.Config{Name: "verbs mlx5_0"})
//	r, err := c.Acquire(buf, access) // a hit takes some 20 ns
//	post(r.Handle(), buf)
//	r.Release()                      // when the device is done with it
//
// # What is cached
//
// A registration must not outlive what the program sees at its addresses: if the
// pages there are replaced, the device goes on with the old ones, and data is
// lost silently. So it is only kept for memory of which that would be known:
//
//	memory                    after Release               why it cannot be stale
//	in a driver.Arena         kept, in whole pages        its Close invalidates
//	declared by DeclareHeap   kept                        pinned: the collector cannot free it
//	watched, see Watch        kept, in whole pages        userfaultfd tells what becomes of it
//	everything else           deregistered                (pinned meanwhile, if it is Go's)
//
// Go memory cannot be told from other memory (runtime.Pinner accepts both), so
// it has to be declared. Whatever else changes a mapping can be told to a cache
// by Invalidate.
//
// # Regions
//
// A request that lies in a registered region with at least its access is a hit.
// One that touches or overlaps regions of the same access is merged with them:
// one bigger region is registered, and the old ones go when their last reference
// does. Memory that lies between regions and was not asked for is never
// registered to join them. In arenas a merged region takes in up to half of its
// size more behind the new end, short of the next region, as a series of
// buffers next to each other would else cost time that grows with its square.
// Elsewhere ask for (or Prefetch) the whole of what will be used in pieces.
//
// Regions are counted: those in use are never evicted. The budget is kept by
// evicting those that were acquired the longest time ago; where all are in use
// it is exceeded, and regions go as they are released. When the registrar says
// ENOMEM, as much as is needed is evicted, and it is asked once more.
//
// # Cost
//
// A hit takes no lock, makes no system call and does not allocate. Regions are
// found in two steps. A memo, which works like the TLB of a processor, knows
// which region served the last request that started in a page: mostly that is
// it. Else a sorted two-level index is searched; it is never changed but
// replaced, so that readers need no lock. What the memo says is believed as far
// as the region confirms it. References, flags and the number of hits of a
// region are one word, so that to take one is a single compare-and-swap; a
// region is one cache line. Acquire and Release together, on one core of a
// 2-core virtual machine (AMD EPYC), with 100 000 regions: 18 ns the same memory
// again, 70 ns uniformly at random. The benchmarks print the table over the number
// of regions, which stands in docs/performance.md.
//
// The order of eviction is exact: a shared clock advances when another region is
// acquired than the last time. The heap that knows the oldest one is brought up
// to date by evictions, not by hits.
//
// # Prefetch
//
// Prefetch registers in the background, and Fetch.TryAcquire asks whether it is
// there: so a driver whose posts must not block calls Lookup, and on a miss
// Prefetch. An Acquire of the same memory joins what is under way. To pipeline
// the transfer of a cold buffer with its registration, prefetch it in parts.
package regcache
