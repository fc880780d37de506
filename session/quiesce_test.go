//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// The session is quiesced again and again in the middle of messages of all lengths and of one-sided operations, at
// both ends at the same time or at one: nothing is lost, duplicated or fails, and there is no connection while it is
// quiet.
func TestQuiescedSessionsContinue(t *testing.T) {
	for _, w := range ways[:len(ways)-1] {
		t.Run(w.name, func(t *testing.T) { quieted(t, w.rails(t)) })
	}
}

func quieted(t *testing.T, rails [2][]session.Rail) {
	s := joinOver(t, rails)
	stuck := time.AfterFunc(testTime-time.Second, func() {
		for _, x := range s {
			_ = x.Dump(os.Stderr)
		}
	})
	defer stuck.Stop()
	ctx := deadline(t)
	region, err := s[1].Register(make([]byte, 1<<20), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := s[0].Gate(1).Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for k, n := range lanes {
		wg.Go(func() { reflected(ctx, t, s[0].Gate(1), uint64(k), n, &stop) })
	}
	wg.Go(func() {
		if err := mirrorLanes(ctx, s[1], 0); err != nil {
			t.Error(err)
		}
	})
	var added uint64
	wg.Go(func() {
		for !stop.Load() {
			old, err := s[0].Gate(1).FetchAdd(ctx, remote, 8, 1)
			if err != nil || old != added {
				t.Errorf("add %d: %d, %v", added, old, err)
				return
			}
			added++
		}
	})
	quietRounds(ctx, t, s)
	stop.Store(true)
	wg.Wait()
	if err := s[0].Resume(); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("a session that is not quiet resumes: %v", err)
	}
	again, err := s[0].Gate(1).Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	if old, err := s[0].Gate(1).FetchAdd(ctx, again, 8, 1); err != nil || old != added {
		t.Errorf("add with the new key: %d, %v, want %d", old, err, added)
	}
}

// quietRounds quiets both, or one.
func quietRounds(ctx context.Context, t *testing.T, s []*session.Session) {
	rounds := 6
	if testing.Short() {
		rounds = 3 // both, and either
	}
	for round := range rounds {
		quiet := s[round%2 : 1+round%2]
		if round%3 == 0 {
			quiet = s
		}
		eachOf(t, quiet, func(x *session.Session) error { return x.Quiesce(ctx) })
		for _, x := range s {
			if p := x.Gate(1 - x.Rank()).Path(); p != "idle" && len(quiet) == 2 {
				t.Errorf("the gate of rank %d is %s", x.Rank(), p)
			}
		}
		if err := quiet[0].Quiesce(ctx); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("a quiet session is quieted: %v", err)
		}
		eachOf(t, quiet, func(x *session.Session) error { return x.Resume() })
		transfer(t, s[0], s[1], 100_000)
	}
}

func eachOf(t *testing.T, s []*session.Session, f func(*session.Session) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, x := range s {
		wg.Go(func() {
			if err := f(x); err != nil {
				t.Errorf("rank %d: %v", x.Rank(), err)
			}
		})
	}
	wg.Wait()
}

// Messages whose reception has not begun, receives without a message, and sends that are posted during the pause
// outlast it; order holds.
func TestQueuedMessagesOutlastThePause(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	const n = 300_000
	var sends []*session.Request
	send := func(k int) {
		o := session.Out{Tag: 7, Buf: pattern([]int{50, n}[k%2], uint64(k)), Sync: k%3 == 0}
		r, err := s[0].Gate(1).IsendMsg(&o)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			sends = append(sends, r)
		}
	}
	early := make([]byte, 10)
	r, err := s[1].Gate(0).Irecv(8, early)
	if err != nil {
		t.Fatal(err)
	}
	for k := range 4 {
		send(k)
	}
	eventually(t, "messages are stored", func() bool { s[1].Progress(); return s[1].Stats().Unexpected == 4 })
	eachOf(t, s, func(x *session.Session) error { return x.Quiesce(ctx) })
	for k := 4; k < 8; k++ {
		send(k)
	}
	first := make([]byte, n) // matched while nothing may begin
	if _, err := s[1].Gate(0).Recv(ctx, 7, first); err != nil {
		t.Fatal(err)
	}
	long, err := s[1].Gate(0).Irecv(7, first)
	if err != nil {
		t.Fatal(err)
	}
	eachOf(t, s, func(x *session.Session) error { return x.Resume() })
	if st, err := long.Wait(ctx); err != nil || st.Len != n || !bytes.Equal(first, pattern(n, 1)) {
		t.Fatalf("long message: %+v, %v", st, err)
	}
	for k := 2; k < 8; k++ {
		buf := make([]byte, n)
		got, err := s[1].Gate(0).Recv(ctx, 7, buf)
		if want := pattern([]int{50, n}[k%2], uint64(k)); err != nil || !bytes.Equal(buf[:got], want) {
			t.Fatalf("message %d: %d bytes, %v", k, got, err)
		}
	}
	if err := s[0].Gate(1).Send(ctx, 8, []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(ctx); err != nil || string(early) != "0123456789" {
		t.Errorf("the receive of before got %q, %v", early, err)
	}
	for i, r := range sends {
		if _, err := r.Wait(ctx); err != nil {
			t.Errorf("send %d: %v", i, err)
		}
	}
}

// Operations by many messages that are under way when a session is quieted, at either end, are finished first.
func TestOperationsByMessageEndBeforeThePause(t *testing.T) {
	for rank := range 2 {
		s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate = true })
		connectPair(t, s)
		ctx := deadline(t)
		const n = 2 << 20
		region, err := s[1].Register(pattern(n, 1), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		g := s[0].Gate(1)
		r, err := g.Import(region.Key())
		if err != nil {
			t.Fatal(err)
		}
		var gets [3]*session.Request
		var bufs [3][]byte
		for k := range gets {
			bufs[k] = make([]byte, n)
			if gets[k], err = g.Iget(r, 0, bufs[k]); err != nil {
				t.Fatal(err)
			}
		}
		if err := s[rank].Quiesce(ctx); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
		if err := s[rank].Resume(); err != nil {
			t.Fatal(err)
		}
		for k, q := range gets { // one that had not begun goes on after it
			if _, err := q.Wait(ctx); err != nil || !bytes.Equal(bufs[k], region.Bytes()) {
				t.Errorf("rank %d was quiesced: get %d: %v, equal %v", rank, k, err, bytes.Equal(bufs[k], region.Bytes()))
			}
		}
	}
}

// A session is not quiet while a driver still has memory whose region is deregistered.
func TestQuiesceWaitsForRevokedMemory(t *testing.T) {
	s := joinAll(t, 2, nil)[0]
	region, err := s.Register(make([]byte, 4096), driver.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	release := region.HoldRegistrations()
	if err := region.Deregister(); !errors.Is(err, session.ErrBusy) {
		t.Fatalf("deregister while a driver holds the memory: %v, want ErrBusy", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Quiesce(over); !errors.Is(err, context.Canceled) {
		t.Errorf("quiesce while a driver holds the memory: %v, want that the context ends it", err)
	}
	release()
	if err := s.Quiesce(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
}

// A connection that has broken is still open while a handler reads its buffer: the session is not quiet until then.
func TestQuiesceWaitsForHandlersOfBrokenConnections(t *testing.T) {
	s, f := faultPair(t, nil, nil)
	inside, leave := make(chan bool), make(chan bool)
	s[0].Handle(1, func(*session.Gate, *session.Active) { close(inside); <-leave })
	if _, err := s[1].Gate(0).AM(1, nil, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	<-inside
	f[0].refuse(driver.ErrBroken)
	_ = s[0].Gate(1).Send(deadline(t), 1, make([]byte, 8))
	eventually(t, "broken", func() bool { return s[0].Gate(1).Path() == "broken" })
	over, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s[0].Quiesce(over); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("quiesce beside a handler: %v, want that the context ends it", err)
	}
	close(leave)
	if err := s[0].Quiesce(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
}

// A key from before any number of pauses is one that messages serve, never one that is taken for a new one.
func TestKeysOutlastManyPauses(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	arena, err := driver.NewArena(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	region, err := s[1].Register(arena.Bytes(), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	g := s[0].Gate(1)
	r, err := g.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	for k := range 1<<8 + 1 { // beyond what fits a byte
		if k%128 == 0 || k > 1<<8-2 { // the other pauses are those of a session without connections
			if err := g.Put(ctx, r, 8, []byte{byte(k)}); err != nil || arena.Bytes()[8] != byte(k) {
				t.Fatalf("a put after %d pauses: %v; there is %d", k, err, arena.Bytes()[8])
			}
			if now := r.Current(); now != (k == 0) {
				t.Errorf("after %d pauses the key is taken for one of now: %v", k, now)
			}
		}
		if err := s[1].Quiesce(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s[1].Resume(); err != nil {
			t.Fatal(err)
		}
	}
}

// mirrorLanes sends back what comes on each lane until an empty message comes there.
func mirrorLanes(ctx context.Context, s *session.Session, peer int) error {
	g := s.Gate(peer)
	var wg sync.WaitGroup
	errs := make([]error, len(lanes))
	for k, n := range lanes {
		wg.Go(func() {
			b := make([]byte, n)
			for errs[k] == nil {
				got, err := g.Recv(ctx, uint64(k), b)
				if err == nil {
					err = g.Send(ctx, uint64(k), b[:got])
				}
				if err != nil {
					errs[k] = fmt.Errorf("lane %d: %w", k, err)
				}
				if got == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A Disconnect that waits until its message is matched does not delay the pause of the peer. It stays pending: after
// Resume the message arrives, and then the gate is closed.
func TestPauseWinsOverUnsentLeave(t *testing.T) {
	s := joinOver(t, ways[0].rails(t))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	sent := bytes.Repeat([]byte{7}, 1<<20)
	r, err := s[0].Gate(1).Isend(1, sent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s[1].Probe(ctx, session.Tag(1)); err != nil {
		t.Fatal(err)
	}
	s[0].Gate(1).Disconnect()
	if err := s[1].Quiesce(ctx); err != nil {
		t.Fatalf("Quiesce beside a peer that wants to leave: %v", err)
	}
	if err := s[1].Resume(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(sent))
	if _, err := s[1].Gate(0).Recv(ctx, 1, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("the message did not arrive after Resume: %v", err)
	}
	if _, err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Disconnect takes effect", func() bool { return s[0].Gate(1).Path() == "idle" })
}

// A long active message that comes when the receiver has begun to pause is handled after the pause. MaxMessage does not
// limit it, then neither.
func TestActiveMessageOutlastsThePause(t *testing.T) {
	const n = 2 << 20
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.MaxMessage = n / 2 })
	connectPair(t, s)
	ctx := deadline(t)
	var handled atomic.Int32
	s[1].Handle(1, func(_ *session.Gate, a *session.Active) { handled.Add(1) })
	for round := range int32(20) {
		paused := make(chan error, 1)
		go func() { paused <- s[1].Quiesce(ctx) }()
		r, err := s[0].Gate(1).AM(1, nil, pattern(n, 1))
		if err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < time.Duration(round)*100*time.Microsecond; {
			s[0].Progress() // the request may leave before the peer begins to pause, or reach it in the middle
		}
		if err := <-paused; err != nil {
			t.Fatal(err)
		}
		if err := s[1].Resume(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(ctx); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		eventually(t, "the message is handled", func() bool { return handled.Load() == round+1 })
	}
}

// Quiesce does not interrupt Close, which delivers what was sent.
func TestQuiesceDoesNotInterruptClose(t *testing.T) {
	s := joinAll(t, 2, nil)
	connectPair(t, s)
	ctx := deadline(t)
	sent := pattern(1<<20, 1)
	r, err := s[0].Gate(1).Isend(1, sent)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s[0].Close(ctx) }()
	eventually(t, "Quiesce is refused", func() bool {
		err := s[0].Quiesce(ctx)
		if err == nil { // Close has not begun yet
			_ = s[0].Resume()
		}
		return errors.Is(err, session.ErrInvalid)
	})
	got := make([]byte, len(sent))
	if _, err := s[1].Gate(0).Recv(ctx, 1, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("the message that was sent before: %v", err)
	}
	if _, err := r.Wait(ctx); err != nil {
		t.Errorf("its send: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A message that a program sends after Quiesce is delivered when it closes the session without Resume.
func TestCloseDeliversWhatWasSentDuringAPause(t *testing.T) {
	s := joinAll(t, 2, nil)
	connectPair(t, s)
	ctx := deadline(t)
	if err := s[0].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s[0].Gate(1).Send(ctx, 1, pattern(8, 1)); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s[0].Close(ctx) }()
	if n, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 8)); err != nil || n != 8 {
		t.Errorf("received %d bytes, %v", n, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A receive can be cancelled although its message has arrived, while the sender pauses. The next receive gets the message,
// before those that the sender sent after it.
func TestReceiveFromPausedPeerIsCancelled(t *testing.T) {
	sent := [][]byte{pattern(1<<20, 1), {2}}
	for _, tt := range []struct {
		name string
		next bool // is posted before the first is cancelled
		recv func(s *session.Session, b []byte) (*session.Request, error)
	}{
		{"receive", false, func(s *session.Session, b []byte) (*session.Request, error) { return s.Gate(1).Irecv(1, b) }},
		{"two receives", true, func(s *session.Session, b []byte) (*session.Request, error) { return s.Gate(1).Irecv(1, b) }},
		{"Improbe", false, func(s *session.Session, b []byte) (*session.Request, error) {
			m, ok := s.Improbe(session.Match{From: s.Gate(1), Tag: 1})
			if !ok {
				return nil, errors.New("Improbe finds nothing")
			}
			return m.Irecv(b)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := deadline(t)
			s := joinAll(t, 2, nil)
			tags := []uint64{1, 1}
			if tt.next {
				tags[1] = 2 // otherwise the second receive takes this message
			}
			for k, b := range sent {
				if _, err := s[1].Gate(0).Isend(tags[k], b); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "two messages have arrived", func() bool { return s[0].Stats().Unexpected == 2 })
			if err := s[1].Quiesce(ctx); err != nil {
				t.Fatal(err)
			}
			first, err := tt.recv(s[0], make([]byte, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1<<20)
			var second *session.Request
			if tt.next {
				if second, err = s[0].Gate(1).Irecv(1, got); err != nil {
					t.Fatal(err)
				}
			}
			over, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if _, err := first.Wait(over); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a receive whose context ends while the sender pauses: %v", err)
			}
			if second == nil {
				if second, err = s[0].Gate(1).Irecv(1, got); err != nil {
					t.Fatal(err)
				}
			}
			if err := s[1].Resume(); err != nil {
				t.Fatal(err)
			}
			for k, want := range sent {
				if k == 1 {
					if second, err = s[0].Gate(1).Irecv(tags[k], got); err != nil {
						t.Fatal(err)
					}
				}
				if st, err := second.Wait(ctx); err != nil || !bytes.Equal(got[:st.Len], want) {
					t.Fatalf("message %d: %d bytes, %v, want %d", k, st.Len, err, len(want))
				}
			}
		})
	}
}

// When a receive is cancelled whose message the next one would have got, the later receives move up.
func TestReceivesMoveUpWhenOneIsCancelled(t *testing.T) {
	ctx := deadline(t)
	s := joinAll(t, 2, nil)
	const size = 1 << 20
	for k := range 2 {
		if _, err := s[1].Gate(0).Isend(1, pattern(size, uint64(k))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "two messages have arrived", func() bool { return s[0].Stats().Unexpected == 2 })
	if err := s[1].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	var rs [3]*session.Request
	var got [3][]byte
	for k := range rs {
		got[k] = make([]byte, size)
		var err error
		if rs[k], err = s[0].Gate(1).Irecv(1, got[k]); err != nil {
			t.Fatal(err)
		}
	}
	if !rs[0].Cancel() {
		t.Fatal("the first receive cannot be cancelled")
	}
	if _, err := rs[0].Wait(ctx); !errors.Is(err, session.ErrCanceled) {
		t.Errorf("the cancelled receive: %v", err)
	}
	if err := s[1].Resume(); err != nil {
		t.Fatal(err)
	}
	for k := range 2 {
		if _, err := rs[k+1].Wait(ctx); err != nil || !bytes.Equal(got[k+1], pattern(size, uint64(k))) {
			t.Errorf("receive %d has not got message %d: %v", k+1, k, err)
		}
	}
}

// The connection breaks when one side of a pause has received the peer's BYE and the other has not. The first then learns
// that the peer has kept nothing: what it has kept fails, and what was sent during the pause arrives. The other's gate is
// broken until its program calls Disconnect or the first connects again.
func TestPauseLostByOneSide(t *testing.T) {
	for _, disconnects := range []bool{true, false} {
		t.Run(fmt.Sprintf("Disconnect %v", disconnects), func(t *testing.T) { losePause(t, disconnects) })
	}
}

func losePause(t *testing.T, disconnects bool) {
	ctx := deadline(t)
	s, faults := faultPair(t, nil, nil)
	to, from := s[0].Gate(1), s[1].Gate(0)
	var lost []*session.Request // by rank 0
	for _, o := range []session.Out{{Tag: 1, Buf: []byte{1}, Sync: true}, {Tag: 1, Buf: make([]byte, 1<<20)}} {
		r, err := to.IsendMsg(&o)
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, r)
	}
	var sends []*session.Request // by rank 1, which fail at once
	for tag := range uint64(3) {
		r, err := from.Isend(tag, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		sends = append(sends, r)
	}
	eventually(t, "the messages have arrived", func() bool {
		return s[0].Stats().Unexpected == 3 && s[1].Stats().Unexpected == 2
	})
	probed, ok := s[0].Improbe(session.Match{From: to, Tag: 0})
	if !ok {
		t.Fatal("Improbe finds nothing")
	}
	faults[1].loseBye.Store(true)
	if err := s[0].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rank 1 loses the connection", func() bool { return from.Err() != nil })
	faults[1].loseBye.Store(false)
	for _, r := range sends {
		if _, err := r.Wait(ctx); !errors.Is(err, session.ErrBroken) {
			t.Errorf("a send to the peer that pauses: %v", err)
		}
	}
	postponed, err := to.Irecv(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	lost = append(lost, postponed)
	var handled atomic.Int32
	s[1].Handle(1, func(_ *session.Gate, a *session.Active) { handled.Add(int32(len(a.Data))) })
	am, err := to.AM(1, nil, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	sent := []*session.Request{am}
	for _, o := range []session.Out{{Tag: 2, Buf: []byte{2}, Sync: true}, {Tag: 3, Buf: pattern(1<<20, 3)}} {
		r, err := to.IsendMsg(&o)
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, r)
	}
	if disconnects {
		from.Disconnect()
	}
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gate is usable again", func() bool { return from.Err() == nil })
	got := make([]byte, 1<<20)
	for tag := uint64(2); tag <= 3; tag++ {
		if _, err := from.Recv(ctx, tag, got); err != nil {
			t.Fatalf("message %d after the pause: %v", tag, err)
		}
	}
	if !bytes.Equal(got, pattern(1<<20, 3)) {
		t.Error("the long message arrived changed")
	}
	for _, r := range sent {
		if _, err := r.Wait(ctx); err != nil {
			t.Errorf("a send after the pause: %v", err)
		}
	}
	eventually(t, "the active message is handled", func() bool { return handled.Load() == 1<<20 })
	for k, r := range lost {
		if _, err := r.Wait(ctx); !errors.Is(err, session.ErrBroken) {
			t.Errorf("request %d from before the pause: %v", k, err)
		}
	}
	if _, err := probed.Recv(ctx, got); !errors.Is(err, session.ErrClosed) {
		t.Errorf("a message of before the pause, found by Improbe: %v", err)
	}
	if _, ok := s[0].Iprobe(session.Match{From: to, Tag: 2}); ok {
		t.Error("a message of before the pause, whose send has failed, is still there")
	}
	transfer(t, s[0], s[1], 100_000)
	transfer(t, s[1], s[0], 100_000)
}

// A side announces its pause once the peer has been asked for all messages that have begun to arrive. Otherwise the peer
// might end the pause, and then cancel one of them, which the receiver would never learn.
func TestPauseWaitsForReceivesWithoutRoom(t *testing.T) {
	s, faults := faultPair(t, nil, nil)
	ctx := deadline(t)
	got := make([]byte, 1<<20)
	received, err := s[1].Gate(0).Irecv(1, got)
	if err != nil {
		t.Fatal(err)
	}
	faults[1].noRoom.Store(true)
	r, err := s[0].Gate(1).Isend(1, pattern(1<<20, 1))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the receive waits for room in the driver", func() bool { s[1].Progress(); return faults[1].refused.Load() > 0 })
	var paused atomic.Bool
	look := func(k header.Kind) error {
		if k == header.Pause {
			paused.Store(true)
		}
		return nil
	}
	faults[0].small.Store(&look)
	quiet := make(chan error, 1)
	go func() { quiet <- s[0].Quiesce(ctx) }()
	eventually(t, "rank 0 pauses", paused.Load)
	for range 1000 { // time for all that the pause takes
		s[0].Progress()
		s[1].Progress()
	}
	if !r.Cancel() {
		t.Fatal("a message that the receiver has not asked for cannot be cancelled")
	}
	faults[1].noRoom.Store(false)
	if err := <-quiet; err != nil {
		t.Fatal(err)
	}
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if err := s[0].Gate(1).Send(ctx, 1, pattern(1<<20, 2)); err != nil {
		t.Fatal(err)
	}
	if st, err := received.Wait(ctx); err != nil || !bytes.Equal(got[:st.Len], pattern(1<<20, 2)) {
		t.Fatalf("received %d bytes, %v", st.Len, err)
	}
}

// A gate that broke at the end of a pause stays broken, with its error, while the peer's attempts to connect fail.
func TestGateStaysBrokenWhileThePeerCannotConnect(t *testing.T) {
	ctx := deadline(t)
	s, faults := faultPair(t, nil, nil)
	to, from := s[0].Gate(1), s[1].Gate(0)
	faults[1].loseBye.Store(true)
	if err := s[0].Quiesce(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rank 1 loses the connection", func() bool { return from.Err() != nil })
	faults[1].loseBye.Store(false)
	lost := from.Err()
	const many = 1 << 30
	faults[1].noConnect.Store(many)
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	to.Connect()
	eventually(t, "attempts to connect have failed", func() bool { return faults[1].noConnect.Load() <= many-2 })
	if err := from.Err(); err != lost {
		t.Errorf("the gate has the error %v, want that of the lost connection, %v", err, lost)
	}
	if _, err := from.Recv(ctx, 1, nil); !errors.Is(err, session.ErrBroken) {
		t.Errorf("a receive from the peer: %v", err)
	}
	faults[1].noConnect.Store(0)
	eventually(t, "the gate is usable again", func() bool { return from.Err() == nil })
	transfer(t, s[0], s[1], 10)
}
