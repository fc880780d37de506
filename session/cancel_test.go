//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// Cancel, or the end of the context, cancels a message of any kind that has not left: nothing of it stays, and later
// messages are not delayed.
func TestCancelQueuedMessages(t *testing.T) {
	kinds := map[string]func(*session.Gate, *session.Remote) (*session.Request, error){
		"message": func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.Isend(1, make([]byte, 1000))
		},
		"long message": func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.Isend(1, make([]byte, 1<<20))
		},
		"active message": func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.AM(1, nil, make([]byte, 1000))
		},
		"long active message": func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.AM(1, nil, make([]byte, 1<<20))
		},
		"synchronous message": func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.IsendMsg(&session.Out{Tag: 1, Sync: true, Buf: make([]byte, 10)})
		},
		"put": func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iput(r, 0, bytes.Repeat([]byte{1}, 30_000)) // several messages, or one operation of the driver
		},
		"get": func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iget(r, 0, make([]byte, 30_000))
		},
		"atomic": func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iatomic(r, 0, session.Atomic{Op: driver.Add, Size: 8, Operand: 1})
		},
	}
	for _, tt := range []struct {
		name      string
		connected bool // and the driver has no room
		emulate   bool // otherwise the driver's own operations, which leave where it has room
		mode      *rdv.Mode
	}{
		{"the driver has no room", true, true, nil},
		{"the driver has no room, the receiver would get", true, true, modeOf(int(rdv.Get))},
		{"there is no connection", false, true, nil},
		{"there is no connection, operations of the driver", false, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, f := faultPair(t, nil, func(c *session.Config) { c.Emulate, c.Mode = tt.emulate, tt.mode })
			ctx, g := deadline(t), s[0].Gate(1)
			region, err := s[1].Register(make([]byte, 30_000), allAccess)
			if err != nil {
				t.Fatal(err)
			}
			remote, err := g.Import(region.Key())
			if err != nil {
				t.Fatal(err)
			}
			over, cancel := context.WithCancel(ctx)
			cancel()
			for kind, begin := range kinds {
				if !tt.connected {
					if err := s[0].Quiesce(ctx); err != nil {
						t.Fatal(err)
					}
				} else {
					f[0].refuse(driver.ErrBusy)
				}
				r, err := begin(g, remote)
				if err != nil || r == nil {
					t.Fatal(kind, r, err)
				}
				if _, err := r.Wait(over); !errors.Is(err, context.Canceled) {
					t.Errorf("%s whose context is over: %v", kind, err)
				}
				if r, err = begin(g, remote); err != nil || r == nil {
					t.Fatal(kind, r, err)
				}
				if !r.Cancel() {
					t.Errorf("%s: not cancelled", kind)
				}
				if _, err := r.Wait(ctx); !errors.Is(err, session.ErrCanceled) {
					t.Errorf("%s that is cancelled: %v", kind, err)
				}
				if !tt.connected {
					if err := s[0].Resume(); err != nil {
						t.Fatal(err)
					}
				} else {
					f[0].refuse(nil)
				}
				if err := g.Flush(ctx); err != nil {
					t.Errorf("%s: flush: %v", kind, err)
				}
				transfer(t, s[0], s[1], 10)
			}
			first := make([]byte, 30_000)
			if err := g.Get(ctx, remote, 0, first); err != nil || !bytes.Equal(first, make([]byte, 30_000)) {
				t.Errorf("after operations that were cancelled: %v, changed %v", err, !bytes.Equal(first, make([]byte, 30_000)))
			}
			if err := region.Deregister(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "nothing is left", func() bool { return s[0].Pending() == "" && s[1].Pending() == "" })
		})
	}
}

// A receive whose message the sender cancels keeps its place before receives that were posted later.
func TestReceiveOfACancelledMessageKeepsItsPlace(t *testing.T) {
	s, f := faultPair(t, nil, nil)
	long := s[1].Stats().Long
	f[1].refuse(driver.ErrBusy, header.RTR)
	var recvs [2]*session.Request
	var bufs [2][]byte
	for i := range recvs {
		bufs[i] = make([]byte, 1<<20)
		r, err := s[1].Gate(0).Irecv(1, bufs[i])
		if err != nil {
			t.Fatal(err)
		}
		recvs[i] = r
	}
	sent, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the long message is matched", func() bool { return s[1].Stats().Long > long })
	if !sent.Cancel() {
		t.Fatal("the message could not be cancelled")
	}
	if _, err := sent.Wait(deadline(t)); !errors.Is(err, session.ErrCanceled) {
		t.Fatal(err)
	}
	f[1].refuse(nil)
	eventually(t, "the receive is posted again", func() bool {
		var b strings.Builder
		return s[1].Dump(&b) == nil && strings.Contains(b.String(), "2 receives posted")
	})
	for i := range recvs {
		if err := s[0].Gate(1).Send(deadline(t), 1, []byte{byte(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range recvs {
		if _, err := r.Wait(deadline(t)); err != nil || bufs[i][0] != byte(i+1) {
			t.Errorf("receive %d got message %d, %v", i+1, bufs[i][0], err)
		}
	}
}

// A wait ends with its context although other messages arrive all the time.
func TestContextEndsAWaitAmongOtherMessages(t *testing.T) {
	s, _ := faultPair(t, nil, nil)
	s[0].Handle(3, func(*session.Gate, *session.Active) {})
	received, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-received:
				return
			default:
			}
			if r, err := s[1].Gate(0).AM(3, nil, make([]byte, 8)); err != nil {
				t.Error(err)
				return
			} else if _, err := r.Wait(deadline(t)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	late := time.AfterFunc(30*time.Second, func() { close(received) })
	if _, err := s[0].Gate(1).Recv(ctx, 1, make([]byte, 8)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if !late.Stop() {
		t.Error("the receive ended with the other messages")
	} else {
		close(received)
	}
	<-over
}
