//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// postMany posts receives of the tags 0 to n-1 from rank 1.
func postMany(t *testing.T, s *session.Session, n int) (reqs []*session.Request, bufs [][]byte) {
	t.Helper()
	for tag := range n {
		buf := make([]byte, 8)
		r, err := s.Gate(1).Irecv(uint64(tag), buf)
		if err != nil {
			t.Fatal(err)
		}
		reqs, bufs = append(reqs, r), append(bufs, buf)
	}
	return reqs, bufs
}

func TestWaitAnySomeAll(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	reqs, _ := postMany(t, s[0], 5)
	send := func(tag uint64) {
		if err := s[1].Gate(0).SendMsg(ctx, &session.Out{Tag: tag, Buf: []byte("x"), Sync: true}); err != nil {
			t.Error(err)
		}
	}
	send(3)
	if i, st, err := session.WaitAny(ctx, reqs); i != 3 || st.Tag != 3 || err != nil || reqs[3] != nil {
		t.Errorf("any: %d, %+v, %v", i, st, err)
	}
	send(4)
	send(1)
	if done, err := session.WaitSome(ctx, reqs); !slices.Equal(done, []int{1, 4}) || err != nil {
		t.Errorf("some: %v, %v", done, err)
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if i, _, err := session.WaitAny(stopped, reqs[:1]); i != -1 || !errors.Is(err, context.Canceled) || reqs[0] == nil {
		t.Errorf("any, with an ended context: %d, %v", i, err)
	}
	go send(0)
	go send(2)
	if i, err := session.WaitAll(ctx, reqs); i != -1 || err != nil || slices.ContainsFunc(reqs, func(r *session.Request) bool { return r != nil }) {
		t.Errorf("all: %d, %v, %v", i, err, reqs)
	}
	if i, _, err := session.WaitAny(ctx, reqs); i != -1 || err != nil {
		t.Errorf("any of none: %d, %v", i, err)
	}
}

// WaitAny allocates nothing unless it sleeps.
func TestWaitAnyAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	transfer(t, s[1], s[0], 8)
	g := [2]*session.Gate{s[0].Gate(1), s[1].Gate(0)}
	reqs, buf, msg := make([]*session.Request, 3), make([]byte, 8), make([]byte, 8)
	if n := testing.AllocsPerRun(100, func() {
		var err error
		if reqs[1], err = g[0].Irecv(5, buf); err != nil {
			t.Fatal(err)
		}
		if err := g[1].Send(ctx, 5, msg); err != nil {
			t.Fatal(err)
		}
		if i, st, err := session.WaitAny(ctx, reqs); i != 1 || st.Len != 8 || err != nil {
			t.Fatalf("%d, %+v, %v", i, st, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// A request that another goroutine gives back, and the session uses again, is not taken for the one that was meant.
func TestWaitAnyFindsAStaleRequest(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	reqs, _ := postMany(t, s[0], 2)
	ended := make(chan error)
	go func() {
		_, _, err := session.WaitAny(ctx, reqs)
		ended <- err
	}()
	eventually(t, "WaitAny sleeps", func() bool { return s[0].Awaiting() })
	r := reqs[1]
	if !r.CancelAndFree() {
		t.Fatal("too late to cancel")
	}
	if err := <-ended; !errors.Is(err, session.ErrInvalid) {
		t.Errorf("any: %v, want %v", err, session.ErrInvalid)
	}
	reqs[0].Cancel()
	if _, err := session.WaitAll(ctx, reqs[:1]); !errors.Is(err, session.ErrCanceled) {
		t.Errorf("all: %v", err)
	}
}

// A call that waits for a condition polls for a time before it sleeps, not for a number of polls: where a poll takes a
// millisecond, a thousand of them would keep a CPU and the session's lock for a second.
func TestSlowPollsAreFew(t *testing.T) {
	s, f := faultPair(t, nil, func(c *session.Config) { c.Progress = session.Explicit })
	for _, tt := range []struct {
		name string
		wait func(context.Context) error
	}{
		{"WaitAny", func(ctx context.Context) error {
			r, err := s[0].Gate(1).Irecv(9, nil)
			if err != nil {
				return err
			}
			_, _, err = session.WaitAny(ctx, []*session.Request{r})
			r.CancelAndFree()
			return err
		}},
		{"Probe", func(ctx context.Context) error {
			_, err := s[0].Probe(ctx, session.Match{From: s[0].Gate(1), Tag: 9})
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(deadline(t))
			f[0].pollTime.Store(int64(time.Millisecond))
			f[0].polls.Store(0)
			ended := make(chan error, 1)
			go func() { ended <- tt.wait(ctx) }()
			eventually(t, "the call sleeps", s[0].Awaiting)
			polls := f[0].polls.Load()
			f[0].pollTime.Store(0)
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			if polls > 100 {
				t.Errorf("%d polls of a millisecond each before the call sleeps", polls)
			}
		})
	}
}

// Of two calls that wait for one request, one gets its outcome and the other one an error. The session does not use the
// request for two operations afterwards.
func TestRequestIsGivenBackOnce(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	for k := range 100 {
		r, err := s[0].Irecv(session.Match{Tag: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		outcomes := make(chan error, 2)
		go func() { _, err := r.Wait(ctx); outcomes <- err }()
		eventually(t, "a call waits", r.Waited)
		if k%2 == 0 {
			go func() { _, _, err := session.WaitAny(ctx, []*session.Request{r}); outcomes <- err }()
			eventually(t, "another one, too", s[0].Awaiting)
		} else if _, err := r.Wait(ctx); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("a second Wait: %v", err)
		}
		if err := s[1].Gate(0).Send(ctx, 1, nil); err != nil {
			t.Fatal(err)
		}
		first, second := <-outcomes, error(session.ErrInvalid)
		if k%2 == 0 {
			second = <-outcomes
		}
		if first != nil {
			first, second = second, first
		}
		if first != nil || !errors.Is(second, session.ErrInvalid) {
			t.Errorf("round %d: %v and %v", k, first, second)
		}
		var reqs [3]*session.Request
		for j := range reqs {
			if reqs[j], err = s[0].Irecv(session.Match{Tag: 2}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if reqs[0] == reqs[1] || reqs[1] == reqs[2] || reqs[0] == reqs[2] {
			t.Fatalf("round %d: one request for two receives", k)
		}
		for _, r := range reqs {
			r.CancelAndFree()
		}
	}
}
