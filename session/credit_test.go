//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// series are messages of 8 bytes with tag 1 that hold their number.
type series struct {
	s    *session.Session
	peer int
	n    int
}

func (m series) send(ctx context.Context) error {
	b := make([]byte, 8)
	for i := range m.n {
		binary.LittleEndian.PutUint64(b, uint64(i))
		if err := m.s.Gate(m.peer).Send(ctx, 1, b); err != nil {
			return err
		}
	}
	return nil
}

// receive checks that all come, in order.
func (m series) receive(t *testing.T, ctx context.Context) {
	t.Helper()
	b := make([]byte, 8)
	for i := range m.n {
		if _, err := m.s.Gate(m.peer).Recv(ctx, 1, b); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if got := binary.LittleEndian.Uint64(b); got != uint64(i) {
			t.Fatalf("message %d came in the place of %d", got, i)
		}
	}
}

// beyondCredit is a number of messages of 8 bytes that a session with the budget of smallBudget does not store.
const beyondCredit = 6000

func smallBudget(_ int, c *session.Config) { c.Unexpected = 1 << 20 }

// More messages than the receiver stores wait at their sender, over every driver, and hold nothing else up there: not
// a long message that the sender of the many receives, nor one that it has begun to send before them.
func TestLongMessagesPassThoseWithoutCredit(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			rails := w.rails(t)
			s := joinAll(t, 2, func(rank int, c *session.Config) {
				smallBudget(rank, c)
				c.Rails = rails[rank]
			})
			for _, order := range []string{"other way", "same way"} {
				t.Run(order, func(t *testing.T) {
					ctx := deadline(t)
					many := series{s[0], 1, beyondCredit}
					long := pattern(1<<20, 3)
					from, to := s[1], s[0]
					if order == "same way" {
						long, from, to = long[:12_000], s[0], s[1]
					}
					got := make([]byte, len(long))
					before := s[1].Stats().Stalls
					var wg sync.WaitGroup
					defer wg.Wait()
					if order == "other way" {
						r, err := to.Gate(from.Rank()).Irecv(2, got)
						if err != nil {
							t.Fatal(err)
						}
						wg.Go(func() {
							if _, err := r.Wait(ctx); err != nil {
								t.Errorf("receive the long message: %v", err)
							}
						})
					} else {
						r, err := from.Gate(to.Rank()).Isend(2, long)
						if err != nil {
							t.Fatal(err)
						}
						wg.Go(func() {
							if _, err := r.Wait(ctx); err != nil {
								t.Errorf("send the long message: %v", err)
							}
						})
					}
					wg.Go(func() {
						if err := many.send(ctx); err != nil {
							t.Errorf("send the many: %v", err)
						}
					})
					eventually(t, "messages wait for credit", func() bool { s[1].Progress(); return s[1].Stats().Stalls > before })
					if order == "other way" {
						if err := from.Gate(to.Rank()).Send(ctx, 2, long); err != nil {
							t.Fatal("the long message does not pass those that wait for credit: ", err)
						}
					} else if _, err := to.Gate(from.Rank()).Recv(ctx, 2, got); err != nil {
						t.Fatal("the long message does not pass those that wait for credit: ", err)
					}
					series{s[1], 0, beyondCredit}.receive(t, ctx)
					wg.Wait()
					if !bytes.Equal(got, long) {
						t.Error("INTEGRITY: the long message was changed")
					}
				})
			}
		})
	}
}

// A peer that connects while others have taken all memory gets credit as soon as the program receives their messages.
func TestPeerThatConnectsLateGetsFreedMemory(t *testing.T) {
	s := joinAll(t, 4, smallBudget)
	ctx := deadline(t)
	late := s[3].Gate(0)
	if err := late.Send(ctx, 3, nil); err != nil { // it stays stored: without that, a peer always has credit for a packet
		t.Fatal(err)
	}
	if _, err := s[0].Probe(ctx, session.Tag(3)); err != nil {
		t.Fatal(err)
	}
	late.Disconnect()
	eventually(t, "disconnected", func() bool { return s[0].Gate(3).Path() == "idle" && late.Path() == "idle" })
	var wg sync.WaitGroup
	defer wg.Wait()
	for k := 1; k < 3; k++ {
		wg.Go(func() {
			if err := (series{s[k], 0, beyondCredit}).send(ctx); err != nil {
				t.Errorf("rank %d: %v", k, err)
			}
		})
	}
	eventually(t, "the memory is used up", func() bool { s[0].Progress(); return s[0].Stats().Stalls >= 2 })
	sent := make(chan error, 1)
	go func() { sent <- late.Send(ctx, 2, pattern(300, 1)) }() // more than is copied: the send waits
	eventually(t, "connected again", func() bool { s[0].Progress(); return s[0].Stats().Connects == 4 })
	series{s[0], 1, beyondCredit}.receive(t, ctx)
	if n, err := s[0].Gate(3).Recv(ctx, 2, make([]byte, 300)); err != nil || n != 300 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	series{s[0], 2, beyondCredit}.receive(t, ctx)
}

// A context ends the wait for credit. The message was not sent then, and all others arrive.
func TestContextEndsTheWaitForCredit(t *testing.T) {
	s := joinAll(t, 2, smallBudget)
	ctx := deadline(t)
	g := s[0].Gate(1)
	over, end := context.WithCancel(ctx)
	ended := make(chan error)
	sent := 0
	go func() {
		b := make([]byte, 300) // more than is copied: the send waits
		for ; ; sent++ {
			binary.LittleEndian.PutUint64(b, uint64(sent))
			if err := g.Send(over, 1, b); err != nil {
				ended <- err
				return
			}
		}
	}()
	eventually(t, "a message waits for credit", func() bool { return s[1].Stats().Stalls > 0 && g.Waiting() > 0 })
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("send: %v, want %v", err, context.Canceled)
	}
	if err := (series{s[0], 1, 1}).send(ctx); err != nil { // a copy: it waits in the session's memory
		t.Fatal(err)
	}
	b := make([]byte, 300)
	for i := range sent {
		if n, err := s[1].Gate(0).Recv(ctx, 1, b); err != nil || n != 300 || binary.LittleEndian.Uint64(b) != uint64(i) {
			t.Fatalf("message %d: %d bytes, number %d, %v", i, n, binary.LittleEndian.Uint64(b), err)
		}
	}
	if n, err := s[1].Gate(0).Recv(ctx, 1, b); err != nil || n != 8 {
		t.Errorf("the message after the one that was taken back has %d bytes, %v; want 8", n, err)
	}
}

// A message that needs no credit leaves when the one before it, which waits for credit, is taken back: no other call has
// to push it.
func TestCancelLetsTheNextMessageLeave(t *testing.T) {
	s := joinAll(t, 2, smallBudget)
	ctx := deadline(t)
	arrived := make(chan struct{})
	s[1].Handle(1, func(*session.Gate, *session.Active) { close(arrived) })
	g := s[0].Gate(1)
	over, end := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		for b := make([]byte, 300); ; {
			if err := g.Send(over, 1, b); err != nil {
				ended <- err
				return
			}
		}
	}()
	eventually(t, "a message waits for credit", func() bool { return s[1].Stats().Stalls > 0 && g.Waiting() > 0 })
	if _, err := g.AM(1, nil, []byte("behind")); err != nil {
		t.Fatal(err)
	}
	end()
	<-ended
	select {
	case <-arrived:
	case <-ctx.Done():
		t.Error("the active message waits behind a message that was taken back")
	}
}

// A peer that sends more than its credit loses the connection with an error that names the limit.
func TestMessagesBeyondCreditEndTheGate(t *testing.T) {
	for _, kind := range []header.Kind{header.Eager, header.Sync, header.RTS} {
		t.Run(kind.String(), func(t *testing.T) {
			s := joinAll(t, 2, smallBudget)
			transfer(t, s[0], s[1], 10)
			ctx := deadline(t)
			for k := uint64(0); s[1].Gate(0).Path() != "broken" && ctx.Err() == nil; k++ {
				b := forged(kind, k, func(b []byte) {
					switch kind {
					case header.Sync:
						binary.LittleEndian.PutUint64(b, k)
					case header.RTS:
						(&header.Request{ID: k, Total: 16, Modes: 1}).Put(b)
					}
				})
				s[0].Gate(1).PostUnpaid(b)
			}
			_, err := s[1].Gate(0).Recv(ctx, 1<<40, nil)
			if !errors.Is(err, session.ErrLimit) || !errors.Is(err, session.ErrBroken) || !strings.Contains(err.Error(), "granted") {
				t.Errorf("the gate ends with %v, want the limit and what was exceeded", err)
			}
			if stored := s[1].Stats().Unexpected; stored > 1<<20/448+16 {
				t.Errorf("%d messages are stored, more than the budget allows", stored)
			}
		})
	}
}

// Messages that wait for credit do not hold up a pause, and go on over the next connection.
func TestMessagesWithoutCreditOutlastThePause(t *testing.T) {
	s := joinAll(t, 2, smallBudget)
	ctx := deadline(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := (series{s[0], 1, beyondCredit}).send(ctx); err != nil {
			t.Errorf("send: %v", err)
		}
	})
	for round := range 3 {
		eventually(t, "messages wait for credit", func() bool { return s[1].Stats().Stalls > 0 && s[0].Gate(1).Waiting() > 0 })
		x := s[round%2]
		if err := x.Quiesce(ctx); err != nil {
			t.Fatalf("pause %d: %v", round, err)
		}
		if err := x.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	series{s[1], 0, beyondCredit}.receive(t, ctx)
}

// Messages that wait for credit are sent before an orderly close ends.
func TestDisconnectSendsWhatWaitsForCredit(t *testing.T) {
	closed := make(chan struct{}, 2)
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		smallBudget(rank, c)
		c.OnClosed = func(*session.Gate) { closed <- struct{}{} }
	})
	ctx := deadline(t)
	g := s[0].Gate(1)
	var requests []*session.Request
	for i := range beyondCredit {
		r, err := g.Isend(1, binary.LittleEndian.AppendUint64(nil, uint64(i)))
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, r)
	}
	g.Disconnect()
	eventually(t, "messages wait for credit", func() bool { return s[1].Stats().Stalls > 0 && g.Waiting() > 0 })
	series{s[1], 0, beyondCredit}.receive(t, ctx)
	if _, err := session.WaitAll(ctx, requests); err != nil {
		t.Error(err)
	}
	for range s {
		<-closed
	}
}

// A long active message for which other peers have left no memory waits, and holds nothing else up.
func TestMessagesPassLongActiveOnesWithoutMemory(t *testing.T) {
	const budget = 1 << 18
	s := joinAll(t, 3, func(_ int, c *session.Config) { c.Unexpected = budget })
	ctx := deadline(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	s[0].Handle(1, func(*session.Gate, *session.Active) {
		close(begun)
		<-goOn
	})
	handled := make(chan int, 1)
	s[0].Handle(2, func(_ *session.Gate, a *session.Active) { handled <- len(a.Data) })
	go func() { _, _ = s[1].Gate(0).AM(1, nil, make([]byte, budget*3/4)) }()
	<-begun
	r, err := s[2].Gate(0).AM(2, nil, make([]byte, budget/2))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s[2].Gate(0).Send(ctx, 5, []byte("passes")) }()
	if _, err := s[0].Gate(2).Recv(ctx, 5, make([]byte, 10)); err != nil {
		t.Error("the message behind the long active one: ", err)
	}
	if len(handled) > 0 {
		t.Error("the long active message has not waited for memory")
	}
	close(goOn)
	if _, err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if n := <-handled; n != budget/2 {
		t.Errorf("the active message that waited has %d bytes, want %d", n, budget/2)
	}
}
