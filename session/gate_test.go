//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// eventually waits for a condition of a session.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testTime); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// connectPair makes the connection between the first two, at both ends.
func connectPair(t *testing.T, s []*session.Session) {
	t.Helper()
	ctx := deadline(t)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			if err := s[i].Gate(1 - i).ConnectWait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Messages that were sent before Disconnect arrive, also long ones that are being received; the gate connects again by
// itself.
func TestGateIsUsedAgainAfterDisconnect(t *testing.T) {
	var closed atomic.Int32
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.OnClosed = func(*session.Gate) { closed.Add(1) } })
	ctx := deadline(t)
	for round := range 20 {
		from, to := s[round%2], s[1-round%2]
		g := from.Gate(to.Rank())
		long := pattern(300_000, uint64(round))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.Send(ctx, 1, []byte("short")); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			r, err := g.Isend(2, long)
			if err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			if round%3 == 0 {
				if _, err := r.Wait(ctx); err != nil {
					t.Errorf("round %d: long message: %v", round, err)
				}
			}
			g.Disconnect()
			if round%3 != 0 {
				if _, err := r.Wait(ctx); err != nil {
					t.Errorf("round %d: long message: %v", round, err)
				}
			}
		})
		buf, got := make([]byte, 10), make([]byte, len(long))
		r, err := to.Gate(from.Rank()).Irecv(2, got)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := to.Gate(from.Rank()).Recv(ctx, 1, buf); err != nil || string(buf[:n]) != "short" {
			t.Fatalf("round %d: %q, %v", round, buf[:n], err)
		}
		if _, err := r.Wait(ctx); err != nil || !bytes.Equal(got, long) {
			t.Fatalf("round %d: long message: %v", round, err)
		}
		wg.Wait()
		// A receive that named the peer before it has closed would fail.
		eventually(t, "closed", func() bool { return closed.Load() == int32(2*(round+1)) })
	}
}

func TestReceiveFromAClosedGateFails(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	if err := s[0].Gate(1).Send(ctx, 1, []byte{1}); err != nil {
		t.Fatal(err)
	}
	anyone, err := s[1].Irecv(session.Match{Tag: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	named, err := s[1].Gate(0).Irecv(5, nil)
	if err != nil {
		t.Fatal(err)
	}
	unmatched, err := s[0].Gate(1).Isend(77, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s[1].Probe(ctx, session.Match{Tag: 77}); err != nil {
		t.Fatal(err)
	}
	s[1].Gate(0).Disconnect()
	if _, err := named.Wait(ctx); !errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrBroken) {
		t.Errorf("receive from the peer: %v, want closed", err)
	}
	if _, err := unmatched.Wait(ctx); !errors.Is(err, session.ErrClosed) {
		t.Errorf("long send whose reception has not begun: %v, want closed", err)
	}
	if done, _, err := anyone.Test(); done {
		t.Errorf("receive from any source: %v, want that it waits", err)
	}
	if _, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 1)); err != nil {
		t.Errorf("a message that had arrived: %v", err)
	}
	if err := s[0].Gate(1).Send(ctx, 5, nil); err != nil { // over a new connection
		t.Fatal(err)
	}
	if st, err := anyone.Wait(ctx); err != nil || st.From.Rank() != 0 {
		t.Errorf("receive from any source: %+v, %v", st, err)
	}
}

// Both sides close and send at random moments; nothing gets stuck, and what
// was sent arrives.
func TestCrossingDisconnectsLoseNothing(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	const n = 300
	var wg sync.WaitGroup
	for me := range 2 {
		g := s[me].Gate(1 - me)
		wg.Go(func() {
			for i := range n {
				if err := g.Send(ctx, 1, pattern(10+i*11%500, uint64(i))); err != nil {
					t.Errorf("rank %d: send %d: %v", me, i, err)
					return
				}
				if i%(17+me) == 0 {
					g.Disconnect()
				}
			}
		})
		wg.Go(func() {
			buf := make([]byte, 600)
			for i := range n {
				st, err := s[me].Recv(ctx, session.Match{Tag: 1}, buf)
				if err != nil || !bytes.Equal(buf[:st.Len], pattern(10+i*11%500, uint64(i))) {
					t.Errorf("rank %d: message %d of %d bytes: %v", me, i, st.Len, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Sessions that connect by their cards connect again by themselves: it takes a message of one side.
func TestSessionsConnectByCard(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			rails := w.rails(t)
			var s [2]*session.Session
			for k := range s {
				s[k] = joinAll(t, 1, func(_ int, c *session.Config) { c.Rails = rails[k] })[0]
			}
			ctx := deadline(t)
			var g [2]*session.Gate
			var wg sync.WaitGroup
			for k := range g {
				wg.Go(func() {
					var err error
					if g[k], err = s[k].Connect(ctx, s[1-k].Card()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			if g[0].Rank() != -1 {
				t.Errorf("rank %d", g[0].Rank())
			}
			for round := range 3 {
				k := round % 2
				wg.Go(func() {
					if err := g[k].Send(ctx, 4, []byte("from afar")); err != nil {
						t.Error(err)
					}
				})
				buf := make([]byte, 20)
				if n, err := g[1-k].Recv(ctx, 4, buf); err != nil || string(buf[:n]) != "from afar" {
					t.Fatalf("session %d sends: %q, %v", k, buf[:n], err)
				}
				wg.Wait()
				eventually(t, "disconnected", func() bool {
					g[k].Disconnect() // again, if a late connect request was answered meanwhile
					return g[0].Path() == "idle" && g[1].Path() == "idle"
				})
			}
			if _, err := s[0].Connect(ctx, []byte("no card")); !errors.Is(err, session.ErrInvalid) {
				t.Errorf("no card: %v", err)
			}
		})
	}
}

func TestIdleSessionUsesNoCPU(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own work counts")
	}
	s := joinAll(t, 2, nil)
	transfer(t, s[0], s[1], 100)
	transfer(t, s[0], s[1], 1<<20)
	if least, look := leastCPU(t); least > look/50 {
		t.Errorf("%v of CPU in %v", least, look)
	}
}

// leastCPU is the least that this process uses in some equal spans of time.
func leastCPU(t *testing.T) (least, look time.Duration) {
	used := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	least, look = time.Hour, 200*time.Millisecond
	for range 5 {
		before := used()
		time.Sleep(look)
		least = min(least, used()-before)
	}
	return least, look
}

// Nor does a session in which a caller waits for a message that may never arrive.
func TestWaitingUsesNoCPU(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own work counts")
	}
	s := joinAll(t, 3, nil)
	transfer(t, s[0], s[1], 100)
	if err := s[2].Quiesce(deadline(t)); err != nil { // no rank connects to it
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(deadline(t))
	waits := map[string]func() error{
		"probe":   func() error { _, err := s[1].Probe(ctx, session.Match{Tag: 77}); return err },
		"connect": func() error { return s[0].Gate(2).ConnectWait(ctx) },
		"receive": func() error { _, err := s[0].Gate(1).Recv(ctx, 77, nil); return err },
	}
	var wg sync.WaitGroup
	for name, f := range waits {
		wg.Go(func() {
			if err := f(); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	if least, look := leastCPU(t); least > look/50 {
		t.Errorf("%v of CPU in %v", least, look)
	}
	stop()
	wg.Wait()
}

func TestClosedSessionReturnsErrClosed(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	transfer(t, s[0], s[1], 10)
	r, err := s[0].Irecv(session.Match{Tag: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s[0].Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(ctx); !errors.Is(err, session.ErrClosed) {
		t.Errorf("receive: %v", err)
	}
	if err := s[0].Gate(1).Send(ctx, 1, nil); !errors.Is(err, session.ErrClosed) {
		t.Errorf("send: %v", err)
	}
	if _, err := s[0].Irecv(session.Match{}, nil); !errors.Is(err, session.ErrClosed) {
		t.Errorf("receive: %v", err)
	}
	if err := s[0].Close(ctx); !errors.Is(err, session.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}

// Forget leaves nothing of a gate to a process of another session: the next gate takes its source number.
func TestForgottenGatesReleaseEverything(t *testing.T) {
	a := joinAll(t, 1, nil)[0]
	ctx := deadline(t)
	var old *session.Gate
	for round := range 5 {
		b := joinAll(t, 1, nil)[0]
		type made struct {
			g   *session.Gate
			err error
		}
		there := make(chan made, 1)
		go func() { g, err := b.Connect(ctx, a.Card()); there <- made{g, err} }()
		g, err := a.Connect(ctx, b.Card())
		if err != nil {
			t.Fatal(err)
		}
		m := <-there
		if m.err != nil {
			t.Fatal(m.err)
		}
		if err := m.g.Send(ctx, 4, []byte("unreceived")); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Probe(ctx, session.Match{From: g, Tag: 4}); err != nil {
			t.Fatal(err)
		}
		waits, err := a.Irecv(session.Match{From: g, Tag: 5}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if old != nil {
			if _, ok := a.Iprobe(session.Match{From: old, Tag: 4}); ok {
				t.Error("a forgotten gate has a message")
			}
			if _, err := old.Recv(ctx, 4, nil); !errors.Is(err, session.ErrClosed) {
				t.Errorf("receive from a forgotten gate: %v, want closed", err)
			}
			if err := old.Send(ctx, 4, nil); !errors.Is(err, session.ErrClosed) {
				t.Errorf("send to a forgotten gate: %v, want closed", err)
			}
		}
		if round%2 == 0 { // else it is connected, and closed first
			if err := b.Close(ctx); err != nil {
				t.Error(err)
			}
			eventually(t, "closed", func() bool { p := g.Path(); return p == "idle" || p == "broken" })
		}
		probe := make(chan error, 1)
		go func() { _, err := a.Probe(ctx, session.Match{From: g, Tag: 99}); probe <- err }()
		if err := g.Forget(); err != nil {
			t.Error(err)
		}
		if err := <-probe; !errors.Is(err, session.ErrClosed) {
			t.Errorf("round %d: a probe meanwhile: %v, want closed", round, err)
		}
		if err := g.Forget(); !errors.Is(err, session.ErrClosed) {
			t.Errorf("forgotten twice: %v, want closed", err)
		}
		if _, err := waits.Wait(ctx); !errors.Is(err, session.ErrClosed) {
			t.Errorf("round %d: a receive that waits: %v, want closed", round, err)
		}
		eventually(t, "closed at the peer, too", func() bool { p := m.g.Path(); return p == "idle" || p == "broken" })
		if round%2 == 1 {
			if err := b.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "forgotten", func() bool { now, _ := a.Foreign(); return now == 0 })
		if g, err := a.Connect(ctx, b.Card()); err == nil || g != nil {
			t.Errorf("connect to a session that has closed: %v, %v", g, err)
		}
		eventually(t, "forgotten after a connection that has failed", func() bool { now, _ := a.Foreign(); return now == 0 })
		if _, most := a.Foreign(); most != 1 {
			t.Errorf("round %d: %d places for gates of other sessions, want one that is used again", round, most)
		}
		old = g
	}
	if what := a.Pending(); what != "" {
		t.Errorf("still pending: %s", what)
	}
	if err := a.Gate(0).Forget(); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("the gate to a rank: %v, want invalid", err)
	}
}

// A session that has forgotten another one connects to it again, also where sessions send the connect requests: the
// second one is not taken for a late first one.
func TestForgottenSessionsConnectAgain(t *testing.T) {
	registerDeafDriver()
	useDeaf.Store(true)
	defer useDeaf.Store(false)
	deaf := func(_ int, c *session.Config) { c.Rails = []session.Rail{{Driver: "deaf"}} }
	a, b := joinAll(t, 1, deaf)[0], joinAll(t, 1, deaf)[0]
	ctx := deadline(t)
	there := make(chan *session.Gate, 1)
	go func() { g, _ := b.Connect(ctx, a.Card()); there <- g }()
	for round := range 3 {
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		g, err := a.Connect(short, b.Card())
		cancel()
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round == 0 {
			if g := <-there; g == nil {
				t.Fatal("the other side has not connected")
			}
		}
		if err := g.Forget(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "forgotten", func() bool { now, _ := a.Foreign(); return now == 0 })
	}
}

// An atomic of which nothing has left was certainly not executed.
func TestAtomicThatHasNotLeftIsNotUnknown(t *testing.T) {
	s, f := faultPair(t, nil, nil)
	region, err := s[1].Register(make([]byte, 8), driver.RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := s[0].Gate(1).Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	f[0].refuse(driver.ErrBroken)
	if _, err := s[0].Gate(1).FetchAdd(deadline(t), remote, 0, 1); !errors.Is(err, session.ErrBroken) || errors.Is(err, session.ErrUnknown) {
		t.Errorf("the atomic ends with %v, want that it is broken, and known", err)
	}
}
