//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"math/rand/v2"
	"testing"
)

func TestIDAllocator(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const first, total = 5, 300
	s := newIDAllocator(first, total)
	owner := make([]int, first+total)
	taken := map[int]idRange{}
	for step := 1; step < 20_000; step++ {
		if rnd.IntN(2) == 0 {
			n := 1 + rnd.IntN(40)
			at, ok := s.take(n)
			if !ok {
				continue
			}
			for k := at; k < at+n; k++ {
				if k < first || k >= first+total || owner[k] != 0 {
					t.Fatalf("step %d: number %d is handed out, which has owner %d", step, k, owner[k])
				}
				owner[k] = step
			}
			taken[step] = idRange{at, n}
			continue
		}
		for who, x := range taken {
			s.put(x.at, x.n)
			clear(owner[x.at : x.at+x.n])
			delete(taken, who)
			break
		}
	}
	for _, x := range taken {
		s.put(x.at, x.n)
	}
	if at, ok := s.take(total); !ok || at != first || s.left != 0 {
		t.Errorf("all that was taken and given back: got %d, %v, %d left; want the whole from %d on", at, ok, s.left, first)
	}
}
