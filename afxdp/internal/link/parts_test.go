package link

import "testing"

// On a path that takes only shorter packets from now on, messages go on arriving within a second, each exactly once,
// and the sender finds out how long packets may be. Once the path takes long ones again, they are used again.
func TestPathThatTakesShorterPackets(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*netConfig)
		load   func(x *simConn, from uint64)
	}{
		{"placed", func(*netConfig) {}, func(x *simConn, from uint64) { x.place(from, 4<<20) }},
		{"ordered", func(*netConfig) {}, func(x *simConn, _ uint64) { x.load(200, 0, 100_000) }},
		{"sealed", func(w *netConfig) { w.encrypt = true }, func(x *simConn, from uint64) { x.place(from, 4<<20) }},
		{"several frames", func(w *netConfig) { w.unit = 3766 }, func(x *simConn, from uint64) { x.place(from, 4<<20) }},
		{"far, with losses", func(w *netConfig) { w.delay, w.loss = 5e6, 0.01 }, func(x *simConn, from uint64) { x.place(from, 4<<20) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range contests() {
				w := faultless()
				w.mtu, w.keyPackets = 9000, 1<<20
				c.change(&w)
				s, x, y := pair(t, seed+1, w)
				c.load(x, 0)
				s.pass(2 * w.delay)
				s.w.hole, s.w.holeFrom = 1500, s.now
				before := x.c.una
				s.run(s.now+1e9, func() bool { return x.c.una > before+2*uint64(s.w.window) || x.done() })
				s.run(s.now+20e9, x.done)
				for tag := uint64(100); tag < 110; tag++ { // pauses between trials pass
					s.pass(30e6)
					c.load(x, tag)
					s.run(s.now+20e9, x.done)
				}
				if n := x.c.mtu; x.err != nil || n > 1500 || n < 1500-trialFinest && len(x.expectPlaced)+len(y.expectPlaced) > 0 {
					s.fail("%v, packets of %d bytes on a path for 1500", x.err, n)
				}
				s.w.hole = 0
				s.pass(pathPeriod)
				c.load(x, 200)
				c.load(x, 201)
				s.run(s.now+20e9, func() bool { return x.done() })
				if x.c.mtu != 9000 {
					s.fail("packets of %d bytes on a path for 9000", x.c.mtu)
				}
				s.finish()
			}
		})
	}
}

// Parts that do not belong together end the connection, and parts of what has arrived are dropped.
func TestHostileParts(t *testing.T) {
	const drop, end, take, keep = 0, 1, 2, 3
	type part struct{ seq, k, size, n int }
	for _, x := range []struct {
		name   string
		placed bool
		parts  []part
		want   int
	}{
		{"both parts", true, []part{{0, 0, 2000, 1024}, {0, 1, 2000, 976}}, take},
		{"both parts of an ordered one", false, []part{{0, 0, 2000, 1024}, {0, 1, 2000, 976}}, take},
		{"the last one first", false, []part{{0, 1, 2000, 976}, {0, 0, 2000, 1024}}, take},
		{"one comes twice", true, []part{{0, 0, 2000, 1024}, {0, 0, 2000, 1024}, {0, 1, 2000, 976}, {0, 1, 2000, 976}}, take},
		{"one is missing", true, []part{{0, 0, 3000, 1024}, {0, 2, 3000, 952}}, keep},
		{"one of an ordered one is missing", false, []part{{0, 0, 3000, 1024}, {0, 2, 3000, 952}}, keep},
		{"too short", true, []part{{0, 0, 2000, 1023}}, end},
		{"too long", true, []part{{0, 1, 2000, 977}}, end},
		{"beyond the fragment", true, []part{{0, 2, 2000, 1}}, end},
		{"of a fragment that one packet holds", true, []part{{0, 0, 1024, 1024}}, end},
		{"of two lengths", true, []part{{0, 0, 2000, 1024}, {0, 1, 2001, 977}}, end},
		{"longer than a frame", false, []part{{0, 0, 9000, 1024}}, end},
		{"beyond its message", true, []part{{0, 0, 4001, 1024}}, end},
		{"beyond its credit", true, []part{{16, 0, 2000, 1024}}, end},
		{"a number that does not exist", true, []part{{0, 64, 65535, 1}}, end},
		{"without bytes", true, []part{{0, 0, 2000, 0}}, drop},
	} {
		t.Run(x.name, func(t *testing.T) {
			e, p, c, _, _ := victimOf(t, Config{MTU: 4000})
			bad := e.stats.Bad
			for k, q := range x.parts {
				at := HeaderSize + partHeader
				if x.placed {
					at = placedHeaderSize + partHeader
				}
				b := packet(c, at+q.n, func(h *header, b []byte) {
					h.flags = flagPart
					le.PutUint64(b[48:], uint64(q.seq))
					le.PutUint64(b[56:], uint64(q.k)<<16|uint64(q.size))
					if x.placed {
						h.flags |= flagPlaced
						le.PutUint64(b[64:], 7)
						le.PutUint64(b[80:], 4000)
					}
				})
				id := uint64(k + 1)
				p.held[id] = true
				if !e.Input(e.now, nil, Frame{ID: id, Data: append(make([]byte, 0, 4000), b...)}) {
					delete(p.held, id)
				}
			}
			arrived := map[int]uint64{take: 1}[x.want]
			if c.cum != arrived || (p.down != nil) != (x.want == end) || (e.stats.Bad != bad) != (x.want == end || x.want == drop) {
				t.Errorf("%d fragments arrived, connection ended with %v, %d bad packets", c.cum, p.down, e.stats.Bad-bad)
			}
			c.Close(e.now, true)
			for e.Conns() > 0 {
				e.Tick(e.Next())
			}
			if len(p.held) > 0 || p.lent != 0 || e.pool.spare != e.cfg.frames {
				t.Errorf("%d frames are left, credit for %d of %d", len(p.held)+p.lent, e.pool.spare, e.cfg.frames)
			}
		})
	}
}

// A path that takes only shorter packets one way does not keep the other way's long packets from getting credit.
func TestPathThatTakesShorterPacketsOneWay(t *testing.T) {
	w := faultless()
	w.mtu, w.unit, w.frames, w.idle = 65503, 3766, 4000, 0
	s, x, y := pair(t, 1, w)
	if err := x.c.SetMTU(1500); err != nil {
		t.Fatal(err)
	}
	y.place(0, 1000)
	for tag := uint64(1); tag < 60; tag++ { // the peer's share of credit shrinks
		s.pass(150e6)
		y.place(tag, 1000)
		s.run(s.now+9e9, y.done)
	}
	y.place(60, 1<<20)
	s.run(s.now+9e9, y.done)
	if y.err != nil || y.c.mtu != 65503 {
		s.fail("%v, packets of %d bytes", y.err, y.c.mtu)
	}
	s.finish()
}
