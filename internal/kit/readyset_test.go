package kit

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func TestReadySetNamesEachOnceAndInTurn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var s ReadySet
	if k, ok := s.Take(); ok {
		t.Fatalf("an empty set has %d", k)
	}
	for range 200 {
		want := make(map[uint32]bool)
		for range rnd.IntN(50) {
			k := rnd.Uint32N(500)
			s.Add(k)
			want[k] = true
			if rnd.IntN(4) == 0 {
				s.remove(k)
				delete(want, k)
			}
		}
		for range len(want) {
			k, ok := s.Take()
			if !ok || !want[k] {
				t.Fatalf("took %d, %v; left are %v", k, ok, want)
			}
			delete(want, k)
		}
		if k, ok := s.Take(); ok {
			t.Fatalf("%d was not in the set", k)
		}
	}
	// Fairness: with all of them always there, each has its turn.
	for k := range uint32(130) {
		s.Add(k)
	}
	last, _ := s.Take()
	s.Add(last)
	for range 1000 {
		k, _ := s.Take()
		s.Add(k)
		if k != (last+1)%130 {
			t.Fatalf("after %d came %d", last, k)
		}
		last = k
	}
}

func TestReadySetNamesToOneOnly(t *testing.T) {
	var s ReadySet
	var mu sync.Mutex
	taken := make(map[uint32]int)
	var wg sync.WaitGroup
	for k := range uint32(1000) {
		s.Add(k)
	}
	for range 8 {
		wg.Go(func() {
			for {
				k, ok := s.Take()
				if !ok {
					return
				}
				mu.Lock()
				taken[k]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for k := range uint32(1000) {
		if taken[k] != 1 {
			t.Fatalf("%d was taken %d times", k, taken[k])
		}
	}
}
