package session_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/header"
	"github.com/bywash/bywash/session/rdv"
)

// A long message finds no room in the driver, and the peer closes the connection: what was begun for it there is taken back, the
// connection ends in order, and the message goes over the next one.
func TestLongMessagesThatHaveNotLeftGoOverTheNextConnection(t *testing.T) {
	for name, mode := range map[string]*rdv.Mode{"prefetched": nil, "with a key": modeOf(int(rdv.Get))} {
		t.Run(name, func(t *testing.T) {
			var closed atomic.Int32
			s, f := fussyPair(t, nil, func(c *session.Config) {
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
			eventually(t, "nothing is there any more", func() bool {
				s[0].Progress()
				s[1].Progress()
				return s[0].Pending() == "" && s[1].Pending() == ""
			})
		})
	}
}

// A chunk cannot be posted, as the large track is gone or for another reason, and the small track stands: both ends say so.
func TestChunksThatCannotBePostedFailAtBothEnds(t *testing.T) {
	for _, why := range []error{driver.ErrBroken, driver.ErrClosed, driver.ErrInvalid} {
		t.Run(why.Error(), func(t *testing.T) {
			s, f := fussyPair(t, nil, func(c *session.Config) { c.Mode = modeOf(int(rdv.Cooperative)) })
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
				t.Errorf("the send says %v, want %v", err, why)
			}
			f[0].large.Store(nil)
			transfer(t, s[0], s[1], 1<<20)
		})
	}
}
