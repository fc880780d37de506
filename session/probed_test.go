//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// probedPair has rank 0 send a long message, and rank 1 take it by Improbe. Both make progress only explicitly.
func probedPair(t *testing.T, mode *rdv.Mode) (s []*session.Session, r *session.Request, m *session.Message) {
	s = joinAll(t, 2, func(_ int, c *session.Config) { c.Progress, c.Mode = session.Explicit, mode })
	transfer(t, s[0], s[1], 10)
	r, err := s[0].Gate(1).Isend(3, pattern(1<<20, 3))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message has arrived", func() bool {
		s[0].Progress()
		if st, ok := s[1].Iprobe(session.Match{Tag: 3}); !ok || st.Len != 1<<20 {
			return false
		}
		var ok bool
		m, ok = s[1].Improbe(session.Match{Tag: 3})
		return ok
	})
	return s, r, m
}

// outcome makes progress everywhere until a request is done.
func outcome(t *testing.T, s []*session.Session, r *session.Request) (st session.Status, err error) {
	eventually(t, "the request is done", func() (done bool) {
		for _, x := range s {
			x.Progress()
		}
		done, st, err = r.Test()
		return done
	})
	return st, err
}

// A message that Improbe has returned is received, or its receive fails with the cause; the receive does not wait for
// another message.
func TestProbedMessageArrivesOrFails(t *testing.T) {
	for mode := rdv.Null; mode < rdv.Modes; mode++ {
		t.Run(mode.String(), func(t *testing.T) {
			dst := make([]byte, 1<<20)
			receive := func(t *testing.T, m *session.Message) *session.Request {
				t.Helper()
				r, err := m.Irecv(dst)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			output := func(t *testing.T, what string, err, want error) {
				t.Helper()
				if !errors.Is(err, want) {
					t.Errorf("%s returns %v, want %v", what, err, want)
				}
			}
			t.Run("received", func(t *testing.T) {
				s, r, m := probedPair(t, modeOf(int(mode)))
				if st, err := outcome(t, s, receive(t, m)); err != nil || st.Len != len(dst) || !bytes.Equal(dst, pattern(1<<20, 3)) {
					t.Errorf("received %+v, %v", st, err)
				}
				_, err := outcome(t, s, r)
				output(t, "the send", err, nil)
			})
			t.Run("connected again", func(t *testing.T) {
				s, r, m := probedPair(t, modeOf(int(mode)))
				s[1].Gate(0).Disconnect()
				_, err := outcome(t, s, r)
				output(t, "the send", err, session.ErrClosed)
				eventually(t, "the connection is closed", func() bool {
					s[0].Progress()
					s[1].Progress()
					return ended(s[0], 1) && ended(s[1], 0)
				})
				transfer(t, s[0], s[1], 10)
				_, err = outcome(t, s, receive(t, m))
				output(t, "the receive", err, session.ErrClosed)
			})
			if mode == rdv.Get {
				return // the receiver may be inside: the message is not taken back
			}
			t.Run("cancelled before", func(t *testing.T) {
				s, r, m := probedPair(t, modeOf(int(mode)))
				if !r.Cancel() {
					t.Fatal("not cancelled")
				}
				_, err := outcome(t, s, r)
				output(t, "the send", err, session.ErrCanceled)
				inject(t, s)
				_, err = outcome(t, s, receive(t, m))
				output(t, "the receive", err, session.ErrCanceled)
			})
			t.Run("cancelled during", func(t *testing.T) {
				s, r, m := probedPair(t, modeOf(int(mode)))
				q := receive(t, m) // the sender does not receive the RTR before it cancels
				if !r.Cancel() {
					t.Fatal("not cancelled")
				}
				_, err := outcome(t, s, q)
				output(t, "the receive", err, session.ErrCanceled)
			})
		})
	}
}

// inject has rank 1 take every message that rank 0 has sent.
func inject(t *testing.T, s []*session.Session) {
	t.Helper()
	if _, err := s[0].Gate(1).Isend(4, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s[1].Gate(0).Irecv(4, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := outcome(t, s, r); err != nil {
		t.Fatal(err)
	}
}

// A message of which the sender has no record fails at the receiver, in every mode.
func TestLostLongMessagesFail(t *testing.T) {
	for _, mode := range []rdv.Mode{rdv.Null, rdv.Put, rdv.Cooperative} {
		t.Run(mode.String(), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Mode = modeOf(int(mode)) })
			transfer(t, s[0], s[1], 10)
			s[0].Gate(1).Forge(forged(header.RTS, 3, func(b []byte) {
				(&header.Request{ID: 1 << 40, Total: 1 << 20, Modes: uint8(rdv.Set(0).With(mode))}).Put(b)
			}))
			ctx, cancel := context.WithTimeout(context.Background(), testTime)
			defer cancel()
			if _, err := s[1].Gate(0).Recv(ctx, 3, make([]byte, 1<<20)); !errors.Is(err, session.ErrCanceled) {
				t.Errorf("the receive returns %v, want %v", err, session.ErrCanceled)
			}
			transfer(t, s[0], s[1], 1<<20)
		})
	}
}

// No probe reports a message that is longer than this process accepts, whatever its header contains. The send of a
// correct peer fails.
func TestProbedLengthIsBounded(t *testing.T) {
	for _, limit := range []int{0, 1 << 20} {
		s := joinAll(t, 2, func(_ int, c *session.Config) { c.MaxMessage, c.Progress = limit, session.Explicit })
		transfer(t, s[0], s[1], 10)
		for _, total := range []uint64{1 << 60, 1 << 45, 1<<20 + 1} {
			if limit == 0 && total < 1<<40 {
				continue
			}
			s[0].Gate(1).Forge(forged(header.RTS, 3, func(b []byte) { (&header.Request{ID: 1 << 40, Total: total, Modes: 1}).Put(b) }))
			inject(t, s)
			if st, ok := s[1].Iprobe(session.Match{Tag: 3}); ok {
				t.Errorf("a message of %d bytes is reported", st.Len)
			}
			if m, ok := s[1].Improbe(session.Match{Tag: 3}); ok {
				t.Errorf("a message of %d bytes can be taken", m.Status().Len)
			}
		}
		if limit == 0 {
			continue
		}
		r, err := s[0].Gate(1).Isend(4, make([]byte, limit+1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := outcome(t, s, r); !errors.Is(err, driver.ErrTooLong) || !strings.Contains(err.Error(), "Config.MaxMessage") {
			t.Errorf("to send more than the peer takes: %v, want an error that names the limit", err)
		}
		transfer(t, s[0], s[1], limit)
	}
}
