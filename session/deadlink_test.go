//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// fillDriver sends until the driver of the connection holds packets that it has no room for.
func fillDriver(t *testing.T, g *session.Gate, size int) (requests []*session.Request) {
	t.Helper()
	for range 100000 {
		if g.InDriver() >= 10 {
			return requests
		}
		r, err := g.Isend(9, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			requests = append(requests, r)
		}
	}
	t.Fatal("the driver never holds a send")
	return nil
}

// A peer that violates the protocol loses its connection, and pending operations with it fail. Messages that the
// driver still holds are not reused before it gives them back; connections to other peers are not affected.
func TestMalformedMessageBreaksOnlyItsGate(t *testing.T) {
	for name, size := range map[string]int{"short": 8, "of the program's memory": 1000} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			s := joinAll(t, 3, func(r int, c *session.Config) {
				if r == 1 {
					c.Progress = session.Explicit
				}
			})
			connected := make(chan error, 1)
			go func() { connected <- s[0].Gate(1).ConnectWait(ctx) }()
			if err := errors.Join(s[1].Gate(0).ConnectWait(ctx), <-connected); err != nil {
				t.Fatal(err)
			}
			if err := s[0].Gate(2).Send(ctx, 1, []byte{1}); err != nil {
				t.Fatal(err)
			}
			waiting := fillDriver(t, s[0].Gate(1), size)
			s[1].Gate(0).ForgeMalformed()
			eventually(t, "rank 0 ends the gate", func() bool { s[0].Progress(); return s[0].Gate(1).Path() == "broken" })
			for k := range 20 {
				if err := s[0].Gate(2).Send(ctx, 1, []byte{byte(k)}); err != nil {
					t.Fatalf("message %d to the third rank, which has done nothing: %v", k, err)
				}
			}
			for k := range 21 {
				b := make([]byte, 1)
				if _, err := s[2].Gate(0).Recv(ctx, 1, b); err != nil || k > 0 && b[0] != byte(k-1) {
					t.Fatalf("message %d has %d: %v", k, b[0], err)
				}
			}
			eventually(t, "the peer sees the end", func() bool {
				s[1].Progress()
				return s[1].Gate(0).Path() == "broken" || s[1].Gate(0).Path() == "idle"
			})
			for _, r := range waiting {
				if _, err := r.Wait(ctx); err != nil && !errors.Is(err, session.ErrBroken) {
					t.Errorf("a send that waited: %v", err)
				}
			}
			// The gate serves again.
			s[0].Gate(1).Disconnect()
			s[1].Gate(0).Disconnect()
			got := make(chan error, 1)
			go func() {
				_, err := s[1].Gate(0).Recv(ctx, 10, make([]byte, 1))
				got <- err
			}()
			if err := errors.Join(s[0].Gate(1).Send(ctx, 10, []byte{1}), <-got); err != nil {
				t.Error("after it:", err)
			}
		})
	}
}

// Close leaves a handler the message that it reads.
func TestCloseWaitsForHandlers(t *testing.T) {
	ctx := deadline(t)
	s := joinAll(t, 2, nil)
	in, out, sum := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	s[1].Handle(1, func(_ *session.Gate, a *session.Active) {
		close(in)
		<-out
		n := 0
		for _, b := range a.Data {
			n += int(b)
		}
		sum <- n
	})
	if _, err := s[0].Gate(1).AM(1, nil, bytes.Repeat([]byte{1}, 1000)); err != nil {
		t.Fatal(err)
	}
	<-in
	over, end := context.WithCancel(ctx)
	end()
	closed := make(chan error, 1)
	go func() { closed <- s[1].Close(over) }()
	eventually(t, "the session is closed", func() bool {
		err := s[1].Gate(0).Send(over, 5, nil)
		return errors.Is(err, session.ErrClosed)
	})
	close(out)
	if n := <-sum; n != 1000 {
		t.Errorf("the handler has read %d bytes, want 1000", n)
	}
	if err := <-closed; !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
}

// Of two calls of Close one closes and the other fails at once, also while a handler runs.
func TestConcurrentClose(t *testing.T) {
	s := joinAll(t, 2, nil)
	in, out := make(chan struct{}), make(chan struct{})
	s[1].Handle(1, func(*session.Gate, *session.Active) {
		close(in)
		<-out
	})
	if _, err := s[0].Gate(1).AM(1, nil, []byte("x")); err != nil {
		t.Fatal(err)
	}
	<-in
	ctx := deadline(t)
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s[1].Close(ctx) }()
	}
	select {
	case err := <-closed:
		if !errors.Is(err, session.ErrClosed) {
			t.Errorf("the other Close: %v, want %v", err, session.ErrClosed)
		}
	case <-ctx.Done():
		t.Error("both calls wait")
	}
	close(out)
	if err := <-closed; err != nil {
		t.Error("Close: ", err)
	}
}

// Operations that wait for a driver to give memory back end as well when the session is closed.
func TestCloseEndsWhatDriversHold(t *testing.T) {
	ctx := deadline(t)
	s := joinAll(t, 2, func(r int, c *session.Config) {
		if r == 0 {
			c.Progress = session.Explicit
		}
	})
	connected := make(chan error, 1)
	go func() { connected <- s[1].Gate(0).ConnectWait(ctx) }()
	if err := errors.Join(s[0].Gate(1).ConnectWait(ctx), <-connected); err != nil {
		t.Fatal(err)
	}
	if _, err := s[0].Gate(1).Isend(1, make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := s[1].Probe(ctx, session.Match{Tag: 1}); err != nil {
		t.Fatal(err)
	}
	r, err := s[1].Gate(0).Irecv(1, make([]byte, 4<<20)) // is begun; the sender makes no progress
	if err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(ctx)
	end()
	if err := s[1].Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
	if _, err := r.Wait(ctx); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("the receive: %v", err)
	}
}
