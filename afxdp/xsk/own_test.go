//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"flag"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// places has for each chunk of a UMEM where it is, as its user sees it.
type places struct {
	user     []uint64
	filled   map[int]bool // given to Fill, not yet received
	inFlight map[int]bool // given to Transmit, not yet completed
}

// take removes k chunks, chosen by r, from what the user has.
func (p *places) take(r *rapid.T, k int) []uint64 {
	k = min(k, len(p.user))
	for i := range k {
		j := rapid.IntRange(i, len(p.user)-1).Draw(r, "chunk")
		p.user[i], p.user[j] = p.user[j], p.user[i]
	}
	taken := p.user[:k:k]
	p.user = p.user[k:]
	return taken
}

// A frame is in exactly one place: whatever is done in whatever order, each
// chunk comes back once, by the ring it was to come back by, and none is lost.
func TestEveryChunkIsInOnePlace(t *testing.T) {
	needLab(t)
	// Each run opens two devices, which takes its time: fewer and longer ones
	// than usual, unless the command line has a number.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		flag.Set("rapid.checks", "20")
		defer flag.Set("rapid.checks", checks.DefValue)
	}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := lab(t, veth.Config{})
			rapid.Check(t, func(r *rapid.T) { ownershipRun(r, p, mode.attach) })
		})
	}
}

func ownershipRun(r *rapid.T, p *veth.Pair, attach xsk.Attachment) {
	const chunks = 48
	cfg := xsk.Config{
		Attach: attach,
		Memory: xsk.UMEMConfig{Chunks: chunks, ChunkSize: 2048},
		Socket: xsk.SocketConfig{Rx: 16, Tx: 16, Fill: 16, Completion: 16},
	}
	var d [2]*xsk.Device
	var at [2]places
	for i := range d {
		var err error
		if d[i], err = tryOpen(&p.Ends[i], cfg); err != nil {
			r.Fatal(err)
		}
		defer d[i].Close()
		at[i] = places{filled: map[int]bool{}, inFlight: map[int]bool{}}
		for c := range chunks {
			at[i].user = append(at[i].user, d[i].UMEM.Addr(c))
		}
	}
	for range rapid.IntRange(1, 300).Draw(r, "steps") {
		i := rapid.IntRange(0, 1).Draw(r, "end")
		ownershipStep(r, d[i].Sockets[0], &at[i], header(&p.Ends[i], &p.Ends[1-i]))
	}
	// In the end every frame that was sent is completed.
	for i := range d {
		s := d[i].Sockets[0]
		for end := time.Now().Add(deadline); len(at[i].inFlight) > 0; {
			if err := s.Kick(); err != nil && err != xsk.ErrAgain {
				r.Fatal(err)
			}
			takeBack(r, s, &at[i], 16)
			if time.Now().After(end) {
				r.Fatalf("%d frames were never completed", len(at[i].inFlight))
			}
		}
	}
}

func ownershipStep(r *rapid.T, s *xsk.Socket, at *places, head []byte) {
	k := rapid.IntRange(0, 20).Draw(r, "batch")
	switch rapid.SampledFrom([]string{"fill", "transmit", "kick", "receive", "complete"}).Draw(r, "step") {
	case "fill":
		addrs := at.take(r, k)
		n := s.Fill(addrs)
		for _, a := range addrs[:n] {
			at.filled[s.UMEM().Chunk(a)] = true
		}
		at.user = append(at.user, addrs[n:]...)
	case "transmit":
		addrs := at.take(r, k)
		descs := make([]xsk.Desc, len(addrs))
		for i, a := range addrs {
			copy(s.UMEM().Frame(a), head)
			descs[i] = xsk.Desc{Addr: a, Len: 64}
		}
		n := s.Transmit(descs)
		for _, a := range addrs[:n] {
			at.inFlight[s.UMEM().Chunk(a)] = true
		}
		at.user = append(at.user, addrs[n:]...)
	case "kick":
		if err := s.Kick(); err != nil && err != xsk.ErrAgain {
			r.Fatal(err)
		}
	case "receive":
		descs := make([]xsk.Desc, k)
		for _, d := range descs[:s.Receive(descs)] {
			c := s.UMEM().Chunk(d.Addr)
			if !at.filled[c] {
				r.Fatalf("received into chunk %d, which was not filled", c)
			}
			delete(at.filled, c)
			at.user = append(at.user, s.UMEM().Addr(c))
		}
	case "complete":
		takeBack(r, s, at, k)
	}
	if n := len(at.user) + len(at.filled) + len(at.inFlight); n != s.UMEM().Chunks() {
		r.Fatalf("%d chunks are somewhere, want %d", n, s.UMEM().Chunks())
	}
}

func takeBack(r *rapid.T, s *xsk.Socket, at *places, k int) {
	addrs := make([]uint64, k)
	for _, a := range addrs[:s.Complete(addrs)] {
		c := s.UMEM().Chunk(a)
		if !at.inFlight[c] {
			r.Fatalf("completed chunk %d, which was not sent", c)
		}
		delete(at.inFlight, c)
		at.user = append(at.user, a)
	}
}
