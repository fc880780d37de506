//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import "sync/atomic"

// ring is a queue with one producer and one consumer at a time.
type ring[T any] struct {
	slots []T // the length is a power of two
	_     [40]byte
	tail  atomic.Uint32 // next to write
	_     [60]byte
	head  atomic.Uint32 // next to read
	_     [60]byte
}

func newRing[T any](room int) ring[T] {
	n := 1
	for n < room {
		n *= 2
	}
	return ring[T]{slots: make([]T, n)}
}

// push adds a value. It returns false if there is no room.
func (r *ring[T]) push(v T) bool {
	t := r.tail.Load()
	if int(t-r.head.Load()) == len(r.slots) {
		return false
	}
	r.slots[int(t)&(len(r.slots)-1)] = v
	r.tail.Store(t + 1)
	return true
}

// peek returns the kth oldest value without removing it, or nil if there are fewer.
func (r *ring[T]) peek(k int) *T {
	h := r.head.Load()
	if int(r.tail.Load()-h) <= k {
		return nil
	}
	return &r.slots[int(h+uint32(k))&(len(r.slots)-1)]
}

// pop removes the oldest value.
func (r *ring[T]) pop() (v T, ok bool) {
	h := r.head.Load()
	if h == r.tail.Load() {
		return v, false
	}
	v = r.slots[int(h)&(len(r.slots)-1)]
	r.head.Store(h + 1)
	return v, true
}

func (r *ring[T]) len() int    { return int(r.tail.Load() - r.head.Load()) }
func (r *ring[T]) room() int   { return len(r.slots) - r.len() }
func (r *ring[T]) empty() bool { return r.head.Load() == r.tail.Load() }
