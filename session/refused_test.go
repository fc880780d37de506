//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

var oneFaultRail = []session.Rail{{Driver: "faulty"}}

func twoFaultRails() []session.Rail {
	return []session.Rail{{Driver: "faulty"}, {Driver: "faulty", Options: map[string]string{"path": "cma"}}}
}

// The driver refuses a message for a reason that is not the end of the connection: the operation of the message fails,
// whatever kind it is, and nothing else is lost, no rail either.
func TestRefusedMessagesFailAlone(t *testing.T) {
	why := driver.ErrInvalid
	for _, rails := range [][]session.Rail{oneFaultRail, twoFaultRails()} {
		for name, send := range map[header.Kind]func(*session.Gate) (*session.Request, error){
			header.Eager: func(g *session.Gate) (*session.Request, error) { return g.Isend(1, make([]byte, 2000)) },
			header.RTS:   func(g *session.Gate) (*session.Request, error) { return g.Isend(1, make([]byte, 1<<20)) },
			header.Sync: func(g *session.Gate) (*session.Request, error) {
				return g.IsendMsg(&session.Out{Tag: 1, Sync: true, Buf: make([]byte, 10)})
			},
			header.AM: func(g *session.Gate) (*session.Request, error) { return g.AM(1, nil, make([]byte, 2000)) },
		} {
			t.Run(name.String()+" "+string('0'+rune(len(rails)))+" rails", func(t *testing.T) {
				s, f := faultPair(t, rails, nil)
				g := s[0].Gate(1)
				f[0].refuse(why, name)
				r, err := send(g)
				if err != nil || r == nil {
					t.Fatal(r, err)
				}
				if _, err := r.Wait(deadline(t)); !errors.Is(err, why) {
					t.Errorf("the request returns %v, want %v", err, why)
				}
				f[0].refuse(nil)
				if p := g.Path(); strings.Contains(p, "lost") || strings.Contains(p, "broken") {
					t.Errorf("the connection is %q after it", p)
				}
				transfer(t, s[0], s[1], 10)
				transfer(t, s[0], s[1], 1<<20)
				eventually(t, "nothing is left", func() bool { return s[0].Pending() == "" && s[1].Pending() == "" })
			})
		}
	}
}

// The loss of a refused message could not be reported to the program: so the rail is lost, and the message goes over
// the next one.
func TestRefusedUnownedMessagesUseNextRail(t *testing.T) {
	s, f := faultPair(t, twoFaultRails(), nil)
	g := s[0].Gate(1)
	var times atomic.Int32
	once := func(kind header.Kind) error {
		if kind == header.Eager && times.Add(1) == 1 {
			return driver.ErrInvalid
		}
		return nil
	}
	f[0].small.Store(&once)
	src, dst := pattern(100, 4), make([]byte, 100)
	if r, err := g.Isend(1, src); err != nil || r != nil {
		t.Fatal(r, err)
	}
	if n, err := s[1].Gate(0).Recv(deadline(t), 1, dst); err != nil || !bytes.Equal(src, dst[:n]) {
		t.Errorf("received %d bytes, %v", n, err)
	}
	if p := g.Path(); strings.Count(p, "lost") != 1 {
		t.Errorf("the connection is %q, want one rail lost", p)
	}
	transfer(t, s[1], s[0], 1<<20)
}

// A gate fails on one side alone, while a driver there has a long send that the peer's driver would have to move on: the
// peer learns of it, and both sides' requests end.
func TestGateThatFailsAloneTellsItsPeer(t *testing.T) {
	s, f := faultPair(t, []session.Rail{{Driver: "faulty", Options: map[string]string{"path": "ring"}}}, nil)
	f[0].holdLarge.Store(true)
	out, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	in, err := s[1].Gate(0).Irecv(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the driver has the send", func() bool { return f[0].held.Load() > 0 })
	f[0].refuse(driver.ErrInvalid, header.RTR)
	answered, err := s[0].Gate(1).Irecv(2, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	asked, err := s[1].Gate(0).Isend(2, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*session.Request{"send": out, "its receive": in, "receive": answered, "its send": asked} {
		if _, err := r.Wait(deadline(t)); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want its end", name, err)
		}
	}
}
