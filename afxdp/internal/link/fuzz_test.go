package link

import (
	"bytes"
	"testing"
)

// feed gives an endpoint packets cut out of what a fuzzer made up: length, what to make genuine, bytes. It
// checks that nothing leaks, and that what comes back is bounded.
func feed(t *testing.T, e *Endpoint, p *trap, c *Conn, script []byte) {
	now := e.now
	for n := uint64(1); len(script) > 2; n++ {
		size, mode := int(script[0])|int(script[1]&1)<<8, script[1]>>1
		script = script[2:]
		size = min(size, len(script))
		b := append(make([]byte, 0, max(size, e.cfg.Unit)), script[:size]...)
		script = script[size:]
		if mode&1 != 0 && len(b) >= 24 { // a size and checksum that hold
			if mode&2 != 0 && c != nil {
				le.PutUint64(b[8:], c.id)
			}
			if mode&4 != 0 {
				le.PutUint64(b[8:], e.cfg.ID)
			}
			finishPacket(b)
		}
		now += Time(mode>>3) * 1e6
		p.bytes = 0
		p.held[n] = true
		if !e.Input(now, []byte("somewhere"), Frame{ID: n, Data: b}) {
			if !p.held[n] {
				t.Fatal("a frame was given back, and not kept")
			}
			delete(p.held, n)
		}
		if p.bytes > len(b) {
			t.Fatalf("answered %d bytes to %d", p.bytes, len(b))
		}
		e.Flush(now)
		for k := 0; e.Next() <= now; k++ {
			if k > 100 {
				t.Fatal("a timer spins")
			}
			e.Tick(now)
		}
	}
	if c != nil {
		if len(p.held) > e.cfg.frames {
			t.Fatalf("%d frames held, %d are allowed", len(p.held), e.cfg.frames)
		}
		c.Close(now, true)
	}
	for now += 1; e.Conns() > 0 && e.Next() != never; {
		now = max(now, e.Next())
		e.Tick(now)
	}
	if len(p.held) > 0 || p.lent != 0 || e.Conns() > 0 || e.pool.spare != e.cfg.frames {
		t.Fatalf("%d arrived frames, %d others, %d connections are left; credit for %d of %d frames",
			len(p.held), p.lent, e.Conns(), e.pool.spare, e.cfg.frames)
	}
}

// script makes what feed reads.
func script(mode byte, packets ...[]byte) (out []byte) {
	for _, b := range packets {
		out = append(out, byte(len(b)), byte(len(b)>>8)&1|mode<<1)
		out = append(out, b...)
	}
	return out
}

// Arbitrary bytes, into an endpoint without and with a connection, encrypted and not. Nothing panics, and no frame is
// lost.
func FuzzInput(f *testing.F) {
	_, _, c, _, _ := victim(f, false)
	same := func(*header, []byte) {}
	for mode := range byte(3) {
		f.Add(mode, script(0, []byte("short"), make([]byte, 60)))
		f.Add(mode, script(3, packet(c, 60, same), packet(c, 60, func(h *header, b []byte) { h.pn = 9; le.PutUint64(b[48:], 3) })))
		f.Add(mode, script(3, packet(c, 90, func(h *header, b []byte) { h.flags = flagPlaced; le.PutUint64(b[72:], 10) })))
		f.Add(mode, script(3, packet(c, 60, func(h *header, _ []byte) { h.kind = kindClose }),
			packet(c, 48, func(h *header, _ []byte) { h.kind = kindPing })))
		f.Add(mode, script(5, make([]byte, greetingSize), append([]byte{byte(kindInit), version}, make([]byte, greetingSize-2)...)))
	}
	f.Fuzz(func(t *testing.T, mode byte, script []byte) {
		if len(script) > 4096 {
			return
		}
		if mode%3 == 0 {
			e, p := trapped(t, Config{})
			feed(t, e, p, nil, script)
			return
		}
		e, p, c, _, _ := victim(t, mode%3 == 2)
		feed(t, e, p, c, script)
	})
}

// Packets of a peer that does follow the protocol, but damaged, left out, repeated and out of order. Nothing panics,
// and no frame is lost.
func FuzzMutation(f *testing.F) {
	f.Add(false, []byte{0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0})
	f.Add(true, []byte{3, 0, 0, 2, 60, 255, 1, 0, 0, 1, 0, 0})
	f.Add(false, []byte{7, 49, 1, 6, 17, 128, 5, 1, 1, 4, 25, 1, 0, 32, 255, 9, 0, 0})
	f.Fuzz(func(t *testing.T, encrypt bool, steps []byte) {
		if len(steps) > 600 {
			return
		}
		e, p, c, peer, q := victim(t, encrypt)
		pc := peer.remote[c.id]
		q.keep = true
		tr := Transfer{Len: 4000, Total: 4000}
		for k := range 5 {
			pc.Post(peer.now, Frame{Data: make([]byte, 1500)}, 100*k, k%2 == 0)
		}
		pc.Start(peer.now, &tr)
		peer.Flush(peer.now)
		pc.sendBare(kindPing, 0, 0)
		pc.sendBare(kindClose, 0, pc.next)
		var out []byte
		for ; len(steps) >= 3; steps = steps[3:] {
			b := bytes.Clone(q.sent[int(steps[0])%len(q.sent)])
			b = b[:min(len(b), 511)]
			b[int(steps[1])%len(b)] ^= steps[2]
			mode := byte(1)
			if encrypt || steps[2]&1 == 0 {
				mode = 0
			}
			out = append(out, script(mode, b)...)
		}
		feed(t, e, p, c, out)
	})
}

// The parsers alone.
func FuzzGreeting(f *testing.F) {
	e, _ := trapped(f, Config{})
	g := greeting{kind: kindInit, version: version, id: 1, mtu: 1500, credit: 16, hello: []byte("hi")}
	f.Add(e.putGreeting(make([]byte, 200), &g, nil, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != greetingSize {
			return
		}
		var x greeting
		if !x.parse(b) {
			return
		}
		if len(x.hello) > maxHello || x.mtu < MinMTU || x.mtu > maxMTU || x.id == 0 || x.credit == 0 {
			t.Fatalf("%+v is taken", x)
		}
		out := make([]byte, greetingSize)
		x.put(out)
		var y greeting
		if !y.parse(out) || !bytes.Equal(x.hello, y.hello) || x.id != y.id || x.nonce != y.nonce || x.options != y.options {
			t.Fatalf("%+v became %+v", x, y)
		}
	})
}

// A header that is parsed is written back to the same bytes, and placed data lies inside of its message.
func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, 90))
	f.Fuzz(func(t *testing.T, b []byte) {
		if b = sized(b); len(b) < ackSize {
			return
		}
		var h header
		parseHeader(b, &h)
		out := make([]byte, ackSize)
		putHeader(out, &h)
		if !bytes.Equal(out[:2], b[:2]) || !bytes.Equal(out[8:], b[8:ackSize]) {
			t.Fatalf("% x became % x", b[:ackSize], out)
		}
		var p Placement
		if p.parse(b, 0) && (p.Offset > p.Total || uint64(len(p.Data)) > p.Total-p.Offset) {
			t.Fatalf("%d bytes at %d of %d", len(p.Data), p.Offset, p.Total)
		}
	})
}
