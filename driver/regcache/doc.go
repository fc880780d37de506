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
//	watched, see Watch        kept, in whole pages        userfaultfd reports changes of it
//	everything else           deregistered                (pinned meanwhile, if it is Go's)
//
// # Why registered Go memory stays
//
// The invariant: from the return of [Registrar].Register to the nil of Deregister, every byte of a region is at the
// same address, in the page frame that the device has, and belongs to nothing else. For Go memory it holds for these
// reasons:
//
//   - A Region holds a runtime.Pinner, which pins before Register and unpins after Deregister returned nil. A Pinner
//     keeps its own pointer to the object, so the collector finds the object reachable as long as the Region is; and if
//     a Region is dropped without Release, the runtime panics ("found leaking pinned pointer") instead of freeing the
//     memory.
//   - A pointer into the middle of an object keeps the whole object: marking works on objects. A slice that Go made
//     lies in one object, so its first byte pins all of it.
//   - Go's collector does not move heap objects, pinned or not. Should a later one do so, it has to leave pinned ones.
//   - The runtime gives pages back to the kernel (scavenging) only of spans without objects. A page of a live object
//     stays mapped. The registration itself pins the frame in the kernel, so that swapping, compaction and huge page
//     collapse leave it alone; after fork the child gets copies.
//   - A variable on a goroutine's stack would move when the stack grows, and Pinner.Pin accepts its address without an
//     error and without effect. It cannot come here: Acquire hands the slice to an interface method and to Pin, so that
//     escape analysis puts every variable whose slice reaches a cache on the heap. Code that hides a stack address from
//     the compiler (uintptr, noescape) must not pass it to Acquire.
//   - Pin has no effect on globals, read-only data, memory of C or mappings either. Globals never move or go. Memory
//     that the program mapped stays only if the program keeps it until Release, which Acquire asks for.
//   - Objects of the experimental arena package make Pin panic.
//
// TestPinnedMemoryStays, TestInteriorPointerKeepsTheObject, TestPinnerDoesNotHoldStacks and
// TestHeapMemoryIsKeptWhileRegistered check this on a device that writes into pinned pages (io_uring). The last one
// failed once, in a virtual machine whose hypervisor takes free pages back, and never again. When it fails it names the
// cause from the bytes, the collector's view of the object and the page frames: a pinning bug, a page that the kernel
// replaced, or one whose frame stayed and whose bytes went, which only the hypervisor can do.
//
// # Why Go memory is declared
//
// Go memory cannot be distinguished from other memory (runtime.Pinner accepts both), so it has to be declared. A
// driver reports other changes of a mapping to its cache by Invalidate.
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
// it is exceeded, and regions go as they are released. When the registrar returns
// ENOMEM or ENOSPC, as much as is needed is evicted, and it is called once more.
//
// # Cost
//
// A hit takes no lock, makes no system call (but a short one on watched memory) and does not allocate. Regions are
// found in two steps. A memo, which works like the TLB of a processor, knows which region served the last request that
// started in a page: mostly that is it. Else a sorted two-level index is searched; it is never changed but replaced, so
// that readers need no lock. The region itself confirms the result of the memo. References, flags and the number of
// hits of a region are one word, so that to take one is a single compare-and-swap; a region is one cache line. Acquire
// and Release together, on one core of a 2-core virtual machine (AMD EPYC), with 100 000 regions: 18 ns the same memory
// again, 70 ns uniformly at random. The benchmarks print the table of docs/performance.md over the number of regions.
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
// the transfer of an unregistered buffer with its registration, prefetch it in parts.
package regcache
