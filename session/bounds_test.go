//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// rtsOf returns the RTS of a message that is never sent.
func rtsOf(k uint64) []byte {
	return forged(header.RTS, k, func(b []byte) { (&header.Request{ID: k, Total: 16, Modes: 1}).Put(b) })
}

// postRaw has a rank send n messages without receiving any.
func postRaw(t *testing.T, from, to *session.Session, n int, next func(k uint64) []byte) {
	t.Helper()
	ctx := deadline(t)
	g := from.Gate(to.Rank())
	for k := range uint64(n) {
		for !g.PostRaw(next(k)) {
			if to.Progress(); ctx.Err() != nil || g.Path() == "broken" {
				return
			}
		}
	}
}

// silentPeers returns three connected ranks, of which all but the first make progress only explicitly.
func silentPeers(t *testing.T, change func(*session.Config)) []*session.Session {
	t.Helper()
	s := joinAll(t, 3, func(rank int, c *session.Config) {
		if c.Progress = session.Explicit; rank == 0 {
			change(c)
		}
	})
	for _, x := range s[1:] {
		transfer(t, x, s[0], 10)
	}
	t.Cleanup(func() { // no Close waits for a peer that is blocked
		over, cancel := context.WithCancel(context.Background())
		cancel()
		for _, x := range s {
			_ = x.Close(over)
		}
	})
	return s
}

// The cost of all peers together is bounded as well. Beyond it the gate that costs most ends, and no other.
func TestMemoryOfAllPeersIsBounded(t *testing.T) {
	const limit = 1 << 20
	s := silentPeers(t, func(c *session.Config) { c.PeerMemory, c.PeersMemory = limit, limit })
	for range 4000 {
		if _, err := s[0].IrecvMsg(&session.In{Match: session.Match{Ignore: ^uint64(0)}, Buf: make([]byte, 16), Then: func(session.Status, error) {}}); err != nil {
			t.Fatal(err)
		}
	}
	for s[0].Gate(1).HeldBytes() < limit*6/10 {
		postRaw(t, s[1], s[0], 10, rtsOf)
		s[0].Progress()
	}
	if p := s[0].Gate(1).Path(); p == "broken" {
		t.Fatal("the first peer's gate ends below the limit")
	}
	eventually(t, "a gate ends", func() bool {
		postRaw(t, s[2], s[0], 10, rtsOf)
		s[0].Progress()
		return s[0].Stats().Broken > 0
	})
	_, err := s[0].Gate(1).Isend(1, nil)
	if !errors.Is(err, session.ErrLimit) || !strings.Contains(err.Error(), "Config.PeersMemory") {
		t.Errorf("the gate that costs most: %v, want one that ends with the limit", err)
	}
	if p := s[0].Gate(2).Path(); p == "broken" {
		t.Error("the gate that costs less has ended")
	}
}

// A peer that is blocked because its messages are not received leaves room for those of other peers.
func TestUnexpectedMessagesLeaveRoom(t *testing.T) {
	for _, tt := range []struct {
		name         string
		budget, send int
		size, most   int
	}{
		{"bytes", 1 << 20, 3000, 0, 1 << 20 / 2 / 448},
		{"long", 1 << 20, 3000, 1000, 1 << 20 / 2 / 1408},
		{"number", 1 << 30, 70_000, 0, 1 << 16},
	} {
		if testing.Short() && tt.send > 10_000 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			s := silentPeers(t, func(c *session.Config) { c.Unexpected = tt.budget })
			for k := range uint64(tt.send) {
				if _, err := s[1].Gate(0).Isend(k, make([]byte, tt.size)); err != nil {
					t.Fatal(err)
				}
				s[1].Progress()
			}
			eventually(t, "the peer is blocked", func() bool {
				s[0].Progress()
				s[1].Progress()
				return s[0].Stats().Stalls > 0
			})
			if n := s[0].Stats().Unexpected; int(n) > tt.most+1 {
				t.Errorf("%d unexpected messages are stored, want at most %d", n, tt.most)
			}
			if _, err := s[2].Gate(0).Isend(1<<40, nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the message of another peer has arrived", func() bool {
				_, ok := s[0].Iprobe(session.Match{Tag: 1 << 40})
				return ok
			})
		})
	}
}

// Pooled memory of unexpected messages is bounded, whatever their lengths were.
func TestPooledMemoryIsBounded(t *testing.T) {
	const budget = 4 << 20
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Unexpected = budget })
	transfer(t, s[0], s[1], 10)
	buf := make([]byte, 4096)
	for size := 32; size <= 4000; size *= 2 {
		n := budget / 2 / (size + 600)
		b := make([]byte, header.Size+size)
		binary.LittleEndian.PutUint64(b, uint64(header.Eager)|uint64(size)<<32)
		postRaw(t, s[0], s[1], n, func(uint64) []byte { return b })
		for range n {
			if _, err := s[1].Gate(0).Recv(deadline(t), 0, buf); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s[1].PoolBytes(); n > budget/8 {
		t.Errorf("%d bytes stay, want at most %d", n, budget/8)
	}
}

// However often a peer asks for a connection, one is begun.
func TestConnectRequestsBeginOneConnection(t *testing.T) {
	rails := both(qnixRail(t))
	s := joinAll(t, 2, func(rank int, c *session.Config) { c.Rails = rails[rank] })
	s[0].ConnectRequest(s[1], 1)
	base := runtime.NumGoroutine()
	for k := range uint64(1000) {
		s[0].ConnectRequest(s[1], 1+k%3)
	}
	if n := runtime.NumGoroutine(); n > base+10 {
		t.Errorf("%d goroutines after 1000 connect requests, %d after one", n, base)
	}
	transfer(t, s[1], s[0], 100)
}
