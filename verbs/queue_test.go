package verbs

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func TestInboxKeepsEveryEventInOrder(t *testing.T) {
	b := newInbox(100)
	const events = 200_000
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := uint32(0); k < events; {
			if b.tail.Load()-b.head.Load() < 100 {
				b.push(event{id: k, imm: ^k})
				k++
			}
		}
	})
	var e event
	for k := uint32(0); k < events; {
		if b.pop(&e) {
			if e.id != k || e.imm != ^k {
				t.Fatalf("event %d is %+v", k, e)
			}
			k++
		}
	}
	wg.Wait()
	if !b.empty() || b.pop(&e) {
		t.Error("the inbox is not empty at the end")
	}
}

func TestReadySetNamesEachOnceAndInTurn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var s readySet
	if k, ok := s.take(); ok {
		t.Fatalf("an empty set has %d", k)
	}
	for range 200 {
		want := make(map[uint32]bool)
		for range rnd.IntN(50) {
			k := rnd.Uint32N(500)
			s.add(k)
			want[k] = true
			if rnd.IntN(4) == 0 {
				s.remove(k)
				delete(want, k)
			}
		}
		for range len(want) {
			k, ok := s.take()
			if !ok || !want[k] {
				t.Fatalf("took %d, %v; left are %v", k, ok, want)
			}
			delete(want, k)
		}
		if k, ok := s.take(); ok {
			t.Fatalf("%d was not in the set", k)
		}
	}
	// Fairness: with all of them always there, each has its turn.
	for k := range uint32(130) {
		s.add(k)
	}
	last, _ := s.take()
	s.add(last)
	for range 1000 {
		k, _ := s.take()
		s.add(k)
		if k != (last+1)%130 {
			t.Fatalf("after %d came %d", last, k)
		}
		last = k
	}
}

func TestReadySetNamesToOneOnly(t *testing.T) {
	var s readySet
	var mu sync.Mutex
	taken := make(map[uint32]int)
	var wg sync.WaitGroup
	for k := range uint32(1000) {
		s.add(k)
	}
	for range 8 {
		wg.Go(func() {
			for {
				k, ok := s.take()
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
