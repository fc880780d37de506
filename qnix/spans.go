package qnix

// spans allocates ranges of consecutive numbers of contexts or tags.
type spans struct {
	free []span // in order, with gaps between them
	left int
}

type span struct{ at, n int }

func newSpans(at, n int) spans { return spans{free: []span{{at, n}}, left: n} }

// take allocates the first n consecutive free numbers.
func (s *spans) take(n int) (at int, ok bool) {
	for k := range s.free {
		f := &s.free[k]
		if f.n < n {
			continue
		}
		at = f.at
		f.at, f.n, s.left = f.at+n, f.n-n, s.left-n
		if f.n == 0 {
			s.free = append(s.free[:k], s.free[k+1:]...)
		}
		return at, true
	}
	return 0, false
}

// put frees a range that take returned.
func (s *spans) put(at, n int) {
	k := 0
	for k < len(s.free) && s.free[k].at < at {
		k++
	}
	s.left += n
	s.free = append(s.free, span{})
	copy(s.free[k+1:], s.free[k:])
	s.free[k] = span{at, n}
	if k+1 < len(s.free) && at+n == s.free[k+1].at {
		s.free[k].n += s.free[k+1].n
		s.free = append(s.free[:k+1], s.free[k+2:]...)
	}
	if k > 0 && s.free[k-1].at+s.free[k-1].n == at {
		s.free[k-1].n += s.free[k].n
		s.free = append(s.free[:k], s.free[k+1:]...)
	}
}
