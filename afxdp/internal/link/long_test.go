package link

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// longVictim is an endpoint that takes packets of several frames, with a connection to one that the test plays itself.
func longVictim(tb testing.TB) (e *Endpoint, p *trap, c *Conn) {
	e, p, c, _, _ = victimOf(tb, Config{MTU: 9000, Unit: 1000})
	return e, p, c
}

// pieces cuts a packet.
func pieces(b []byte, size int) (all [][]byte) {
	for len(b) > 0 {
		n := min(size, len(b))
		all, b = append(all, b[:n:n]), b[n:]
	}
	return all
}

// longPacket is a genuine one to c, of n bytes in all.
func longPacket(c *Conn, n int, change func(h *header, b []byte)) []byte {
	return packet(c, n, func(h *header, b []byte) {
		h.flags = flagPlaced
		le.PutUint64(b[56:], 7)
		le.PutUint64(b[72:], uint64(n-placedHeaderSize))
		change(h, b)
	})
}

// A packet in several pieces is placed, piece by piece, if all of it makes sense, and else dropped and counted.
func TestHostilePieces(t *testing.T) {
	const drop, end, take = 0, 1, 2
	same := func(*header, []byte) {}
	all := func(p [][]byte) [][]byte { return p }
	for _, x := range []struct {
		name   string
		what   int
		n      int
		change func(h *header, b []byte)
		pieces func([][]byte) [][]byte
	}{
		{"as it should be", take, 5000, same, all},
		{"two pieces", take, 1001, same, all},
		{"the longest", take, 9000, same, all},
		{"the last piece is missing", drop, 5000, same, func(p [][]byte) [][]byte { return p[:4] }},
		{"a piece is missing", drop, 5000, same, func(p [][]byte) [][]byte { return append(p[:2:2], p[3:]...) }},
		{"a piece comes twice", drop, 5000, same, func(p [][]byte) [][]byte { return append(p, p[4]) }},
		{"two in the wrong order", drop, 5000, same, func(p [][]byte) [][]byte { p[2][5]++; p[2], p[3] = p[3], p[2]; return p }},
		{"the first alone", drop, 5000, same, func(p [][]byte) [][]byte { return p[:1] }},
		{"a short first piece", drop, 5000, same, func(p [][]byte) [][]byte {
			return append([][]byte{p[0][:40], p[0][40:]}, p[1:]...)
		}},
		{"one byte changed", drop, 5000, same, func(p [][]byte) [][]byte { p[3][100]++; return p }},
		{"not placed", drop, 5000, func(h *header, _ []byte) { h.flags = 0 }, all},
		{"more fragments", drop, 5000, func(h *header, _ []byte) { h.flags |= flagMore }, all},
		{"sealed", drop, 5000, func(h *header, _ []byte) { h.flags |= flagSealed }, all},
		{"with a bitmap", drop, 5000, func(h *header, _ []byte) { h.words = 1 }, all},
		{"not data", drop, 5000, func(h *header, _ []byte) { h.kind = kindClose }, all},
		{"a greeting", drop, 5000, func(h *header, _ []byte) { h.kind = kindInit }, all},
		{"no packet number", drop, 5000, func(h *header, _ []byte) { h.pn = 0 }, all},
		{"beyond its message", end, 5000, func(_ *header, b []byte) { le.PutUint64(b[64:], 1) }, all},
		{"where the sum wraps", end, 5000, func(_ *header, b []byte) { le.PutUint64(b[64:], 1<<64-10); le.PutUint64(b[72:], 1<<64-1) }, all},
		{"beyond its credit", end, 30_000, same, all},
		{"of another connection", drop, 5000, func(h *header, _ []byte) { h.conn++ }, all},
	} {
		t.Run(x.name, func(t *testing.T) {
			e, p, c := longVictim(t)
			before, unknown := e.stats.Bad, e.stats.unknown
			e.InputPieces(e.now, nil, nil)
			b := longPacket(c, x.n, x.change)
			cut := x.pieces(pieces(b, 1000))
			e.InputPieces(e.now, cut[0], cut[1:])
			want := uint64(1 + 1)
			if x.what == take {
				want = 1
			}
			if got := e.stats.Bad - before + e.stats.unknown - unknown; got != want {
				t.Errorf("%d counted, want %d", got, want)
			}
			if got := errors.Is(p.down, ErrProtocol); got != (x.what == end) {
				t.Errorf("connection ended with %v, want the end: %v", p.down, x.what == end)
			}
			if got := p.placed; (x.what == take) != bytes.Equal(got, b[placedHeaderSize:]) || x.what != take && len(got) > 0 {
				t.Errorf("%d bytes placed of %d", len(got), x.n-placedHeaderSize)
			}
		})
	}
}

// A fragment that arrives twice is placed once. After a handler has closed the connection, nothing more is placed.
func TestPiecesArePlacedOnce(t *testing.T) {
	e, p, c := longVictim(t)
	b := longPacket(c, 5000, func(*header, []byte) {})
	for range 2 {
		cut := pieces(b, 1000)
		e.InputPieces(e.now, cut[0], cut[1:])
	}
	if len(p.placed) != 5000-placedHeaderSize || e.stats.duplicates != 1 {
		t.Errorf("%d bytes placed, %d duplicates", len(p.placed), e.stats.duplicates)
	}
	p.placed, p.closeAt = nil, 2
	p.conn = c
	cut := pieces(longPacket(c, 5000, func(*header, []byte) {}), 1000)
	e.InputPieces(e.now, cut[0], cut[1:])
	if len(p.placed) != 2000-placedHeaderSize {
		t.Errorf("%d bytes placed, the handler has closed after %d", len(p.placed), 2000-placedHeaderSize)
	}
}

// long is a network without faults for packets of up to 9000 bytes, in frames of 1000.
func long() netConfig {
	w := faultless()
	w.mtu = 9000
	for k := range w.ends {
		w.ends[k].unit = 1000
	}
	return w
}

// A transfer takes as many packets as the longest make, each one a message's part, and a lost one is sent again.
func TestLongPacketsAreUsed(t *testing.T) {
	for _, loss := range []float64{0, 0.1} {
		seedsOf(t, 20, func(t *testing.T, seed uint64) {
			s, x, y := pair(t, seed, long())
			s.w.loss = loss
			x.load(0, 1, 100)
			x.places[0].Len, x.places[0].Total = 1_000_000, 1_000_000
			y.expectPlaced[0].Len, y.expectPlaced[0].Total = 1_000_000, 1_000_000
			s.run(s.now+60e9, x.done)
			most := uint64(1_000_000/(9000-placedHeaderSize) + 1)
			if x.err != nil || x.c.una != most {
				s.fail("%v, %d packets, want %d", x.err, x.c.una, most)
			}
			if got := x.h.e.stats.Retransmits; (got > 0) != (loss > 0) {
				s.fail("%d sent again at %g loss", got, loss)
			}
			if x.c.used != most-1+9*(most-1)-(most-1)+uint64(units(placedHeaderSize+int(1_000_000%(9000-placedHeaderSize)), 1000)) {
				s.fail("%d units for %d packets", x.c.used, most)
			}
			s.finish()
		})
	}
}

// An end that seals, or has frames for the path's MTU, sends and gets what one frame holds.
func TestLongPacketsOnlyWhereBothTakeThem(t *testing.T) {
	for name, change := range map[string]func(w *netConfig){
		"no long ones": func(w *netConfig) { w.ends[1] = endConfig{mtu: 1000, unit: 1000} },
		"sealed":       func(w *netConfig) { w.encrypt = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := long()
			change(&w)
			s, x, y := pair(t, 3, w)
			x.load(20, 3, 20_000)
			y.load(20, 3, 20_000)
			s.run(s.now+60e9, func() bool { return x.done() && y.done() })
			if x.err != nil || y.err != nil || x.c.mtu > 1200 || y.c.mtu > 1200 {
				s.fail("%v, %v; packets of %d and %d bytes", x.err, y.err, x.c.mtu, y.c.mtu)
			}
			s.finish()
		})
	}
}

// After a path's MTU shrinks, a connection continues if its packets fit, and ends if longer ones are under way.
func TestLongPacketsOnAShrinkingPath(t *testing.T) {
	s, x, y := pair(t, 3, long())
	x.load(0, 2, 50_000)
	s.run(s.now+9e9, x.done)
	for _, c := range []*Conn{x.c, y.c} {
		if err := c.SetMTU(3000); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := x.c.MaxPlaced(), 3000-placedHeaderSize; got != want {
		t.Errorf("%d bytes in a packet, want %d", got, want)
	}
	before := x.c.una
	tr := &simTransfer{seed: 5, seen: map[uint64]bool{}}
	tr.Tag, tr.Len, tr.Total, tr.User = 99, 30_000, 30_000, tr.seed
	copied := *tr
	y.expectPlaced[99], x.places = &copied, append(x.places, tr)
	x.h.poll(s.now)
	s.run(s.now+9e9, x.done)
	if got, want := x.c.una-before, uint64(30_000/(3000-placedHeaderSize)+1); got != want {
		t.Errorf("%d packets, want %d", got, want)
	}
	s.w.cutFrom, s.w.cutTo = s.now, s.now+Time(time.Second)
	copied2 := copied
	copied2.Tag = 100
	tr2 := &copied2
	y.expectPlaced[100], x.places = &simTransfer{Transfer: tr2.Transfer, seed: 5, seen: map[uint64]bool{}}, append(x.places, tr2)
	x.h.poll(s.now)
	s.run(s.now+9e9, func() bool { return x.c.inflight > 0 })
	if err := x.c.SetMTU(1500); err != nil || !errors.Is(x.err, errShrunk) {
		t.Errorf("%v, the connection ended with %v, want %v", err, x.err, errShrunk)
	}
}

// FuzzPieces: whatever bytes come in whatever pieces, genuine or not, nothing leaks, and what is placed lies in its
// message.
func FuzzPieces(f *testing.F) {
	_, _, c := longVictim(f)
	good := longPacket(c, 3000, func(*header, []byte) {})
	f.Add(good, []byte{250, 250}, true)
	f.Add(good[:2500], []byte{79}, false)
	f.Add(append(good, good...), []byte{255, 1, 0}, true)
	f.Fuzz(func(t *testing.T, script, sizes []byte, genuine bool) {
		if len(script) > 20_000 || len(sizes) == 0 {
			return
		}
		e, p, c := longVictim(t)
		now := e.now
		for k := 0; len(script) > 0; k++ {
			n := min(len(script), 1+40*int(sizes[k%len(sizes)]))
			b := bytes.Clone(script[:n])
			script = script[n:]
			if genuine && n >= 24 {
				le.PutUint64(b[8:], c.id)
				finishPacket(b[:min(n, maxMTU)])
			}
			size := 1 + int(sizes[(k+1)%len(sizes)])*8
			cut := pieces(b, size)
			now += 1e6
			p.bytes = 0
			e.InputPieces(now, cut[0], cut[1:])
			if p.bytes > len(b) {
				t.Fatalf("answered %d bytes to %d", p.bytes, len(b))
			}
			e.Flush(now)
		}
		if c.arrived > c.granted {
			t.Fatalf("%d units arrived, %d were allowed", c.arrived, c.granted)
		}
		c.Close(now, true)
		for ; e.Conns() > 0 && e.Next() != never; e.Tick(now) {
			now = max(now, e.Next())
		}
		if p.lent != 0 || e.Conns() > 0 || e.pool.spare != e.cfg.frames {
			t.Fatalf("%d frames, %d connections are left; credit for %d of %d frames", p.lent, e.Conns(), e.pool.spare, e.cfg.frames)
		}
	})
}
