//go:build linux

package xsk

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is a queue shared with the kernel (Documentation/networking/af_xdp.rst).
//
// A ring has one producer and one consumer: one of them is the kernel, the
// other the goroutine that uses this side of the socket. Each owns one index,
// which runs freely and wraps at 2^32; its remainder by the power-of-two size
// is the slot.
//
// The producer writes the slots, then stores its index with release order; the
// consumer loads that index with acquire order before it reads the slots, and
// gives them back by storing its own index with release order after it has
// read them, so that the producer, which loads it with acquire order, cannot
// overwrite what is still being read. The kernel does the same with
// smp_store_release and smp_load_acquire. Package atomic's loads are at least
// that strong (LDAR on arm64, MOV on amd64), storeRelease is just that.
//
// Each side keeps a copy of the other's index and reloads it only when the copy does not suffice, as each load may cost
// a cache miss.
type ring struct {
	producer, consumer *uint32
	flags              *uint32

	size, mask uint32
	fence      uint32 // see needWakeup

	// If this side is the producer, prod is its own index and cons the copy of the kernel's. If it is the consumer, it
	// is the other way round.
	prod, cons uint32

	mem []byte // the mapping
}

// free returns how many slots the producer may write. It reloads the consumer's index if there are fewer than want by
// the copy.
func (r *ring) free(want uint32) uint32 {
	n := r.size - (r.prod - r.cons)
	if n < want {
		r.cons = atomic.LoadUint32(r.consumer)
		n = r.size - (r.prod - r.cons)
	}
	return n
}

// pending returns how many slots the consumer may read. It reloads the producer's index if there are fewer than want by
// the copy.
func (r *ring) pending(want uint32) uint32 {
	n := r.prod - r.cons
	if n < want {
		r.prod = atomic.LoadUint32(r.producer)
		n = r.prod - r.cons
	}
	return n
}

// publish makes n slots that were written visible to the consumer.
func (r *ring) publish(n uint32) {
	r.prod += n
	storeRelease(r.producer, r.prod)
}

// release gives n slots that were read back to the producer.
func (r *ring) release(n uint32) {
	r.cons += n
	storeRelease(r.consumer, r.cons)
}

// needWakeup reports whether the kernel waits for a call (XDP_RING_NEED_WAKEUP). The driver reads this side's index
// before it sets the flag: the store of the index must be visible before this side loads the flag, otherwise both sides
// wait. Copy mode, where the flag of the transmit ring is always up, needs no such barrier.
func (r *ring) needWakeup(zeroCopy bool) bool {
	if zeroCopy {
		atomic.AddUint32(&r.fence, 1)
	}
	return atomic.LoadUint32(r.flags)&unix.XDP_RING_NEED_WAKEUP != 0
}

// A slot is an element of a ring.
type slot interface{ uint64 | Desc }

// A queue is a ring with its slots: the fill and completion rings carry addresses of chunks, the receive and transmit
// rings descriptors of frames.
type queue[S slot] struct {
	ring
	slots []S
}

func (q *queue[S]) put(from []S) int {
	n := min(q.free(uint32(len(from))), uint32(len(from)))
	if n == 0 {
		return 0
	}
	at := q.prod & q.mask
	if k := copy(q.slots[at:], from[:n]); k < int(n) {
		copy(q.slots, from[k:n])
	}
	q.publish(n)
	return int(n)
}

func (q *queue[S]) get(to []S) int {
	n := min(q.pending(uint32(len(to))), uint32(len(to)))
	if n == 0 {
		return 0
	}
	at := q.cons & q.mask
	if k := copy(to[:n], q.slots[at:]); k < int(n) {
		copy(to[k:n], q.slots)
	}
	q.release(n)
	return int(n)
}

// mmap maps one of a socket's rings.
func (q *queue[S]) mmap(fd int, page int64, off *unix.XDPRingOffset, size int) error {
	var s S
	length := int(off.Desc) + size*int(unsafe.Sizeof(s))
	mem, err := unix.Mmap(fd, page, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map a ring of %d entries: %w", size, err)
	}
	q.ring = overlay(mem, off, uint32(size))
	q.slots = unsafe.Slice((*S)(unsafe.Pointer(&mem[off.Desc])), size)
	return nil
}

// overlay makes a ring of mapped memory that may be in use, and starts at its present indexes.
func overlay(mem []byte, off *unix.XDPRingOffset, size uint32) ring {
	r := ring{
		producer: (*uint32)(unsafe.Pointer(&mem[off.Producer])),
		consumer: (*uint32)(unsafe.Pointer(&mem[off.Consumer])),
		flags:    (*uint32)(unsafe.Pointer(&mem[off.Flags])),
		size:     size,
		mask:     size - 1,
		mem:      mem,
	}
	r.prod = atomic.LoadUint32(r.producer)
	r.cons = atomic.LoadUint32(r.consumer)
	return r
}

// noRing returns a ring without slots. A socket has it instead of a ring that was not requested, and instead of all
// rings once it is closed.
func noRing() ring {
	words := new([3]uint32)
	return ring{producer: &words[0], consumer: &words[1], flags: &words[2]}
}

// unmap turns the ring into one of no slots.
func (r *ring) unmap() error {
	mem := r.mem
	*r = noRing()
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}
