package driver

import (
	"sync/atomic"
	"unsafe"
)

// Apply carries an operation out with this CPU, on the integer of size bytes, 4 or 8, at an aligned address, and
// returns the value before. For drivers and sessions whose peer's memory this process can reach, or which
// answer for their own; it is atomic with respect to those that do the same, on whatever CPU.
func (o AtomicOp) Apply(at unsafe.Pointer, size int, operand, compare uint64) uint64 {
	if size == 4 {
		return uint64(o.apply32((*uint32)(at), uint32(operand), uint32(compare)))
	}
	return o.apply64((*uint64)(at), operand, compare)
}

func (o AtomicOp) apply32(p *uint32, operand, compare uint32) uint32 {
	switch o {
	case Add:
		return atomic.AddUint32(p, operand) - operand
	case And:
		return atomic.AndUint32(p, operand)
	case Or:
		return atomic.OrUint32(p, operand)
	case Swap:
		return atomic.SwapUint32(p, operand)
	}
	for {
		old := atomic.LoadUint32(p)
		next := operand
		if o == Xor {
			next ^= old
		} else if old != compare {
			return old
		}
		if atomic.CompareAndSwapUint32(p, old, next) {
			return old
		}
	}
}

func (o AtomicOp) apply64(p *uint64, operand, compare uint64) uint64 {
	switch o {
	case Add:
		return atomic.AddUint64(p, operand) - operand
	case And:
		return atomic.AndUint64(p, operand)
	case Or:
		return atomic.OrUint64(p, operand)
	case Swap:
		return atomic.SwapUint64(p, operand)
	}
	for {
		old := atomic.LoadUint64(p)
		next := operand
		if o == Xor {
			next ^= old
		} else if old != compare {
			return old
		}
		if atomic.CompareAndSwapUint64(p, old, next) {
			return old
		}
	}
}
