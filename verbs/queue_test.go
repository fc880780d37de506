//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"sync"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
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

// A completion that a device reports after the connection has ended, and all requests with it, completes none of them.
func TestForgottenRequestsDoNotComplete(t *testing.T) {
	q := sendQueue{ring: make([]request, 8), next: 13, done: 10}
	if r, _ := q.complete(12, ibv.WCSuccess); r == nil {
		t.Fatal("a request that is under way does not complete")
	}
	q.forget()
	if r, _ := q.complete(12, ibv.WCSuccess); r != nil {
		t.Error("a forgotten request completes")
	}
	if !q.idle() || q.room() != 8 {
		t.Errorf("%d places are free after all was forgotten", q.room())
	}
}

// An empty message has the inline flag only on a device that carries bytes inline.
func TestEmptyMessagesAreInlineWhereBytesAre(t *testing.T) {
	for _, x := range []struct {
		inline, n int
		want      bool
	}{{0, 0, false}, {0, 1, false}, {8, 0, true}, {8, 8, true}, {8, 9, false}} {
		if q := (sendQueue{inline: x.inline}); q.inlines(x.n) != x.want {
			t.Errorf("%d bytes with %d inline: %v, want %v", x.n, x.inline, !x.want, x.want)
		}
	}
}

// A device that completes the bind of a window with an error has no use for them: later connections do without.
func TestFailedBindsEndWindows(t *testing.T) {
	var c opened
	c.windows.Store(true)
	c.deliver(&ibv.WC{Status: ibv.WCBind})
	if c.windows.Load() {
		t.Error("the next connection uses windows")
	}
}

// Behind a sign of life nothing is bound, until it is complete.
func TestSignsOfLifeAreSeen(t *testing.T) {
	q := sendQueue{ring: make([]request, 8)}
	for q.next < 3 {
		if q.probing() {
			t.Error("a sign of life, before there was one")
		}
		q.number(new(ibv.SendWR), requestWindow, true)
	}
	q.number(new(ibv.SendWR), requestControl, true)
	q.probed, q.probe = true, 3
	for id := range uint32(4) {
		if !q.probing() {
			t.Errorf("none after %d of 4 completions", id)
		}
		q.complete(id, ibv.WCSuccess)
	}
	if q.probing() {
		t.Error("one after all completions")
	}
}
