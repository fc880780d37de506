package link

import "math/bits"

// seqSet is a set of sequence numbers within a window of 64 times its length, a power of two: number n has bit n modulo
// the window.
type seqSet []uint64

func (s seqSet) bit(n uint64) (word *uint64, mask uint64) {
	return &s[n/64&uint64(len(s)-1)], 1 << (n % 64)
}

func (s seqSet) has(n uint64) bool {
	w, m := s.bit(n)
	return *w&m != 0
}

func (s seqSet) add(n uint64) {
	w, m := s.bit(n)
	*w |= m
}

func (s seqSet) remove(n uint64) {
	w, m := s.bit(n)
	*w &^= m
}

// word returns the bits of n to n+63, from the lowest on.
func (s seqSet) word(n uint64) uint64 {
	low, _ := s.bit(n)
	high, _ := s.bit(n + 63)
	return *low>>(n%64) | *high<<1<<(63-n%64)
}

// skip returns the least number from n on that is not in the set, or one beyond a window from n if all are.
func (s seqSet) skip(n uint64) uint64 {
	for end := n + 64*uint64(len(s)); n < end; n += 64 {
		if free := ^s.word(n); free != 0 {
			return n + uint64(bits.TrailingZeros64(free))
		}
	}
	return n
}
