//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// Arenas come and go in the life of a connection, more than it can map at a
// time.
func TestArenasComeAndGo(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	for k := range 2 * maxArenas {
		ar, err := driver.NewArena(2 << 16)
		if err != nil {
			t.Fatal(err)
		}
		transferLarge(t, a, b, ar.Alloc(1<<16), ar.Alloc(1<<16))
		if got := a.Path(); got != "arena-both" && got != "arena-put" && got != "arena-get" {
			t.Fatalf("arena %d: path is %s, want one through the arena", k, got)
		}
		if err := ar.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []driver.Instance{a, b} {
		if err := i.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}

// A peer that is stopped reads nothing. When it goes on, it learns of every arena that it was shown meanwhile, and of
// every one that was closed: it would keep those mapped, and could never use memory in the others.
func TestStoppedPeerLearnsOfArenasLater(t *testing.T) {
	c := open(t, driver.Large, nil)
	p := newFakePeer(t)
	p.connect(c)
	arena := func() (*driver.Arena, driver.Region) {
		a, err := driver.NewArena(1 << 16)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.(driver.Registrar).Register(a.Alloc(64), driver.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		return a, r
	}
	closing := func(a *driver.Arena, r driver.Region) {
		if err := errors.Join(r.Deregister(), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	first, firstRegion := arena()
	for range 300 { // two messages each: more than a socket holds
		closing(arena())
	}
	closing(first, firstRegion)
	last, lastRegion := arena()
	known := make(map[uint64]bool)
	within(t, 10*time.Second, "the peer knows the last arena", func() bool {
		var m message
		fds, err := receive(p.sock, &m, maxFDs)
		closeAll(fds)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.kind == msgArena && !known[m.arena]:
			known[m.arena] = true
		case m.kind == msgForget && known[m.arena]:
			delete(known, m.arena)
		default:
			t.Fatalf("message %v of arena %d, which the peer knows: %v", m.kind, m.arena, known[m.arena])
		}
		return m.arena == last.ID()
	})
	if len(known) != 1 {
		t.Errorf("the peer takes %d arenas for open, and one is", len(known))
	}
	closing(last, lastRegion)
}
