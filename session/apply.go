package session

import (
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// apply does an atomic with this CPU, and returns the value before. mem is 4 or 8
// bytes, aligned.
func apply(mem []byte, op driver.AtomicOp, operand, compare uint64) uint64 {
	if len(mem) == 4 {
		p := (*uint32)(word(mem, 0))
		v := uint32(operand)
		switch op {
		case driver.Add:
			return uint64(atomic.AddUint32(p, v) - v)
		case driver.And:
			return uint64(atomic.AndUint32(p, v))
		case driver.Or:
			return uint64(atomic.OrUint32(p, v))
		case driver.Swap:
			return uint64(atomic.SwapUint32(p, v))
		}
		for {
			old := atomic.LoadUint32(p)
			next := old ^ v
			if op == driver.CompareSwap {
				if next = v; old != uint32(compare) {
					return uint64(old)
				}
			}
			if atomic.CompareAndSwapUint32(p, old, next) {
				return uint64(old)
			}
		}
	}
	p := (*uint64)(word(mem, 0))
	switch op {
	case driver.Add:
		return atomic.AddUint64(p, operand) - operand
	case driver.And:
		return atomic.AndUint64(p, operand)
	case driver.Or:
		return atomic.OrUint64(p, operand)
	case driver.Swap:
		return atomic.SwapUint64(p, operand)
	}
	for {
		old := atomic.LoadUint64(p)
		next := old ^ operand
		if op == driver.CompareSwap {
			if next = operand; old != compare {
				return old
			}
		}
		if atomic.CompareAndSwapUint64(p, old, next) {
			return old
		}
	}
}
