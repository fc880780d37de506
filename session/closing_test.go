//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/bywash/bywash/session"
)

// ended reports whether the connection to a rank has ended.
func ended(s *session.Session, rank int) bool { return s.Gate(rank).Path() == "idle" }

// A connect request that has been answered makes no second connection, however soon both sides close the first one.
func TestClosedGatesStayClosed(t *testing.T) {
	s := joinAll(t, 2, nil)
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		switch ways := round % 3; ways {
		case 2:
			connectPair(t, s)
		default:
			if err := s[ways].Gate(1 - ways).ConnectWait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the other side is connected", func() bool { return s[1-ways].Stats().Connects > uint64(round) })
		}
		for r := range s {
			s[r].Gate(1 - r).Disconnect()
		}
		for r := range s {
			eventually(t, "closed", func() bool { return ended(s[r], 1-r) })
			if got := s[r].Stats().Connects; got != uint64(round+1) {
				t.Fatalf("rank %d connected %d times in %d rounds", r, got, round+1)
			}
		}
	}
}

// apart lets a session make progress in the background of a test that has it make none by itself.
func apart(t *testing.T, s *session.Session) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			s.Progress()
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
}

// Close does not wait for messages that the peer would have to match first: they fail with ErrClosed.
func TestCloseDoesNotWaitForUnreceivedMessages(t *testing.T) {
	short, long := pattern(8, 1), pattern(1<<20, 2)
	closes := func(t *testing.T, s []*session.Session, receive func(), rank ...int) {
		var wg sync.WaitGroup
		wg.Go(receive)
		for _, r := range rank {
			wg.Go(func() {
				if err := s[r].Close(deadline(t)); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			})
		}
		wg.Wait()
	}
	leaves := func(t *testing.T, s []*session.Session, receive func(), rank ...int) {
		for _, r := range rank {
			s[r].Gate(1 - r).Disconnect()
		}
		receive()
		for r := range s {
			eventually(t, "closed", func() bool { return ended(s[r], 1-r) })
		}
	}
	for _, c := range []struct {
		name    string
		out     session.Out
		senders []int
		closers []int
		close   func(*testing.T, []*session.Session, func(), ...int)
		arrives bool // as the receiver, which does not close, receives it then
	}{
		{"synchronous, the receiver closes", session.Out{Buf: short, Sync: true}, []int{0}, []int{1}, closes, false},
		{"synchronous, the sender closes", session.Out{Buf: short, Sync: true}, []int{0}, []int{0}, closes, true},
		{"long, the sender closes", session.Out{Buf: long}, []int{0}, []int{0}, closes, true},
		{"synchronous, both send, both close", session.Out{Buf: short, Sync: true}, []int{0, 1}, []int{0, 1}, closes, false},
		{"long, both send, both close", session.Out{Buf: long}, []int{0, 1}, []int{0, 1}, closes, false},
		{"long, the receiver disconnects", session.Out{Buf: long}, []int{0}, []int{1}, leaves, false},
		{"long, the sender disconnects", session.Out{Buf: long}, []int{0}, []int{0}, leaves, true},
		{"synchronous, the sender disconnects", session.Out{Buf: short, Sync: true}, []int{0}, []int{0}, leaves, true},
		{"long, both send, both disconnect", session.Out{Buf: long}, []int{0, 1}, []int{0, 1}, leaves, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := joinAll(t, 2, nil)
			ctx := deadline(t)
			var sends []*session.Request
			for _, r := range c.senders {
				o := c.out
				o.Tag = 1
				q, err := s[r].Gate(1 - r).IsendMsg(&o)
				if err != nil {
					t.Fatal(err)
				}
				sends = append(sends, q)
			}
			for _, r := range c.senders {
				if _, err := s[1-r].Probe(ctx, session.Match{Tag: 1}); err != nil {
					t.Fatal(err)
				}
			}
			receive := func() {
				if !c.arrives {
					return
				}
				in := make([]byte, len(c.out.Buf))
				if n, err := s[1].Gate(0).Recv(ctx, 1, in); err != nil || !bytes.Equal(in[:n], c.out.Buf) {
					t.Errorf("receive: %d bytes, %v", n, err)
				}
			}
			c.close(t, s, receive, c.closers...)
			for _, q := range sends {
				if _, err := q.Wait(ctx); c.arrives && err != nil || !c.arrives && !errors.Is(err, session.ErrClosed) {
					t.Errorf("send: %v; arrives %v", err, c.arrives)
				}
			}
		})
	}
}

// A message that has not left when the peer closes goes over the next connection, and no message overtakes it.
func TestOrderHoldsAcrossThePeersClosing(t *testing.T) {
	for name, out := range map[string]session.Out{
		"long": {Tag: 1, Buf: make([]byte, 1<<20)}, "synchronous": {Tag: 1, Buf: make([]byte, 8), Sync: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = session.Explicit })
			ctx := deadline(t)
			g := s[0].Gate(1)
			connected := make(chan error, 1)
			go func() { connected <- g.ConnectWait(ctx) }()
			if err := errors.Join(s[1].Gate(0).ConnectWait(ctx), <-connected); err != nil {
				t.Fatal(err)
			}
			for waiting := 0; waiting < 300; { // nothing is taken: so they wait here in the end
				if r, err := g.Isend(9, make([]byte, 1000)); err != nil {
					t.Fatal(err)
				} else if r != nil {
					waiting++
				}
			}
			first, err := g.IsendMsg(&out)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Isend(1, []byte("behind")); err != nil {
				t.Fatal(err)
			}
			s[1].Gate(0).Disconnect()
			s[0].Progress()
			apart(t, s[0])
			for _, want := range []int{len(out.Buf), len("behind")} {
				st, err := s[1].Recv(ctx, session.Match{Tag: 1}, make([]byte, 1<<20))
				if err != nil || st.Len != want {
					t.Fatalf("%d bytes, %v; want %d", st.Len, err, want)
				}
			}
			if _, err := first.Wait(ctx); err != nil {
				t.Errorf("send: %v", err)
			}
		})
	}
}

// A connection to a process that is not there any more fails, with its reason, although nothing waits to be sent.
func TestConnectWaitReportsThatThePeerIsGone(t *testing.T) {
	gone := func(err error) bool { return errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrBroken) }
	s := joinAll(t, 2, nil)
	card := s[1].Card()
	if err := s[1].Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	g := s[0].Gate(1)
	for range 2 {
		if err := g.ConnectWait(deadline(t)); !gone(err) {
			t.Errorf("connect to a rank that has closed: %v, want closed or broken", err)
		}
		if p := g.Path(); p != "broken" {
			t.Errorf("the gate is %s", p)
		}
		g.Disconnect()
	}
	if _, err := s[0].Connect(deadline(t), card); !gone(err) {
		t.Errorf("connect by card: %v, want closed or broken", err)
	}
}

// ConnectWait during a quiet period gets its connection after it.
func TestConnectWaitOutlastsAPause(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	if err := s[0].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() { connected <- s[0].Gate(1).ConnectWait(ctx) }()
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-connected; err != nil {
		t.Error(err)
	}
}

// A message that has waited through a pause for the peer to match it fails at the peer's end as if there had been no
// pause.
func TestEndOfAPeerIsNoticedAfterAPause(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	var sends []*session.Request
	for _, o := range []session.Out{{Tag: 1, Buf: make([]byte, 8), Sync: true}, {Tag: 1, Buf: make([]byte, 1<<20)}} {
		r, err := s[0].Gate(1).IsendMsg(&o)
		if err != nil {
			t.Fatal(err)
		}
		sends = append(sends, r)
	}
	eventually(t, "messages are stored", func() bool { s[1].Progress(); return s[1].Stats().Unexpected == 2 })
	eachOf(t, s, func(x *session.Session) error { return x.Quiesce(ctx) })
	eachOf(t, s, func(x *session.Session) error { return x.Resume() })
	if err := s[1].Close(ctx); err != nil {
		t.Error(err)
	}
	for i, r := range sends {
		if _, err := r.Wait(ctx); !errors.Is(err, session.ErrClosed) && !errors.Is(err, session.ErrBroken) {
			t.Errorf("send %d: %v, want closed or broken", i, err)
		}
	}
}

// A peer ends while messages wait in it for credit. Those fail there, and only those: the others can be received, and
// the end is noticed.
func TestMessagesWithoutCreditEndWithTheirSender(t *testing.T) {
	s := joinAll(t, 2, func(r int, c *session.Config) {
		if r == 1 {
			c.Unexpected = 4096
		}
	})
	ctx := deadline(t)
	const n = 60 // more than the one packet that a peer may always send
	var requests []*session.Request
	for range n {
		r, err := s[0].Gate(1).Isend(1, make([]byte, 1000))
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, r)
	}
	eventually(t, "the peer is blocked", func() bool { s[1].Progress(); return s[1].Stats().Stalls > 0 })
	over, end := context.WithCancel(ctx)
	end()
	if err := s[0].Close(over); !errors.Is(err, context.Canceled) { // the other end receives nothing
		t.Errorf("close: %v", err)
	}
	sent := 0
	for _, r := range requests {
		if r == nil {
			sent++
		} else if _, err := r.Wait(ctx); err == nil {
			sent++
		} else if !errors.Is(err, session.ErrClosed) && !errors.Is(err, session.ErrBroken) {
			t.Errorf("a message that waited for credit: %v, want closed or broken", err)
		}
	}
	if sent == 0 || sent == n {
		t.Errorf("%d of %d messages were sent, want some", sent, n)
	}
	if _, err := s[1].Gate(0).Recv(ctx, 2, nil); !errors.Is(err, session.ErrClosed) && !errors.Is(err, session.ErrBroken) {
		t.Errorf("receive: %v, want closed or broken", err)
	}
	for k := range sent {
		if _, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 1000)); err != nil {
			t.Errorf("message %d: %v", k, err)
		}
	}
	if _, ok := s[1].Iprobe(session.Tag(1)); ok {
		t.Error("a message was received whose send has failed")
	}
}

// A session that receives nothing more closes although its peer has messages without credit: these are for the next
// connection, or fail.
func TestCloseDoesNotWaitForMessagesWithoutCredit(t *testing.T) {
	for name, closes := range map[string]func(*session.Session, *session.Gate) error{
		"closes":      func(s *session.Session, _ *session.Gate) error { return s.Close(deadline(t)) },
		"disconnects": func(_ *session.Session, g *session.Gate) error { g.Disconnect(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Unexpected = 1 << 20 })
			for k := range uint64(10_000) {
				if _, err := s[1].Gate(0).Isend(k, make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the peer waits for credit", func() bool { return s[1].Gate(0).Waiting() > 0 && s[0].Stats().Stalls > 0 })
			if err := closes(s[0], s[0].Gate(1)); err != nil {
				t.Fatal(err)
			}
			connects := s[0].Stats().Connects
			eventually(t, "the connection ends", func() bool { return ended(s[0], 1) || s[0].Stats().Connects > connects })
		})
	}
}

// Two sessions close although messages of one or both wait for credit: these fail with ErrClosed.
func TestSessionsWithoutCreditClose(t *testing.T) {
	for name, c := range map[string]struct {
		floods []int
		sync   bool // rank 1 waits for a receive of rank 0
	}{
		"one floods, the other has an unmatched message": {[]int{0}, true},
		"both flood": {[]int{0, 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Unexpected = 64 << 10 })
			ctx := deadline(t)
			connectPair(t, s)
			var last []*session.Request
			for _, rank := range c.floods {
				var r *session.Request
				for range 400 {
					var err error
					if r, err = s[rank].Gate(1-rank).Isend(1, make([]byte, 1000)); err != nil {
						t.Fatal(err)
					}
				}
				last = append(last, r)
			}
			if c.sync {
				r, err := s[1].Gate(0).IsendMsg(&session.Out{Tag: 1, Buf: make([]byte, 8), Sync: true})
				if err != nil {
					t.Fatal(err)
				}
				last = append(last, r)
				if _, err := s[0].Probe(ctx, session.Tag(1)); err != nil {
					t.Fatal(err)
				}
			}
			eachOf(t, s, func(x *session.Session) error { return x.Close(ctx) })
			for i, r := range last {
				if _, err := r.Wait(ctx); !errors.Is(err, session.ErrClosed) {
					t.Errorf("message %d: %v, want ErrClosed", i, err)
				}
			}
		})
	}
}

// Both ends flood each other and then disconnect. The connection ends once one program has received everything; at most
// one further connection carries what the other has not received by then.
func TestFloodedGatesDisconnectOnceAllIsReceived(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Unexpected = 64 << 10 })
	ctx := deadline(t)
	connectPair(t, s)
	const messages = 400
	for rank := range 2 {
		for k := range messages {
			if _, err := s[rank].Gate(1-rank).Isend(1, append(pattern(1000, 1), byte(k))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for rank := range 2 {
		s[rank].Gate(1 - rank).Disconnect()
	}
	var wg sync.WaitGroup
	for rank := range 2 {
		wg.Go(func() {
			b := make([]byte, 1001)
			for k := range messages {
				_, err := s[rank].Gate(1-rank).Recv(ctx, 1, b)
				if errors.Is(err, session.ErrClosed) { // it was posted before the first connection ended
					_, err = s[rank].Gate(1-rank).Recv(ctx, 1, b)
				}
				if err != nil || b[1000] != byte(k) {
					t.Errorf("rank %d, message %d: got %d, %v", rank, k, b[1000], err)
					return
				}
			}
		})
	}
	wg.Wait()
	for rank := range 2 {
		eventually(t, "closed", func() bool { return ended(s[rank], 1-rank) })
		if n := s[rank].Stats().Connects; n > 2 {
			t.Errorf("rank %d connected %d times, want at most twice", rank, n)
		}
	}
}

// Disconnect ends the connection that carries what was sent before it, also a short active message behind a long one that
// the peer, which disconnects as well, does not take.
func TestDisconnectCountsForActiveMessagesBehindALongOne(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = session.Explicit })
	handled := 0 // without a lock: with Explicit, handlers run inside of calls
	s[1].Handle(1, func(*session.Gate, *session.Active) { handled++ })
	both := func(ok func() bool) func() bool {
		return func() bool { s[0].Progress(); s[1].Progress(); return ok() }
	}
	g := s[0].Gate(1)
	if _, err := g.AMMsg(&session.ActiveOut{Number: 1}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection carries messages", both(func() bool { return handled == 1 }))
	s[1].Gate(0).Disconnect()
	eventually(t, "its Leave is under way", func() bool { s[1].Progress(); return s[1].Gate(0).Leaves() })
	long, err := g.AMMsg(&session.ActiveOut{Number: 1, Data: make([]byte, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.AMMsg(&session.ActiveOut{Number: 1, Data: make([]byte, 8)}); err != nil {
		t.Fatal(err)
	}
	g.Disconnect()
	eventually(t, "both connections have ended", both(func() bool { return ended(s[0], 1) && ended(s[1], 0) && s[0].Stats().Connects == 2 }))
	if _, err := outcome(t, s, long); !errors.Is(err, session.ErrClosed) {
		t.Errorf("the long message: %v, want ErrClosed", err)
	}
}
