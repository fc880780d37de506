//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// Of many goroutines that wait, each gets its messages, also when others, one of which polls for all, give up waiting
// at any moment.
func TestManyWaitersGetTheirMessages(t *testing.T) {
	for _, p := range []session.Progress{session.Background, session.Explicit} {
		t.Run(fmt.Sprintf("progress %d", p), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = p })
			ctx := deadline(t)
			const waiters, rounds = 16, 100
			var wg sync.WaitGroup
			for w := range waiters {
				wg.Go(func() {
					for got := 0; got < rounds; {
						short, stop := context.WithTimeout(ctx, time.Duration(rand.IntN(500))*time.Microsecond)
						_, err := s[0].Gate(1).Recv(short, uint64(w), nil)
						stop()
						switch {
						case err == nil:
							got++
						case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
							t.Errorf("message %d of waiter %d: %v", got, w, err)
							return
						}
					}
				})
			}
			for range rounds {
				for _, tag := range rand.Perm(waiters) {
					if err := s[1].Gate(0).Send(ctx, uint64(tag), nil); err != nil {
						t.Fatal(err)
					}
					if rand.IntN(4) == 0 {
						time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
					}
				}
			}
			served := make(chan struct{})
			go func() { wg.Wait(); close(served) }()
			for waits := true; waits; { // without the background, messages for which there was no room leave here
				s[1].Progress()
				select {
				case <-served:
					waits = false
				case <-time.After(100 * time.Microsecond):
				}
			}
		})
	}
}

// The background takes active messages, and while one's handler runs a caller begins to wait and polls for all. The
// handler of the next message outlasts that caller. Later callers then get their messages all the same.
func TestHandlerOutlastsTheCallerThatPolls(t *testing.T) {
	s := joinAll(t, 3, nil)
	ctx := deadline(t)
	sent, received := make(chan struct{}), make(chan error, 1)
	within := func(ok func() bool) { // a caller that sleeps needs the background, which runs the handler
		for start := time.Now(); !ok() && time.Since(start) < time.Millisecond; {
			runtime.Gosched()
		}
	}
	s[0].Handle(1, func(*session.Gate, *session.Active) {
		<-sent
		go func() {
			_, err := s[0].Gate(2).Recv(ctx, 1, nil)
			received <- err
		}()
		within(s[0].Led)
	})
	s[0].Handle(2, func(*session.Gate, *session.Active) {
		if err := s[2].Gate(0).Send(ctx, 1, nil); err != nil {
			t.Error(err)
		}
		within(func() bool { return len(received) > 0 })
	})
	for _, x := range s[1:] {
		if err := x.Gate(0).ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		for number := range uint8(2) {
			if err := activeWait(ctx, s[1].Gate(0), 1+number, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		sent <- struct{}{}
		if err := <-received; err != nil {
			t.Fatal(err)
		}
	}
}

// activeWait sends an active message and waits until its data have left.
func activeWait(ctx context.Context, g *session.Gate, number uint8, head, data []byte) error {
	r, err := g.AM(number, head, data)
	if err == nil {
		_, err = r.Wait(ctx)
	}
	return err
}

// answerCalls is a rank that answers each call by a goroutine of its own, until a message comes.
func answerCalls(ctx context.Context, s *session.Session) error {
	failed := make(chan error, 1)
	var answers sync.WaitGroup
	s.Handle(1, func(g *session.Gate, a *session.Active) {
		head, data := append([]byte(nil), a.Header...), append([]byte(nil), a.Data...)
		answers.Go(func() {
			if err := activeWait(ctx, g, 2, head, data); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	})
	_, err := s.Gate(0).Recv(ctx, 1, nil)
	answers.Wait()
	select {
	case why := <-failed:
		return errors.Join(err, why)
	default:
		return err
	}
}

// A caller whose answer comes while it waits for a channel finds the background back soon, also where the messages are so
// long that they go by rendezvous.
func TestBackgroundIsBackSoonAfterALongCall(t *testing.T) {
	s := survivor(t, "answers")
	ctx, g := deadline(t), s.Gate(1)
	answered := make(chan struct{}, 1)
	s.Handle(2, func(*session.Gate, *session.Active) { answered <- struct{}{} })
	if err := g.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	pauses := make([]time.Duration, 300)
	for k := range pauses {
		if err := activeWait(ctx, g, 1, nil, make([]byte, g.MaxActive()+1)); err != nil {
			t.Fatal(err)
		}
		pauses[k] = s.LongestPause()
		<-answered
	}
	slices.Sort(pauses)
	if median := pauses[len(pauses)/2]; median > 200*time.Microsecond {
		t.Errorf("the background sleeps for %v while the answer comes", median)
	}
	if err := g.Send(ctx, 1, nil); err != nil {
		t.Error(err)
	}
}

// Goroutines that call another process, more of them than there is room for in the driver, are about as fast as few.
func TestManyCallersAreAsFastAsFew(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own work counts")
	}
	s := survivor(t, "answers")
	ctx, g := deadline(t), s.Gate(1)
	const size = 1000
	var calls [64]chan struct{}
	for k := range calls {
		calls[k] = make(chan struct{}, 1)
	}
	s.Handle(2, func(_ *session.Gate, a *session.Active) { calls[binary.LittleEndian.Uint32(a.Header)] <- struct{}{} })
	if err := g.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	rate := func(callers int) int64 {
		var done atomic.Int64
		var wg sync.WaitGroup
		for end, k := time.Now().Add(100*time.Millisecond), 0; k < callers; k++ {
			wg.Go(func() {
				head, data := binary.LittleEndian.AppendUint32(nil, uint32(k)), make([]byte, size)
				for time.Now().Before(end) {
					if err := activeWait(ctx, g, 1, head, data); err != nil {
						t.Error(err)
						return
					}
					<-calls[k]
					done.Add(1)
				}
			})
		}
		wg.Wait()
		return done.Load()
	}
	var rates []string
	enough := false
	for try := 0; try < 10 && !enough; try++ {
		few, many := rate(10), rate(len(calls))
		enough = many*2 > few
		rates = append(rates, fmt.Sprintf("%d and %d", few, many))
	}
	if !enough {
		t.Errorf("calls of 10 and of 64 goroutines in 100 ms: %s", strings.Join(rates, ", "))
	}
	if err := g.Send(ctx, 1, nil); err != nil {
		t.Error(err)
	}
}
