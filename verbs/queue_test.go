//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"sync"
	"testing"
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
