//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// together runs f for all ranks of a new job.
func together(t *testing.T, size int, f func(j *Client) error) {
	t.Helper()
	s := newServer(t, size)
	var wg sync.WaitGroup
	for r := range size {
		j, err := Join(t.Context(), s.Addr(), r, size, s.secret)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		wg.Go(func() {
			if err := f(j); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
}

func TestExchange(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		together(t, size, func(j *Client) error {
			for round := range 50 {
				mine := bytes.Repeat([]byte{byte(j.Rank())}, (round*j.Rank())%1000)
				if round == 7 {
					mine = make([]byte, MaxCard)
				}
				given, err := j.Exchange(t.Context(), mine)
				if err != nil {
					return err
				}
				for r, b := range given {
					want := bytes.Repeat([]byte{byte(r)}, (round*r)%1000)
					if round == 7 {
						want = make([]byte, MaxCard)
					}
					if !bytes.Equal(b, want) {
						return fmt.Errorf("round %d: rank %d gave %d bytes, want %d", round, r, len(b), len(want))
					}
				}
				if err := j.Barrier(t.Context()); err != nil {
					return err
				}
			}
			_, err := j.Exchange(t.Context(), make([]byte, MaxCard+1))
			if !errors.Is(err, ErrInvalid) {
				return fmt.Errorf("too much data: %w", err)
			}
			return nil
		})
	}
}

func TestBarrierWaitsForAll(t *testing.T) {
	var mu sync.Mutex
	in := 0
	together(t, 4, func(j *Client) error {
		time.Sleep(time.Duration(j.Rank()) * 5 * time.Millisecond)
		mu.Lock()
		in++
		mu.Unlock()
		err := j.Barrier(t.Context())
		mu.Lock()
		defer mu.Unlock()
		if err == nil && in != 4 {
			err = fmt.Errorf("left the barrier when %d ranks were in", in)
		}
		return err
	})
}

// A rank that has exchanged is notified of each way in which another can end.
func TestExchangeEndsWithARank(t *testing.T) {
	for name, end := range map[string]func(s *Server, c *Client){
		"died":      func(_ *Server, c *Client) { wire(c).conn.Close() },
		"left":      func(_ *Server, c *Client) { c.Close() },
		"not begun": func(s *Server, _ *Client) { s.Ended(End{Rank: 2, How: Lost}) },
		"aborted":   func(_ *Server, c *Client) { c.Abort(7, "why") },
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/waiting=%v", name, busy), func(t *testing.T) {
				s := newServer(t, 3)
				if name != "not begun" && !busy { // exchange first, and then wait for nothing
					jobs := []*Client{join(t, s, 0), join(t, s, 1), join(t, s, 2)}
					var wg sync.WaitGroup
					for _, j := range jobs {
						wg.Go(func() {
							if err := j.Barrier(t.Context()); err != nil {
								t.Error(err)
							}
						})
					}
					wg.Wait()
					end(s, jobs[2])
					lost(t, jobs[0], 2)
					lost(t, jobs[1], 2)
					return
				}
				good := join(t, s, 0)
				var bad *Client
				if name != "not begun" {
					bad = join(t, s, 2)
				}
				time.AfterFunc(20*time.Millisecond, func() { end(s, bad) })
				if err := good.Barrier(t.Context()); err == nil {
					t.Error("the barrier completed")
				}
				lost(t, good, 2)
			})
		}
	}
}

func lost(t *testing.T, j *Client, by int) {
	t.Helper()
	select {
	case <-j.Lost():
	case <-time.After(5 * time.Second):
		t.Fatal("the job is not lost")
	}
	var gone *RankError
	if err := j.Err(); !errors.As(err, &gone) || gone.Rank != by {
		t.Errorf("lost: %v, want rank %d", err, by)
	}
	if err := j.Barrier(t.Context()); !errors.As(err, &gone) {
		t.Errorf("barrier after it: %v", err)
	}
}

// A rank that gives its data and leaves at once has given it: the others end their contexts when the job is lost.
func TestExchangeThatIsCompleteSucceeds(t *testing.T) {
	for range 100 { // each of three channels is ready, of which select takes any
		r, c := newReply(), newClient("test", 0, 1)
		r.finish(nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		c.fail(errors.New("the job is lost"))
		cancel(c.Err())
		if _, err := c.wait(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
}

// A rank may leave at once after an exchange: others get the data, even if their callers stop waiting when the job is
// lost.
func TestExchangeSucceedsIfARankLeavesAfterIt(t *testing.T) {
	for range 50 {
		s := newServer(t, 3)
		jobs := []*Client{join(t, s, 0), join(t, s, 1), join(t, s, 2)}
		var wg sync.WaitGroup
		for r, j := range jobs {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					select {
					case <-j.Lost():
						cancel()
					case <-ctx.Done():
					}
				}()
				if given, err := j.Exchange(ctx, []byte{byte(r)}); err != nil || len(given) != 3 || given[2][0] != 2 {
					t.Errorf("rank %d: %v, %v", r, given, err)
				}
				if r == 2 {
					j.Close()
				}
			})
		}
		wg.Wait()
	}
}

// Ranks that meet in different calls get an error that names one of them and the reason, and no rank hangs.
func TestDifferentFencesFail(t *testing.T) {
	s := newServer(t, 2)
	jobs := []*Client{join(t, s, 0), join(t, s, 1)}
	errs := make(chan error, 2)
	go func() { errs <- jobs[0].Barrier(t.Context()) }()
	go func() {
		_, err := jobs[1].Agree(t.Context(), []byte("word"))
		errs <- err
	}()
	for range jobs {
		var named *RankError
		if err := <-errs; !errors.As(err, &named) || !strings.Contains(err.Error(), "different calls") {
			t.Errorf("a barrier and an agreement together: %v", err)
		}
	}
}

func TestCancelledExchange(t *testing.T) {
	s := newServer(t, 2)
	a, b := join(t, s, 0), join(t, s, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := a.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("barrier: %v", err)
	}
	if err := b.Barrier(t.Context()); err != nil {
		t.Errorf("the other's: %v", err)
	}
	if err := a.Barrier(t.Context()); !errors.Is(err, ErrInvalid) {
		t.Errorf("the next: %v, want %v", err, ErrInvalid)
	}
}

// Join reports why it fails: the rank is taken, the size or rank is wrong, or the secret is another one or too short.
func TestJoinErrors(t *testing.T) {
	s := newServer(t, 2)
	join(t, s, 1)
	for _, c := range []struct {
		name       string
		rank, size int
		secret     []byte
		want       error
	}{
		{"taken", 1, 2, s.secret, ErrTaken},
		{"secret", 0, 2, NewSecret(), ErrAuth},
		{"size", 0, 3, s.secret, ErrInvalid},
		{"rank", 2, 2, s.secret, ErrInvalid},
		{"none", 0, 0, s.secret, ErrInvalid},
		{"short secret", 0, 2, s.secret[:15], ErrInvalid},
	} {
		if _, err := Join(t.Context(), s.Addr(), c.rank, c.size, c.secret); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := <-s.Refused(); !errors.Is(err, ErrAuth) {
		t.Errorf("refused: %v, want %v", err, ErrAuth)
	}
}

// A rank whose process the launcher has started is reported with its exit status only; one that it has not started,
// when its connection has been lost for a while.
func TestEndOfAStartedRankWaitsForItsStatus(t *testing.T) {
	ctx, secret := t.Context(), NewSecret()
	ln, err := Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(ln, 3, secret)
	s.Started(1)
	var jobs [3]*Client
	for r := range jobs {
		j, err := Join(ctx, s.Addr(), r, len(jobs), secret)
		if err != nil {
			t.Fatal(err)
		}
		jobs[r] = j
	}
	t.Cleanup(func() {
		if err := errors.Join(jobs[0].Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	ends := make(chan End, 3)
	if err := jobs[0].WatchEnds(func(e End) { ends <- e }); err != nil {
		t.Fatal(err)
	}
	for _, r := range []int{1, 2} {
		wire(jobs[r]).conn.Close()
	}
	if e, want := <-ends, (End{Rank: 2, How: Lost}); e != want {
		t.Errorf("first: %+v, want %+v", e, want)
	}
	want := End{Rank: 1, How: Exited, Code: 3}
	s.Ended(want)
	if e := <-ends; e != want {
		t.Errorf("then: %+v, want %+v", e, want)
	}
}
