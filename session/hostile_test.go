//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
)

// tape is the bytes of a fuzzer as decisions; it ends in zeros.
type tape []byte

func (t *tape) n(most int) int {
	var v int
	for range 2 {
		if v <<= 8; len(*t) > 0 {
			v |= int((*t)[0])
			*t = (*t)[1:]
		}
	}
	return v % most
}

// id is the number of one of the first things of its kind, at either end.
func (t *tape) id() uint64 { return uint64(1+t.n(3))<<32 | uint64(t.n(4)) }

// message is one of the session's protocol that makes some sense.
func (t *tape) message(region uint64) []byte {
	h := header.Header{Kind: header.Kind(2 + t.n(17)), Tag: t.id(), Flags: uint8(t.n(4))}
	body := make([]byte, header.BodySize(h.Kind))
	data := make([]byte, []int{0, 0, 1, 40, 400, 3000}[t.n(6)])
	off := t.n(30_000)
	switch h.Kind {
	case header.Eager, header.AM, header.Sync:
		h.Tag = uint64(t.n(4))
	case header.RTS:
		h.Tag = uint64(t.n(4))
		total := t.n(60_000)
		r := header.Request{ID: t.id(), Total: uint64(total), Modes: uint8(t.n(16)), Rail: uint8(t.n(2))}
		r.Put(body)
	case header.RTR:
		n := t.n(30_000)
		r := header.Ready{
			ID: t.id(), Offset: uint64(off), Length: uint64(n), Want: uint64([]int{off + n, 20_000, 100_000}[t.n(3)]),
			Chunk: uint32(t.n(3)), Mode: uint8(t.n(5)), Rail: uint8(t.n(2) * t.n(2)),
		}
		r.Put(body)
	case header.Done, header.Cookie:
		p := header.Part{Chunk: uint32(t.n(3)), Status: uint8(t.n(5)), ToSender: t.n(2) == 0, All: t.n(2) == 0}
		p.Put(body)
	case header.Frag:
		binary.LittleEndian.PutUint64(body, uint64(t.n(2)*off))
	case header.Op:
		o := header.Operation{
			ID: t.id(), Region: region, Offset: uint64(t.n(5000)), Length: uint32([]int{len(data), t.n(5000)}[t.n(2)]), What: uint8(t.n(10)),
			Size: uint8(t.n(3) * 4),
		}
		o.Put(body)
	case header.Reply:
		o := header.Outcome{Status: uint8(t.n(7))}
		o.Put(body)
	case header.Seen, header.Resume:
		h.Tag = uint64(t.n(4))
	case header.Grant:
		c := header.Credit{Amount: credit.Amount{Bytes: uint64(t.n(1 << 15)), Messages: uint64(t.n(100))}, Unasked: uint32(1000 + t.n(9000))}
		c.Put(body)
	}
	h.Length = uint32(len(data))
	b := make([]byte, header.Size)
	h.Put(b)
	return append(append(b, body...), data...)
}

// begin has the session under attack do something of its own with the peer.
func (t *tape) begin(s *session.Session, remote *session.Remote) {
	g := s.Gate(1)
	b := make([]byte, []int{10, 300, 1000, 20_000, 100_000}[t.n(5)])
	switch t.n(7) {
	case 0:
		_, _ = g.Isend(uint64(t.n(3)), b)
	case 1:
		_, _ = s.Irecv(session.Match{Ignore: 3}, b)
	case 2:
		_, _ = g.IsendMsg(&session.Out{Sync: true, Buf: b})
	case 3:
		_, _ = g.Iput(remote, 0, b)
	case 4:
		_, _ = g.Iget(remote, 0, b)
	case 5:
		_, _ = g.AM(3, nil, b)
	case 6:
		if m, ok := s.Improbe(session.Match{Ignore: 3}); ok && t.n(2) == 0 {
			_, _ = m.Irecv(b)
		}
	}
}

// hostileTape is one of the corpus.
func hostileTape(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 4000)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	b[0], b[1], b[2], b[3] = 0, byte(seed), 0, byte(seed/5)
	return b
}

// Messages of a peer, of any content, order and time, make nothing panic or hang; no lock stays held, and the session
// can be closed.
func FuzzHandle(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(30) {
		f.Add(hostileTape(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := tape(b)
		mode := in.n(5)
		s := joinAll(t, 2, func(rank int, c *session.Config) {
			c.Progress, c.Unexpected = session.Explicit, 1<<16
			if rank == 0 && mode < 4 {
				c.Mode = modeOf(mode)
			}
		})
		transfer(t, s[1], s[0], 10)
		s[0].Handle(3, func(*session.Gate, *session.Active) {})
		mine, err := s[0].Register(make([]byte, 4096), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := s[1].Register(make([]byte, 100_000), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		g := s[0].Gate(1)
		remote, err := g.Import(theirs.Key())
		if err != nil {
			t.Fatal(err)
		}
		region := binary.LittleEndian.Uint64(mine.Key()[4:])
		for step := 0; step < 300 && len(in) > 0; step++ {
			switch k := in.n(16); {
			case k < 4:
				in.begin(s[0], remote)
			case k == 4: // bytes as they are
				n := min(in.n(100), len(in))
				g.Inject(in[:n])
				in = in[n:]
			case k == 5:
				s[1].Progress()
			default:
				g.Inject(in.message(region))
			}
			s[0].Progress()
			if p := g.Path(); p == "broken" || p == "idle" {
				break
			}
		}
		over, cancel := context.WithCancel(context.Background())
		cancel()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = s[0].Close(over)
			_ = s[1].Close(over)
		}()
		select {
		case <-closed:
		case <-time.After(testTime):
			t.Fatal("a session cannot be closed")
		}
	})
}
