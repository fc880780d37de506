//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import "slices"

// idAllocator allocates ranges of consecutive numbers of contexts or tags.
type idAllocator struct {
	free []idRange // in order, with gaps between them
	left int
}

type idRange struct{ at, n int }

func newIDAllocator(at, n int) idAllocator { return idAllocator{free: []idRange{{at, n}}, left: n} }

// take allocates the first n consecutive free numbers.
func (s *idAllocator) take(n int) (at int, ok bool) {
	for k := range s.free {
		f := &s.free[k]
		if f.n < n {
			continue
		}
		at = f.at
		f.at, f.n, s.left = f.at+n, f.n-n, s.left-n
		if f.n == 0 {
			s.free = slices.Delete(s.free, k, k+1)
		}
		return at, true
	}
	return 0, false
}

// put frees a range that take returned.
func (s *idAllocator) put(at, n int) {
	k := 0
	for k < len(s.free) && s.free[k].at < at {
		k++
	}
	s.left += n
	s.free = slices.Insert(s.free, k, idRange{at, n})
	if k+1 < len(s.free) && at+n == s.free[k+1].at {
		s.free[k].n += s.free[k+1].n
		s.free = slices.Delete(s.free, k+1, k+2)
	}
	if k > 0 && s.free[k-1].at+s.free[k-1].n == at {
		s.free[k-1].n += s.free[k].n
		s.free = slices.Delete(s.free, k, k+1)
	}
}
