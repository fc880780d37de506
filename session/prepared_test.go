//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

func TestPreparedMessages(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	g := s[0].Gate(1)
	came := make(chan string, 1)
	s[1].Handle(5, func(_ *session.Gate, a *session.Active) { came <- string(a.Header) + "|" + string(a.Data) })
	for _, n := range []int{0, 8, 100, 5000} {
		p, err := g.Prepare(3, n+10)
		if err != nil {
			t.Fatal(err)
		}
		want := pattern(n, 1)
		copy(p.Header, "abc")
		copy(p.Data, want)
		p.Data = p.Data[:n]
		if err := p.Send(9); err != nil {
			t.Fatal(err)
		}
		if err := p.Send(9); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("sent twice: %v", err)
		}
		head, buf := make([]byte, 3), make([]byte, n)
		in := session.In{Match: session.Match{From: s[1].Gate(0), Tag: 9}, Buf: buf, Header: head}
		if st, err := s[1].RecvMsg(ctx, &in); err != nil || st.Len != n || string(head) != "abc" || !bytes.Equal(buf, want) {
			t.Errorf("%d bytes: %+v, %q, %v", n, st, head, err)
		}
	}
	p, err := g.Prepare(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Header, "h")
	copy(p.Data, "dd")
	if err := p.AM(5); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the active message arrives", func() bool { s[1].Progress(); return len(came) == 1 })
	if got := <-came; got != "h|dd" {
		t.Errorf("the handler got %q", got)
	}
	for _, bad := range [][2]int{{-1, 0}, {0, -1}, {session.MaxHeader + 1, 0}, {0, g.MaxActive() + 1}} {
		if _, err := g.Prepare(bad[0], bad[1]); !errors.Is(err, driver.ErrTooLong) {
			t.Errorf("%v bytes: %v", bad, err)
		}
	}
	if p, err = g.Prepare(0, 8); err != nil {
		t.Fatal(err)
	}
	p.Data = make([]byte, 8)
	if err := p.Send(9); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("other memory: %v", err)
	}
	p.Free()
	p.Free() // does nothing
}

// A message that waits for the connection is overtaken by urgent ones, which keep their
// order.
func TestUrgentMessagesOvertakeWhatWaits(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	if err := s[0].Quiesce(ctx); err != nil { // nothing leaves
		t.Fatal(err)
	}
	for k, urgent := range []bool{false, true, false, true} {
		o := session.Out{Tag: 3, Buf: []byte{byte(k)}, Urgent: urgent}
		if r, err := s[0].Gate(1).IsendMsg(&o); err != nil || r != nil {
			t.Fatalf("%v, %v", r, err)
		}
	}
	if err := s[0].Resume(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []byte{1, 3, 0, 2} {
		b := make([]byte, 1)
		if _, err := s[1].Gate(0).Recv(ctx, 3, b); err != nil || b[0] != want {
			t.Errorf("message %d, %v, want %d", b[0], err, want)
		}
	}
}

func TestChunksAreNoLongerThanAskedFor(t *testing.T) {
	const n, chunk = 2 << 20, 100_000
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Chunk = chunk })
	transfer(t, s[0], s[1], 8)
	var before, after driver.Counters
	s[1].Counters(&before)
	transfer(t, s[0], s[1], n)
	s[1].Counters(&after)
	if got := after.MessagesReceived - before.MessagesReceived; got < n/chunk {
		t.Errorf("%d bytes came in %d messages of the drivers", n, got)
	}
}

// To a peer that takes nothing, a bounded number of prepared messages can be sent. What is refused stays the program's,
// and can be sent later.
func TestPreparedMessagesAreBounded(t *testing.T) {
	for _, connected := range []bool{true, false} {
		t.Run(fmt.Sprintf("connected %v", connected), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = session.Explicit })
			ctx := deadline(t)
			if connected {
				transfer(t, s[0], s[1], 10)
			}
			g := s[0].Gate(1)
			var refused *session.Prepared
			sent := 0
			for ; refused == nil; sent++ {
				p, err := g.Prepare(0, 4096)
				if err != nil {
					t.Fatal(err)
				}
				p.Data[0] = byte(sent)
				if err := p.Send(9); errors.Is(err, session.ErrBusy) {
					refused = p
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if sent > 100_000 {
					t.Fatal("all messages are taken without a receive")
				}
			}
			got := make(chan error, 1)
			go func() {
				for k := range sent + 1 {
					buf := make([]byte, 4096)
					if n, err := s[1].Gate(0).Recv(ctx, 9, buf); err != nil || n != 4096 || buf[0] != byte(k) {
						got <- fmt.Errorf("message %d: %d bytes, the first %d, %v", k, n, buf[0], err)
						return
					}
				}
				got <- nil
			}()
			for err := refused.Send(9); err != nil; err = refused.Send(9) {
				if !errors.Is(err, session.ErrBusy) || ctx.Err() != nil {
					t.Fatal(err)
				}
				s[0].Progress()
			}
			for len(got) == 0 {
				s[0].Progress()
			}
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		})
	}
}
