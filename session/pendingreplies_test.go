//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// forged is a message of the session's protocol, with a body.
func forged(kind header.Kind, tag uint64, put func(body []byte)) []byte {
	b := make([]byte, header.Size+header.BodySize(kind))
	h := header.Header{Kind: kind, Tag: tag}
	h.Put(b)
	if put != nil {
		put(b[header.Size:])
	}
	return b
}

// firstID is the number of what a session asks for first.
const firstID = 1 << 32

// An answer to a request that has not left ends the connection: no request completes while its message, with the
// caller's memory, still waits here.
func TestReplyToUnknownRequestBreaksConnection(t *testing.T) {
	long := func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
		return g.Isend(1, make([]byte, 1<<20))
	}
	for _, tt := range []struct {
		name   string
		begin  func(*session.Gate, *session.Remote) (*session.Request, error)
		answer []byte
	}{
		{"ack", func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.IsendMsg(&session.Out{Tag: 1, Sync: true, Buf: make([]byte, 900)})
		}, forged(header.Ack, firstID, nil)},
		{"rtr", long, forged(header.RTR, firstID, func(b []byte) {
			(&header.Ready{ID: firstID, Length: 1000, Want: 1000, Mode: uint8(rdv.Null)}).Put(b)
		})},
		{"done", long, forged(header.Done, firstID, func(b []byte) { (&header.Part{ToSender: true, All: true}).Put(b) })},
		{"done with a chunk", long, forged(header.Done, firstID, func(b []byte) { (&header.Part{ToSender: true}).Put(b) })},
		{"reply", func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iput(r, 0, make([]byte, 500))
		},
			forged(header.Reply, firstID, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, f := faultPair(t, nil, func(c *session.Config) { c.Emulate, c.Progress = true, session.Explicit })
			g := s[0].Gate(1)
			region, err := s[1].Register(make([]byte, 1000), allAccess)
			if err != nil {
				t.Fatal(err)
			}
			remote, err := g.Import(region.Key())
			if err != nil {
				t.Fatal(err)
			}
			f[0].refuse(driver.ErrBusy)
			r, err := tt.begin(g, remote)
			if err != nil || r == nil {
				t.Fatal(r, err)
			}
			s[1].Gate(0).Forge(tt.answer)
			if _, err := r.Wait(deadline(t)); !errors.Is(err, session.ErrBroken) {
				t.Errorf("the request returns %v, want broken", err)
			}
			if p := g.Path(); p != "broken" {
				t.Errorf("the connection is %q, want broken", p)
			}
		})
	}
}

// An answer may come before the driver has given the message's memory back: the request is done only then.
func TestAnsweredMessageWaitsForDriver(t *testing.T) {
	for _, tt := range []struct {
		name  string
		begin func(*session.Gate, *session.Remote) (*session.Request, error)
	}{
		{"synchronous message", func(g *session.Gate, _ *session.Remote) (*session.Request, error) {
			return g.IsendMsg(&session.Out{Tag: 1, Sync: true, Buf: make([]byte, 900)})
		}},
		{"put by message", func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iput(r, 0, make([]byte, 500))
		}},
		{"atomic by message", func(g *session.Gate, r *session.Remote) (*session.Request, error) {
			return g.Iatomic(r, 0, session.Atomic{Op: driver.Add, Size: 8, Operand: 7, Fetch: true})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, f := faultPair(t, nil, func(c *session.Config) { c.Emulate = true })
			ctx, g := deadline(t), s[0].Gate(1)
			memory := make([]byte, 1000)
			region, err := s[1].Register(memory, allAccess)
			if err != nil {
				t.Fatal(err)
			}
			remote, err := g.Import(region.Key())
			if err != nil {
				t.Fatal(err)
			}
			come, err := s[1].Gate(0).Irecv(1, make([]byte, 1000))
			if err != nil {
				t.Fatal(err)
			}
			f[0].holdSends.Store(true)
			r, err := tt.begin(g, remote)
			if err != nil || r == nil {
				t.Fatal(r, err)
			}
			// The driver gives the message back after the answer.
			if _, err := g.Isend(2, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := s[1].Gate(0).Recv(ctx, 2, nil); err != nil {
				t.Fatal(err)
			}
			if err := s[1].Gate(0).Send(ctx, 3, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Recv(ctx, 3, nil); err != nil {
				t.Fatal(err)
			}
			if done, _, err := r.Test(); done {
				t.Fatalf("done while the driver has the memory: %v", err)
			}
			f[0].holdSends.Store(false)
			if _, err := r.Wait(ctx); err != nil {
				t.Error(err)
			}
			if n := binary.LittleEndian.Uint64(memory); tt.name == "atomic by message" && n != 7 {
				t.Errorf("added %d, want 7 once", n)
			}
			if !come.Cancel() {
				if _, err := come.Wait(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
