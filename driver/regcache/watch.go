package regcache

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// The watcher invalidates registrations of memory whose mapping goes, so that
// the cache never gives out one that leads to pages which the program does not
// see any more.
//
// The kernel blocks the thread that unmaps until its event was read, not until
// it was acted upon. So the thread can be back, have something new mapped at the
// same address and ask for its registration while the watcher still holds the
// event in its hands. And while the thread is blocked the addresses are free: another
// thread, which knows nothing of it, can have got them. The kernel counts such
// calls, from before they change a mapping until they return. Therefore:
//
//	watcher                              hit
//	W1  epoch++ (odd)                    H0  ask the kernel; such a call: no hit
//	W2  read events                      H1  load epoch; odd: no hit
//	W3  withdraw zones, retire regions   H2  load state; retired: no hit
//	W4  epoch++ (even)                   H3  compare-and-swap state, +1 reference
//
// Claim: a hit that starts after a mapping has been changed never returns a
// region of the old mapping. Proof: the call has returned at H0, thus after W2 had
// read its event, so H1 comes after the W1 before that. If H1 sees the epoch odd, there
// is no hit. If it sees it even, it sees the W4 that belongs to that W1, or a
// later one, so H2 comes after W3 and sees the region retired. Should it become
// retired between H2 and H3, H3 fails. (All these are sequentially consistent
// atomics, and the kernel orders the read of the event before the return of the
// call.) It is essential that H1 comes before H2: looked at afterwards, the epoch
// could have become even with the region retired in between.
//
// A miss waits until no such call is under way and the epoch is even (settle), and then works under the
// cache's lock, which W3 takes too: a registration that began before is marked
// stale there and never enters the index, one that begins later finds its zone
// withdrawn.
//
// All this is about calls in order. A program that acquires memory in one
// goroutine while another one is unmapping or discarding the same memory has a
// race of its own, as if it wrote there; after MADV_DONTNEED, of which the event
// comes before the pages go, the region acquired meanwhile could stay in the
// cache.
//
// Fork: no fork events are asked for, so that a child's copies of the mappings
// are not watched and its unmapping does not wait for us. The parent keeps the
// pages that are registered, as the kernel copies pinned pages for the child
// (Linux 5.12 and later).
type watcher struct {
	epoch atomic.Uint64 // odd: events are being read and acted upon
	_     [56]byte

	mu sync.Mutex // held while the epoch is odd, and to change watched zones

	// From the first Watch on: mappings that are not watched any more can still
	// be its, like the far end of what moved and grew, and would be refused to
	// another one.
	uffd atomic.Pointer[uffd]
}

var watch watcher

// changing reports whether a call is under way that changes a watched mapping.
func (w *watcher) changing() bool {
	u := w.uffd.Load()
	return u != nil && u.changing()
}

// settle returns when what changed before is acted upon.
func settle() {
	for k := 0; watch.changing(); k++ {
		if k < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	if watch.epoch.Load()&1 != 0 {
		watch.mu.Lock()
		//lint:ignore SA2001 its holder makes the epoch even first
		watch.mu.Unlock()
	}
}

// Watch declares b as memory that the program mapped itself, and lets the kernel report changes of the mapping
// (userfaultfd, in write-protect mode without protecting: nothing faults), so that its registrations can be cached:
// they are forgotten when it is unmapped, moved or discarded (munmap, mmap over it, mremap, MADV_DONTNEED, MADV_REMOVE
// and their like). Memory that is unmapped or moved is not watched any more, neither at its old nor at its new place:
// Watch it again.
//
// Those calls then take as long as it takes a goroutine of this package to read
// the event. Make them through package unix or through cgo, never with
// unix.RawSyscall, which would keep the goroutine from running.
//
// All pages of b are watched, whole. Only anonymous memory, memfds, shared memory and hugetlbfs can be. Changes of a
// memfd or shared memory through its descriptor (ftruncate, fallocate) are not seen, nor are shmdt of huge pages,
// remap_file_pages and MADV_GUARD_INSTALL: close the declaration before. The memory must not be acquired at the very
// moment when it is unmapped or discarded.
//
// Errors: driver.ErrInvalid for an empty b, Go's memory (DeclareHeap is for
// that), or what is declared already; driver.ErrUnsupported, in a
// driver.UnavailableError with the reason and what to do, where the kernel or
// the mapping does not allow it. Not being watched, memory is registered for
// each transfer.
func Watch(b []byte) (*Declaration, error) {
	lo, hi := span(b)
	if lo == hi {
		return nil, fmt.Errorf("watch memory: %w: no bytes", driver.ErrInvalid)
	}
	if goMemory(lo) {
		return nil, fmt.Errorf("watch memory at %#x: %w: it is Go's (use DeclareHeap)", lo, driver.ErrInvalid)
	}
	d := &Declaration{kind: watchedMemory}
	first, last := lo&^(pageSize-1), (hi+pageSize-1)&^(pageSize-1)
	start := unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -int(lo-first))
	z := zone{kind: watchedMemory, lo: first, hi: last, mem: unsafe.Slice((*byte)(start), last-first), by: d}
	if err := watch.add(z); err != nil {
		return nil, err
	}
	return d, nil
}

// add watches a zone. Events that come meanwhile are acted upon afterwards.
func (w *watcher) add(z zone) error {
	w.mu.Lock()
	if err := declare(z); err != nil {
		w.mu.Unlock()
		return fmt.Errorf("watch memory: %w", err)
	}
	err := w.open()
	if err == nil {
		err = w.uffd.Load().register(z.lo, z.hi)
		if err == nil {
			w.mu.Unlock()
			return nil
		}
		err = refused(z, err)
	}
	rest := withdraw(z.by.except)
	w.mu.Unlock()
	finish(rest)
	return err
}

func (w *watcher) open() error {
	if w.uffd.Load() != nil {
		return nil
	}
	u, err := openUffd()
	if err != nil {
		return noUffd(err)
	}
	w.uffd.Store(u)
	go w.follow(u)
	return nil
}

// end stops watching what is left of a declaration.
func (w *watcher) end(d *Declaration) error {
	w.mu.Lock()
	var left []zone
	for _, z := range zones() {
		if z.by == d {
			left = append(left, z)
		}
	}
	rest := withdraw(d.except)
	var err error
	for _, z := range left {
		if u := w.uffd.Load(); u != nil {
			err = errors.Join(err, u.unregister(z.lo, z.hi))
		}
	}
	w.mu.Unlock()
	finish(rest)
	if err != nil {
		return fmt.Errorf("end watching memory: UFFDIO_UNREGISTER: %w", err)
	}
	return nil
}

// follow acts upon events for as long as they can be read: the life of the
// process.
func (w *watcher) follow(u *uffd) {
	buf := make([]byte, 64*uffdMessageSize)
	for u.wait() == nil {
		rest, err := w.batch(u, buf)
		finish(rest)
		if err != nil {
			break
		}
	}
	w.giveUp(u)
}

// batch reads and acts upon the events that are there: W1 to W4 above. It
// returns what can be done later.
func (w *watcher) batch(u *uffd, buf []byte) (rest []func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch.Add(1)
	defer w.epoch.Add(1)
	n, err := u.read(buf)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("read userfaultfd", err)
	}
	for at := 0; at+uffdMessageSize <= n; at += uffdMessageSize {
		rest = append(rest, w.act(u, parseEvent(buf[at:]))...)
	}
	return rest, nil
}

// act does what an event asks for, and returns what can be done later.
func (w *watcher) act(u *uffd, e uffdEvent) (rest []func()) {
	switch e.kind {
	case uffdEventRemove: // the mapping stays
		declared.Lock()
		defer declared.Unlock()
		return invalidateAll(e.lo, e.hi)
	case uffdEventRemap:
		// The kernel would go on watching it in its new place, and in the old
		// one if the mapping stays there. It fails where that is gone already.
		_ = u.unregister(e.to, e.to+(e.hi-e.lo))
		_ = u.unregister(e.lo, e.hi)
	case uffdEventUnmap:
	default:
		return nil // nothing else was asked for
	}
	return withdraw(func(z zone) []zone {
		if z.kind != watchedMemory || z.hi <= e.lo || e.hi <= z.lo {
			return []zone{z}
		}
		var left []zone
		if z.lo < e.lo {
			left = append(left, z.part(z.lo, e.lo))
		}
		if e.hi < z.hi {
			left = append(left, z.part(e.hi, z.hi))
		}
		return left
	})
}

// giveUp ends the use of u, which has failed. Nothing is watched any more, so
// registrations of what was are dropped; no goroutine waits for events to be read.
func (w *watcher) giveUp(u *uffd) {
	w.mu.Lock()
	w.uffd.Store(nil)
	rest := withdraw(func(z zone) []zone {
		if z.kind == watchedMemory {
			return nil
		}
		return []zone{z}
	})
	u.close()
	w.mu.Unlock()
	finish(rest)
}

// noUffd explains why there is no userfaultfd.
func noUffd(err error) error {
	e := &driver.UnavailableError{Driver: "regcache", Device: "watcher", Reason: "userfaultfd is refused", Err: err}
	switch {
	case errors.Is(err, syscall.EPERM):
		e.Remedy = "allow the userfaultfd system call in the container's seccomp profile;" +
			" until then memory is registered per transfer"
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EINVAL):
		e.Reason = "the kernel has no userfaultfd with the events that are needed"
		e.Remedy = "use Linux 6.1 or later with CONFIG_USERFAULTFD;" +
			" until then memory is registered per transfer"
	case errors.Is(err, syscall.EMFILE):
		e.Remedy = "raise the limit of open files: ulimit -n"
	}
	return e
}

// refused explains why a mapping cannot be watched.
func refused(z zone, err error) error {
	e := &driver.UnavailableError{
		Driver: "regcache", Device: "watcher", Err: os.NewSyscallError("UFFDIO_REGISTER", err),
		Reason: fmt.Sprintf("%d bytes at %#x cannot be watched", z.hi-z.lo, z.lo),
	}
	switch {
	case errors.Is(err, syscall.EINVAL):
		e.Remedy = "only anonymous memory, memfds, shared memory and hugetlbfs that is mapped throughout can be" +
			" (Linux 6.1 or later, on a processor with userfaultfd write protection); other memory is registered per transfer"
	case errors.Is(err, syscall.EBUSY):
		e.Remedy = "another userfaultfd of this process watches it; it is registered per transfer"
	}
	return e
}

// goMemory reports whether p points into the heap of the Go runtime: near to
// something just allocated, as it grows without gaps, far from where the
// kernel maps memory. If that were watched, the runtime would wait for a
// goroutine when it gives memory back.
func goMemory(p uintptr) bool {
	probe := new([64]byte)
	at := uintptr(unsafe.Pointer(probe))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	reach := uintptr(m.Sys) + 64<<20
	return p < at+reach && at < p+reach
}
