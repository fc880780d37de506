//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// A long message finds no room in the driver, and the peer closes the connection: the message is taken back, the
// connection ends in order, and the message goes over the next one.
func TestLongMessagesThatHaveNotLeftGoOverTheNextConnection(t *testing.T) {
	for name, mode := range map[string]*rdv.Mode{"prefetched": nil, "with a key": modeOf(int(rdv.Get))} {
		t.Run(name, func(t *testing.T) {
			var closed atomic.Int32
			s, f := faultPair(t, nil, func(c *session.Config) {
				c.Mode, c.Progress = mode, session.Explicit
				c.OnClosed = func(*session.Gate) { closed.Add(1) }
			})
			f[0].refuse(driver.ErrBusy, header.RTS)
			src, dst := pattern(1<<20, 5), make([]byte, 1<<20)
			r, err := s[0].Gate(1).Isend(1, src)
			if err != nil {
				t.Fatal(err)
			}
			s[1].Gate(0).Disconnect()
			eventually(t, "both ends have closed", func() bool {
				s[0].Progress()
				s[1].Progress()
				return closed.Load() == 2
			})
			f[0].refuse(nil)
			q, err := s[1].Gate(0).Irecv(1, dst)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := outcome(t, s, q); err != nil || st.Len != len(src) || !bytes.Equal(src, dst) {
				t.Errorf("received %+v, %v", st, err)
			}
			if _, err := outcome(t, s, r); err != nil {
				t.Error(err)
			}
			eventually(t, "nothing is left", func() bool {
				s[0].Progress()
				s[1].Progress()
				return s[0].Pending() == "" && s[1].Pending() == ""
			})
		})
	}
}

// Updates of rdv data that arrive before the chunk is posted are queued in order, up to a limit: a peer that sends
// more loses the connection.
func TestEarlyUpdatesAreBounded(t *testing.T) {
	const most = 16
	for _, n := range []int{most, most + 1} {
		s, f := faultPair(t, nil, func(c *session.Config) { c.Mode, c.Progress = modeOf(int(rdv.Cooperative)), session.Explicit })
		var asked, full atomic.Bool
		refuse := func() error {
			if asked.Store(true); full.Load() {
				return driver.ErrBusy
			}
			return nil
		}
		full.Store(true)
		f[0].large.Store(&refuse)
		var got []byte
		f[0].onUpdate = func(b []byte) { got = append(got, b...) }
		r, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		q, err := s[1].Gate(0).Irecv(1, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the chunk finds no room", func() bool { s[0].Progress(); s[1].Progress(); return asked.Load() })
		for k := range n {
			b := forged(header.Cookie, firstID, func(b []byte) { (&header.Part{ToSender: true}).Put(b) })
			h := header.Header{Kind: header.Cookie, Length: 1, Tag: firstID}
			h.Put(b)
			s[1].Gate(0).Forge(append(b, byte(k)))
		}
		if n > most {
			if _, err := outcome(t, s, r); !errors.Is(err, session.ErrBroken) {
				t.Errorf("after %d updates the send returns %v, want broken", n, err)
			}
			continue
		}
		if _, err := s[1].Gate(0).Isend(2, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all updates have arrived", func() bool {
			s[0].Progress()
			s[1].Progress()
			_, ok := s[0].Iprobe(session.Match{Tag: 2})
			return ok
		})
		full.Store(false)
		for _, x := range []*session.Request{r, q} {
			if _, err := outcome(t, s, x); err != nil {
				t.Error(err)
			}
		}
		if want := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; !bytes.Equal(got, want) {
			t.Errorf("the driver got %v, want %v", got, want)
		}
	}
}

// An instance that is broken stays so: without another rail, the gate is broken, which is reported, until Disconnect.
func TestGateWhoseLargeTrackBreaksIsBroken(t *testing.T) {
	reported := make(chan error, 2)
	s, f := faultPair(t, nil, func(c *session.Config) {
		c.Mode = modeOf(int(rdv.Cooperative))
		c.OnError = func(e *session.Error) {
			if !e.NonFatal {
				reported <- e
			}
		}
	})
	ctx := deadline(t)
	refuse := func() error { return driver.ErrBroken }
	f[0].large.Store(&refuse)
	r, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 1<<20)); err == nil {
		t.Errorf("received %d bytes, want an error", n)
	}
	if _, err := r.Wait(ctx); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("the send returns %v, want ErrBroken", err)
	}
	select {
	case err := <-reported:
		if !errors.Is(err, driver.ErrBroken) {
			t.Errorf("reported: %v, want ErrBroken", err)
		}
	case <-ctx.Done():
		t.Fatal("OnError was not called")
	}
	if err := s[0].Gate(1).Err(); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("the gate's error: %v, want ErrBroken", err)
	}
	f[0].large.Store(nil)
	for s[1].Gate(0).Path() != "broken" && s[1].Gate(0).Path() != "idle" {
		if ctx.Err() != nil {
			t.Fatal("the other end does not notice")
		}
		s[1].Progress()
	}
	s[0].Gate(1).Disconnect()
	s[1].Gate(0).Disconnect()
	transfer(t, s[0], s[1], 1<<20)
}

// A chunk cannot be posted, and the tracks still work: the request fails at both ends.
func TestChunksThatCannotBePostedFailAtBothEnds(t *testing.T) {
	for _, why := range []error{driver.ErrClosed, driver.ErrInvalid} {
		t.Run(why.Error(), func(t *testing.T) {
			s, f := faultPair(t, nil, func(c *session.Config) { c.Mode = modeOf(int(rdv.Cooperative)) })
			ctx := deadline(t)
			refuse := func() error { return why }
			f[0].large.Store(&refuse)
			r, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			if n, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 1<<20)); !errors.Is(err, session.ErrCanceled) {
				t.Errorf("received %d bytes, %v, want %v", n, err, session.ErrCanceled)
			}
			if _, err := r.Wait(ctx); !errors.Is(err, why) {
				t.Errorf("the send returns %v, want %v", err, why)
			}
			f[0].large.Store(nil)
			transfer(t, s[0], s[1], 1<<20)
		})
	}
}
