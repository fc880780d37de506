//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// noticing returns two sessions; the errors of the first, which are reported after a short noticeTime, go to the
// channel.
func noticePair(t *testing.T, change func(*session.Config)) (s []*session.Session, reported chan *session.Error) {
	t.Helper()
	before := session.SetNoticeTime(100 * time.Millisecond)
	t.Cleanup(func() { session.SetNoticeTime(before) })
	reported = make(chan *session.Error, 100)
	s = joinAll(t, 2, func(rank int, c *session.Config) {
		if rank == 0 {
			c.OnError = func(e *session.Error) { reported <- e }
			change(c)
		}
	})
	return s, reported
}

// waitReported waits until a cause is reported to the program.
func waitReported(t *testing.T, reported chan *session.Error, g *session.Gate, cause error) {
	t.Helper()
	select {
	case e := <-reported:
		if !errors.Is(e, cause) || !e.NonFatal || e.Gate != g || e.Peer != g.Rank() || errors.Is(e, session.ErrBroken) {
			t.Errorf("reported %v of rank %d (non-fatal %v), want %v of rank %d", e, e.Peer, e.NonFatal, cause, g.Rank())
		}
	case <-deadline(t).Done():
		t.Fatalf("not reported to the program: %v", cause)
	}
}

// toldOnce checks that nothing more was reported.
func checkReportedOnce(t *testing.T, reported chan *session.Error) {
	t.Helper()
	for len(reported) > 0 {
		t.Errorf("reported again: %v", <-reported)
	}
}

// The report of unreceived messages names the limit that is reached: bytes, which Config.Unexpected raises, or the
// number of messages of a peer, which is fixed.
func TestReportOfUnreceivedMessagesNamesTheLimit(t *testing.T) {
	for _, tt := range []struct {
		name, want  string
		bytes, size int
	}{
		{"bytes", "raise Config.Unexpected (4096 bytes)", 4096, 100},
		{"messages", "one peer can have 65536", 64 << 20, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, reported := noticePair(t, func(c *session.Config) { c.Unexpected = tt.bytes })
			ctx, cancel := context.WithCancel(deadline(t))
			var sender sync.WaitGroup
			sender.Go(func() {
				for s[1].Gate(0).Send(ctx, 1, make([]byte, tt.size)) == nil {
				}
			})
			select {
			case e := <-reported:
				if !strings.Contains(e.Error(), tt.want) {
					t.Errorf("reported %q, want %q in it", e, tt.want)
				}
			case <-ctx.Done():
				t.Error("not reported")
			}
			cancel()
			sender.Wait()
			last := make(chan error, 1)
			go func() { last <- s[1].Gate(0).SendMsg(deadline(t), &session.Out{Tag: 2, Sync: true}) }()
			eventually(t, "all messages have left", func() bool {
				s[0].Drop(session.Match{Ignore: session.AnyTag})
				select {
				case err := <-last:
					return err == nil
				default:
					return false
				}
			})
		})
	}
}

// The first active message of a number without a handler is reported, however long it is; later ones are dropped
// silently.
func TestActiveMessageWithoutHandlerIsReported(t *testing.T) {
	s, reported := noticePair(t, func(*session.Config) {})
	ctx := deadline(t)
	to, from := s[1].Gate(0), s[0].Gate(1)
	for number, n := range map[uint8]int{1: 10, 2: 100_000, 255: 0} {
		for range 2 {
			if err := activeWait(ctx, to, number, nil, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		waitReported(t, reported, from, session.ErrNoHandler)
	}
	transfer(t, s[1], s[0], 10)
	checkReportedOnce(t, reported)
}

// A program that waits for a message behind others that it never receives gets one report. When it drops these, the
// wanted message arrives, and senders of synchronous and long messages go on.
func TestUnreceivedMessagesAreReportedAndDropped(t *testing.T) {
	for _, p := range []session.Progress{session.Background, session.Explicit} {
		t.Run(map[session.Progress]string{session.Background: "background", session.Explicit: "explicit"}[p], func(t *testing.T) {
			s, reported := noticePair(t, func(c *session.Config) { c.Unexpected, c.Progress = 4096, p })
			ctx := deadline(t)
			to, from := s[1].Gate(0), s[0].Gate(1)
			const unwanted, wanted, messages = 9, 1, 100
			sync := make(chan error, 2)
			go func() { sync <- to.SendMsg(ctx, &session.Out{Tag: unwanted, Buf: []byte("synchronous"), Sync: true}) }()
			go func() { sync <- to.Send(ctx, unwanted, make([]byte, 1<<20)) }()
			for range messages {
				if r, err := to.Isend(unwanted, make([]byte, 100)); err != nil {
					t.Fatal(err)
				} else if r != nil {
					defer r.Wait(ctx)
				}
			}
			if r, err := to.Isend(wanted, []byte("wanted")); err != nil {
				t.Fatal(err)
			} else if r != nil {
				defer r.Wait(ctx)
			}
			got := make(chan error, 1)
			go func() {
				b := make([]byte, 10)
				n, err := from.Recv(ctx, wanted, b)
				if err == nil && string(b[:n]) != "wanted" {
					err = errors.New(string(b[:n]))
				}
				got <- err
			}()
			waitReported(t, reported, from, session.ErrUnreceived)
			dropped := 0
			eventually(t, "the wanted message arrives", func() bool {
				dropped += s[0].Drop(session.Match{From: from, Tag: unwanted})
				select {
				case err := <-got:
					if err != nil {
						t.Fatal(err)
					}
					return true
				default:
					return false
				}
			})
			eventually(t, "all others are dropped", func() bool {
				dropped += s[0].Drop(session.Match{From: from, Tag: unwanted})
				return dropped == messages+2
			})
			for range 2 {
				if err := <-sync; err != nil {
					t.Errorf("a sender whose message was dropped: %v", err)
				}
			}
			if n := s[0].Drop(session.Match{Ignore: session.AnyTag}); n != 0 {
				t.Errorf("%d messages more", n)
			}
			checkReportedOnce(t, reported)
		})
	}
}

// A handler that does not return is reported once, with the number of its messages.
func TestBlockingHandlerIsReported(t *testing.T) {
	for _, n := range []int{10, 1 << 20} {
		s, reported := noticePair(t, func(*session.Config) {})
		release := make(chan struct{})
		calls := make(chan struct{}, 10)
		s[0].Handle(3, func(*session.Gate, *session.Active) { calls <- struct{}{}; <-release })
		for range 2 {
			r, err := s[1].Gate(0).AM(3, nil, make([]byte, n))
			if err != nil {
				t.Fatal(err)
			}
			go r.Wait(context.Background())
		}
		waitReported(t, reported, s[0].Gate(1), session.ErrHandlerBlocks)
		close(release)
		for range 2 {
			select {
			case <-calls:
			case <-deadline(t).Done():
				t.Fatal("the handler is not called again")
			}
		}
		checkReportedOnce(t, reported)
	}
}

// Calls of Config.OnError come one after another: a call in which the program causes the next report ends before it.
func TestErrorsAreReportedOneAtATime(t *testing.T) {
	var inside atomic.Int32
	side := make(chan *faults, 1)
	reported := make(chan *session.Error, 3)
	s, f := faultPair(t, nil, func(c *session.Config) {
		c.OnError = func(e *session.Error) {
			if e.Peer != 1 {
				return
			}
			if inside.Add(1) > 1 {
				t.Errorf("%v is reported during another call", e)
			}
			if errors.Is(e, session.ErrNoHandler) {
				(<-side).refuse(driver.ErrBroken)
				_, _ = e.Gate.Isend(1, nil)
			}
			inside.Add(-1)
			reported <- e
		}
	})
	side <- f[0]
	if _, err := s[1].Gate(0).AM(1, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{session.ErrNoHandler, session.ErrBroken} {
		select {
		case e := <-reported:
			if !errors.Is(e, want) {
				t.Errorf("reported: %v, want %v", e, want)
			}
		case <-deadline(t).Done():
			t.Fatalf("not reported: %v", want)
		}
	}
}
