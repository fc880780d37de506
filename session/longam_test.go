//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

// activeLengths are lengths of active messages: some go at once, some by rendezvous.
var activeLengths = []int{8, 100_000, 300, 9000, 8, 8, 3 << 20, 5000, 20_000, 1 << 20, 8}

// numbered returns active message k, whose bytes contain its number.
func numbered(k int) []byte {
	b := pattern(activeLengths[k%len(activeLengths)], uint64(k%len(activeLengths)))
	binary.LittleEndian.PutUint32(b, uint32(k))
	return b
}

// takeNumbered has a rank check and count the active messages of another one.
func takeNumbered(t *testing.T, s *session.Session, came *atomic.Int32) {
	var inside atomic.Int32
	s.Handle(6, func(g *session.Gate, a *session.Active) {
		k := int(came.Load())
		if inside.Add(1) != 1 {
			t.Error("two handlers of one peer's messages run at the same time")
		}
		if want := numbered(k); !bytes.Equal(a.Data, want) || string(a.Header) != fmt.Sprint(k) {
			t.Errorf("message %d has header %q and %d bytes, want %d; equal %v", k, a.Header, len(a.Data), len(want), bytes.Equal(a.Data, want))
		}
		inside.Add(-1)
		came.Add(1)
	})
}

// sendNumbered sends active messages without waiting for one before the next.
func sendNumbered(t *testing.T, g *session.Gate, from, n int) {
	ctx := deadline(t)
	var rs []*session.Request
	for k := from; k < from+n; k++ {
		r, err := g.AM(6, fmt.Append(nil, k), numbered(k))
		if err != nil {
			t.Errorf("message %d: %v", k, err)
			return
		}
		if r != nil {
			rs = append(rs, r)
		}
	}
	for _, r := range rs {
		if _, err := r.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
}

// Active messages of all lengths arrive once and in order, in every mode, over one rail and two.
func TestActiveMessagesOfAllLengthsKeepTheirOrder(t *testing.T) {
	for mode := rdv.Null; mode <= rdv.Modes; mode++ {
		for name, rails := range map[string]func(int, *session.Config){"one rail": func(int, *session.Config) {}, "two": twoRails} {
			t.Run(fmt.Sprintf("mode %v, %s", mode, name), func(t *testing.T) {
				s := joinAll(t, 2, func(rank int, c *session.Config) { rails(rank, c); c.Mode = modeOf(int(mode)) })
				var came [2]atomic.Int32
				n := 4 * len(activeLengths)
				if testing.Short() {
					n = len(activeLengths)
				}
				var wg sync.WaitGroup
				for i := range s {
					takeNumbered(t, s[i], &came[i])
				}
				for i := range s {
					wg.Go(func() { sendNumbered(t, s[i].Gate(1-i), 0, n) })
				}
				wg.Wait()
				for i := range s {
					eventually(t, "all have come", func() bool { s[0].Progress(); s[1].Progress(); return int(came[i].Load()) == n })
				}
				eventually(t, "nothing is left", func() bool { return s[0].Pending()+s[1].Pending() == "" })
			})
		}
	}
}

// Long active messages wait for room in the receiver's budget, and lose nothing when the sessions are quiesced or the
// gate is closed in between. One that exceeds the whole budget fails with an error.
func TestLongActiveMessagesKeepToTheBudget(t *testing.T) {
	s := joinAll(t, 3, func(rank int, c *session.Config) {
		if rank == 2 {
			c.Unexpected = 4 << 20 // room for one of the longest, from one peer
		}
	})
	ctx := deadline(t)
	var came [2]atomic.Int32
	var inside atomic.Int32
	s[2].Handle(6, func(g *session.Gate, a *session.Active) {
		if len(a.Data) > 2<<20 && inside.Add(1) > 1 {
			t.Error("two messages have arrived without room for both")
		}
		if k := int(came[g.Rank()].Add(1)) - 1; !bytes.Equal(a.Data, numbered(k)) {
			t.Error(integrity.Errorf("message %d of rank %d differs", k, g.Rank()))
		}
		if len(a.Data) > 2<<20 {
			inside.Add(-1)
		}
	})
	n := 3 * len(activeLengths)
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { sendNumbered(t, s[i].Gate(2), round*n, n) })
		}
		if round == 1 {
			if err := s[2].Quiesce(ctx); err != nil {
				t.Error(err)
			}
			if err := s[2].Resume(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		s[round%2].Gate(2).Disconnect()
	}
	for i := range came {
		eventually(t, "all have come", func() bool { return int(came[i].Load()) == 3*n })
	}
	r, err := s[0].Gate(2).AM(6, nil, make([]byte, 5<<20))
	if err == nil {
		_, err = r.Wait(ctx)
	}
	if !errors.Is(err, driver.ErrTooLong) {
		t.Errorf("a message beyond the budget: %v", err)
	}
	transfer(t, s[0], s[2], 100_000)
	eventually(t, "nothing is left", func() bool { return s[2].Pending() == "" })
}

// A sender may cancel any number of long active messages, also faster than the peer takes back what it began for them.
func TestCancelledLongActiveMessagesAreNoViolation(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = session.Explicit })
	came := 0
	s[1].Handle(6, func(*session.Gate, *session.Active) { came++ })
	progress := func(what string, ok func() bool) {
		t.Helper()
		eventually(t, what, func() bool { s[0].Progress(); s[1].Progress(); return ok() })
	}
	g := s[0].Gate(1)
	for round := range 20 {
		if _, err := g.AM(6, nil, nil); err != nil {
			t.Fatal(err)
		}
		progress("a short message", func() bool { return came > round })
		came = round + 1
		for range 40 {
			r, err := g.AM(6, nil, make([]byte, 100_000))
			if err != nil {
				t.Fatal(err)
			}
			r.Cancel()
		}
	}
	came = 0
	if _, err := g.AM(6, nil, nil); err != nil {
		t.Fatal(err)
	}
	progress("the last message", func() bool { return came > 0 })
	for k, x := range s {
		if err := x.Gate(1 - k).Err(); err != nil {
			t.Errorf("rank %d: %v", k, err)
		}
	}
}

// While a handler runs, the session takes no message from its peer, and a probe of the driver reports an arrival only
// once. So the session looks at all rails when a handler ends: here at the rail on which the peer continues after
// losing the other.
func TestHandlerEndTakesMessagesOfOtherRails(t *testing.T) {
	s := joinAll(t, 2, func(rank int, c *session.Config) { twoRails(rank, c); c.Progress = session.Explicit })
	ctx := deadline(t)
	inside, goOn := make(chan int, 2), make(chan bool)
	s[1].Handle(7, func(_ *session.Gate, a *session.Active) { inside <- len(a.Data); <-goOn })
	// They connect while no caller sleeps: afterwards rank 1 makes progress only explicitly.
	r, err := s[1].Gate(0).Irecv(1, make([]byte, 8))
	if err == nil {
		_, err = s[0].Gate(1).Isend(1, make([]byte, 8))
	}
	for done := false; !done; done, _, err = r.Test() {
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		s[0].Progress()
		s[1].Progress()
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	send := func(n int) {
		r, err := s[0].Gate(1).AM(7, nil, make([]byte, n))
		if err == nil && r != nil {
			_, err = r.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	step := func() { // a step of the peer, because the handler occupies the goroutine that makes progress at rank 1
		s[0].Progress()
		runtime.Gosched()
	}
	wg.Go(func() {
		for !stop.Load() {
			s[1].Progress()
			runtime.Gosched()
		}
	})
	handled := func(want int) {
		t.Helper()
		for {
			select {
			case n := <-inside:
				if n != want {
					t.Errorf("message of %d bytes, want %d", n, want)
				}
				return
			case <-ctx.Done():
				close(goOn)
				t.Fatalf("the message of %d bytes is not handled", want)
			default:
				step()
			}
		}
	}
	send(10)
	handled(10)
	s[0].CloseRail(0)
	send(20)
	for !s[1].ProbeRail(1) {
		if ctx.Err() != nil {
			close(goOn)
			t.Fatal("nothing arrives over the other rail")
		}
		step()
	}
	goOn <- true
	handled(20)
	close(goOn)
}

func TestUrgentActiveMessagesOvertakeWhatWaits(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	order := make(chan byte, 5)
	s[1].Handle(7, func(_ *session.Gate, a *session.Active) { order <- a.Data[0] })
	if err := s[0].Quiesce(ctx); err != nil { // nothing leaves
		t.Fatal(err)
	}
	var sent atomic.Int32
	for k, o := range []session.ActiveOut{
		{Data: make([]byte, 1<<20)}, {Data: make([]byte, 8)}, {Data: make([]byte, 8), Urgent: true}, {Data: make([]byte, 8)}, {Data: make([]byte, 300), Urgent: true},
	} {
		o.Number, o.Data[0] = 7, byte(k)
		o.Then = func(_ session.Status, err error) {
			if err != nil {
				t.Error(err)
			}
			sent.Add(1)
		}
		if r, err := s[0].Gate(1).AMMsg(&o); err != nil || r != nil {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for range 5 {
		select {
		case k := <-order:
			got = append(got, k)
		case <-ctx.Done():
			t.Fatalf("%v have come", got)
		}
	}
	if want := []byte{2, 4, 0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	eventually(t, "all callbacks", func() bool { return sent.Load() == 5 })
}

// An operation that begins after another one is done takes effect after it, whatever both are, without a fence.
func TestCompletedOperationsPrecedeLaterOnes(t *testing.T) {
	for _, emulate := range []bool{false, true} {
		s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate = emulate })
		ctx := deadline(t)
		mem := make([]byte, 1<<20)
		region, err := s[1].Register(mem, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		g := s[0].Gate(1)
		r, err := g.Import(region.Key())
		if err != nil {
			t.Fatal(err)
		}
		seen := make(chan byte, 1)
		s[1].Handle(7, func(_ *session.Gate, a *session.Active) { seen <- mem[len(mem)-1] })
		rounds := byte(50)
		if testing.Short() {
			rounds = 12
		}
		for k := range rounds {
			if err := g.Put(ctx, r, 0, bytes.Repeat([]byte{k}, 1<<20)); err != nil {
				t.Fatal(err)
			}
			if k%2 == 0 {
				if _, err := g.AM(7, nil, []byte{k}); err != nil {
					t.Fatal(err)
				}
				select {
				case got := <-seen:
					if got != k {
						t.Fatalf("a message after put %d sees %d", k, got)
					}
				case <-ctx.Done():
					t.Fatal(ctx.Err())
				}
				continue
			}
			got := make([]byte, 1)
			if err := g.Get(ctx, r, len(mem)-1, got); err != nil || got[0] != k {
				t.Fatalf("a get after put %d: %d, %v", k, got[0], err)
			}
		}
	}
}

// A peer that announces what it does not send, or too much of it, at most loses its own gate, and nothing stays behind.
func TestForgedActiveMessagesHarmNoOtherPeer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		n      int
		total  uint64
		broken bool
	}{
		{"one without anything", 1, 0, false},
		{"one beyond all memory", 1, 1 << 59, false},
		{"too many at once", 100, 100_000, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := joinAll(t, 3, nil)
			var came atomic.Int32
			s[1].Handle(9, func(_ *session.Gate, a *session.Active) { came.Add(1 + int32(len(a.Data))) })
			transfer(t, s[0], s[1], 1000)
			s[0].Gate(1).ForgeActive(tt.n, tt.total)
			if tt.broken {
				_, err := s[1].Gate(0).Recv(deadline(t), 1, make([]byte, 1))
				if !errors.Is(err, session.ErrBroken) {
					t.Errorf("the gate of the peer that violates the limit: %v, want %v", err, session.ErrBroken)
				}
			} else {
				transfer(t, s[0], s[1], 100_000)
			}
			transfer(t, s[2], s[1], 100_000)
			eventually(t, "nothing is left", func() bool { s[1].Progress(); return s[1].Pending() == "" })
			if n := came.Load(); n != 0 && (tt.total != 0 || n != 1) {
				t.Errorf("handlers have counted %d", n)
			}
		})
	}
}

// A long active message that waits for memory while its sender pauses holds up no other peer's.
func TestPausedActiveMessageHoldsUpNoOtherPeer(t *testing.T) {
	const size = 200_000
	ctx := deadline(t)
	s := joinAll(t, 3, func(_ int, c *session.Config) { c.Unexpected = 300_000 })
	inside, leave := make(chan int, 3), make(chan bool)
	s[0].Handle(1, func(g *session.Gate, _ *session.Active) {
		inside <- g.Rank()
		if g.Rank() == 2 {
			<-leave
		}
	})
	send := func(rank int) {
		t.Helper()
		if _, err := s[rank].Gate(0).AM(1, nil, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	handled := func(rank int) {
		t.Helper()
		select {
		case got := <-inside:
			if got != rank {
				t.Fatalf("a message of rank %d is handled, want one of rank %d", got, rank)
			}
		case <-ctx.Done():
			t.Fatalf("no message of rank %d is handled", rank)
		}
	}
	send(2)
	handled(2) // whose handler has the memory
	send(1)
	eventually(t, "rank 1's message waits for memory", func() bool {
		var b bytes.Buffer
		return s[0].Dump(&b) == nil && bytes.Contains(b.Bytes(), []byte(" 1 long active messages wait"))
	})
	if err := s[1].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	leave <- true
	send(2)
	handled(2)
	leave <- true
	if err := s[1].Resume(); err != nil {
		t.Fatal(err)
	}
	handled(1)
}
