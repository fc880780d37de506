package kit

import (
	"math/bits"
	"sync/atomic"
)

// ReadySet holds the numbers of the instances of a context that have something to
// receive, for drivers' probes. All its methods may be called by many goroutines at once; none
// waits. What it costs does not grow with the number of idle connections below
// some hundreds, and then by a cache line for each 512.
type ReadySet struct {
	words [MaxInstances / 64]atomic.Uint64
	used  atomic.Uint32 // words that may hold anything
	next  atomic.Uint32 // where the next search starts
}

// MaxInstances is the greatest number of instances of a context.
const MaxInstances = 1 << 14

// Add may be called for a number that is there already.
func (s *ReadySet) Add(n uint32) {
	w := n / 64
	for {
		used := s.used.Load()
		if used > w || s.used.CompareAndSwap(used, w+1) {
			break
		}
	}
	s.words[w].Or(1 << (n % 64))
}

// remove takes out a number, which need not be there.
func (s *ReadySet) remove(n uint32) { s.words[n/64].And(^(uint64(1) << (n % 64))) }

// Take removes one number and returns it, the first from where the last search
// ended, so that every connection has a turn.
func (s *ReadySet) Take() (uint32, bool) {
	used := s.used.Load()
	if used == 0 {
		return 0, false
	}
	start := s.next.Load() % (used * 64)
	w := start / 64
	mask := ^uint64(0) << (start % 64)
	for range used + 1 {
		for {
			v := s.words[w].Load() & mask
			if v == 0 {
				break
			}
			b := uint32(bits.TrailingZeros64(v))
			if old := s.words[w].And(^(uint64(1) << b)); old&(1<<b) != 0 {
				s.next.Store(w*64 + b + 1)
				return w*64 + b, true
			}
		}
		mask = ^uint64(0)
		if w++; w == used {
			w = 0
		}
	}
	return 0, false
}
