//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// prefetchPair returns two connected ranks over qnix or verbs, whose drivers register the memory of long messages.
func prefetchPair(t *testing.T, driver string, change func(*session.Config)) (s []*session.Session, from, to *session.Gate) {
	t.Helper()
	rail := qnixRail
	if driver == "verbs" {
		rail = verbsRail
	}
	rails := both(rail(t))
	s = joinAll(t, 2, func(rank int, c *session.Config) {
		c.Rails, c.Progress = rails[rank], session.Explicit
		if change != nil {
			change(c)
		}
	})
	transfer(t, s[0], s[1], 10)
	return s, s[0].Gate(1), s[1].Gate(0)
}

// countsOf returns how many prefetches a session has begun, and how many of them it did not use.
func countsOf(s *session.Session) [2]uint64 {
	st := s.Stats()
	return [2]uint64{st.Prefetched, st.Unfetched}
}

func begin(t *testing.T) func(r *session.Request, err error) *session.Request {
	return func(r *session.Request, err error) *session.Request {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// TestReceivesArePrefetched: the memory of a long receive that is posted before its message is registered ahead. What
// arrives short, fails or is cancelled releases it, and after a short message the next receive waits for a long one.
func TestReceivesArePrefetched(t *testing.T) {
	for _, driver := range []string{"qnix", "verbs"} {
		t.Run(driver, func(t *testing.T) {
			s, from, to := prefetchPair(t, driver, nil)
			begin := begin(t)
			const long = 3 << 20
			buf, src := make([]byte, long), pattern(long, 1)
			receive := func(n int, prefetched, unfetched uint64) {
				t.Helper()
				was := countsOf(s[1])
				clear(buf)
				r := begin(to.Irecv(1, buf))
				if got := s[1].Stats().Prefetched - was[0]; got != prefetched {
					t.Errorf("a receive began %d prefetches, want %d", got, prefetched)
				}
				q := begin(from.Isend(1, src[:n]))
				st, err := outcome(t, s, r)
				if err != nil || st.Len != n || !bytes.Equal(buf[:n], src[:n]) {
					t.Errorf("received %d of %d bytes, %v", st.Len, n, err)
				}
				if _, err := outcome(t, s, q); err != nil {
					t.Error(err)
				}
				if got := s[1].Stats().Unfetched - was[1]; got != unfetched {
					t.Errorf("a message of %d bytes left %d prefetches unused, want %d", n, got, unfetched)
				}
			}
			receive(long, 1, 0)
			receive(long/2, 1, 0)    // the beginning of what is registered
			receive(600_000, 1, 0)   // shorter than what is registered in parts
			receive(8, 1, 1)         // it was of no use
			receive(8, 0, 0)         // so the next one does without
			receive(1_000_000, 0, 0) // and so does this, which shows that there are long messages again
			receive(long, 1, 0)

			r := begin(to.Irecv(2, buf))
			if !r.Cancel() {
				t.Error("a receive without a message cannot be cancelled")
			}
			if _, err := r.Wait(t.Context()); !errors.Is(err, session.ErrCanceled) {
				t.Errorf("a cancelled receive: %v", err)
			}
			receive(long, 0, 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := begin(to.Irecv(2, buf)).Wait(ctx)
			if cancel(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a receive whose context ends: %v", err)
			}
			receive(long, 1, 0)
			begin(s[1].Irecv(session.Tag(3), buf)).Cancel() // from any source
			st := s[1].Stats()
			if st.Prefetched != 8 || st.Unfetched != 3 {
				t.Errorf("%d prefetches, of which %d were not used, want 8 and 3", st.Prefetched, st.Unfetched)
			}
			if st := s[0].Stats(); st.Prefetched != 7 || st.Unfetched != 0 {
				t.Errorf("the sender began %d prefetches and did not use %d, want 7 and 0", st.Prefetched, st.Unfetched)
			}
		})
	}
}

// TestPrefetchesEndWithTheConnection: an orderly close, and a pause, release what was prefetched for receives without a
// message, which then fail or wait for the next connection.
func TestPrefetchesEndWithTheConnection(t *testing.T) {
	for _, driver := range []string{"qnix", "verbs"} {
		t.Run(driver, func(t *testing.T) {
			s, from, to := prefetchPair(t, driver, nil)
			buf := make([]byte, 1<<20)
			r := begin(t)(to.Irecv(1, buf))
			from.Disconnect()
			if _, err := outcome(t, s, r); !errors.Is(err, session.ErrClosed) {
				t.Errorf("a receive of a closed gate: %v", err)
			}
			if got := countsOf(s[1]); got != [2]uint64{1, 1} {
				t.Errorf("prefetches, unused ones: %d, want 1 and 1", got)
			}
			// The sender must make progress, too: the close may not be complete on its side.
			r = begin(t)(to.Irecv(9, buf))
			begin(t)(from.Isend(9, pattern(10, 1)))
			if _, err := outcome(t, s, r); err != nil {
				t.Fatal(err)
			}
			r = begin(t)(to.Irecv(1, buf))
			quiesced := make(chan error, 2)
			for _, x := range s {
				go func() { quiesced <- x.Quiesce(context.Background()) }()
			}
			for range s {
				if err := <-quiesced; err != nil {
					t.Fatal(err)
				}
			}
			if got := countsOf(s[1]); got != [2]uint64{2, 2} {
				t.Errorf("prefetches, unused ones after a pause: %d, want 2 and 2", got)
			}
			for _, x := range s {
				if err := x.Resume(); err != nil {
					t.Fatal(err)
				}
			}
			src := pattern(len(buf), 2)
			q := begin(t)(from.Isend(1, src))
			if st, err := outcome(t, s, r); err != nil || st.Len != len(src) || !bytes.Equal(src, buf) {
				t.Errorf("received %d bytes after a pause, %v", st.Len, err)
			}
			if _, err := outcome(t, s, q); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNothingIsPrefetchedWhereItIsOfNoUse: shared memory registers nothing, and NoPrefetch switches it off.
func TestNothingIsPrefetchedWhereItIsOfNoUse(t *testing.T) {
	s := joinAll(t, 2, nil)
	for range 2 {
		transfer(t, s[0], s[1], 1<<20)
	}
	if got := countsOf(s[0]); got != [2]uint64{} {
		t.Errorf("prefetches over shared memory: %d", got)
	}
	s, _, _ = prefetchPair(t, "qnix", func(c *session.Config) { c.NoPrefetch = true })
	transfer(t, s[0], s[1], 1<<20)
	for k, x := range s {
		if got := countsOf(x); got != [2]uint64{} {
			t.Errorf("rank %d: prefetches in spite of NoPrefetch: %d", k, got)
		}
	}
}
