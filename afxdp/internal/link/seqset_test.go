package link

import (
	"math/rand/v2"
	"testing"
)

// A set of sequence numbers holds what was added and not removed, also where the window wraps around.
func TestSeqSet(t *testing.T) {
	for _, words := range []int{1, 2, 64} {
		s, want := make(seqSet, words), map[uint64]bool{}
		window := 64 * uint64(words)
		low := ^uint64(0)>>1 - 5*window // numbers do not begin at 0
		for range 20000 {
			switch n := low + rand.Uint64N(window); {
			case rand.IntN(3) > 0:
				s.add(n)
				want[n] = true
			default:
				for ; low <= n; low++ {
					s.remove(low)
					delete(want, low)
				}
			}
			n := low + rand.Uint64N(window)
			if s.has(n) != want[n] {
				t.Fatalf("%d words: has(%d) is %v", words, n-low, s.has(n))
			}
			next := n
			for want[next] {
				next++
			}
			if got := s.skip(n); next < low+window && got != next {
				t.Fatalf("%d words: skip(%d) is %d, want %d", words, n-low, got-low, next-low)
			}
			w := s.word(n)
			for k := range min(64, low+window-n) {
				if w>>k&1 != 0 != want[n+k] {
					t.Fatalf("%d words: bit %d of word(%d) is %d", words, k, n-low, w>>k&1)
				}
			}
		}
	}
}
