package link

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// trap is a carrier and handler that counts, for an endpoint under attack.
type trap struct {
	tb    testing.TB
	frame []byte
	lent  int
	sent  [][]byte // copies, if keep
	keep  bool
	bytes int // sent to the source of the packet that is being handled
	down  error
	held  map[uint64]bool

	placed  []byte // of placed messages, in the order of the calls
	conn    *Conn  // closed by the closeAt-th call of Place from now on
	closeAt int
}

func (p *trap) Get() (Frame, bool)     { p.lent++; return Frame{Data: p.frame}, true }
func (p *trap) GetLong() (Frame, bool) { return p.Get() }
func (p *trap) Put(id uint64) {
	if id != 0 {
		if !p.held[id] {
			p.tb.Fatalf("frame %d given back, which was not kept", id)
		}
		delete(p.held, id)
		return
	}
	p.lent--
}
func (p *trap) Sending(uint64) bool  { return false }
func (p *trap) Address(Route) []byte { return nil }
func (p *trap) Send(r Route, f Frame, n int) bool {
	if r == Reply {
		p.bytes += n
	}
	if p.keep {
		p.sent = append(p.sent, bytes.Clone(f.Data[:n]))
	}
	return true
}
func (p *trap) Up(*Conn)                              {}
func (p *trap) Down(_ *Conn, err error)               { p.down = err }
func (p *trap) Gone(*Conn)                            {}
func (p *trap) Deliver(c *Conn, f Fragment)           { c.Release(f.ID) }
func (p *trap) Fill(*Conn, *Transfer, uint64, []byte) {}
func (p *trap) Placed(*Conn, *Transfer)               {}
func (p *trap) Place(_ *Conn, x *Placement) {
	if x.Offset > x.Total || uint64(len(x.Data)) > x.Total-x.Offset {
		p.tb.Fatalf("%d bytes placed at %d of %d", len(x.Data), x.Offset, x.Total)
	}
	p.placed = append(p.placed, x.Data...)
	if p.closeAt--; p.closeAt == 0 {
		p.conn.Close(0, true)
	}
}

// trapped makes an endpoint with fixed random numbers.
func trapped(tb testing.TB, cfg Config) (*Endpoint, *trap) {
	setDefault(&cfg.MTU, 1500)
	p := &trap{tb: tb, frame: make([]byte, max(2000, cfg.MTU)), held: map[uint64]bool{}}
	cfg.ID = max(cfg.ID, 1)
	if cfg.Secret == nil {
		cfg.Secret = []byte("the secret of all")
	}
	cfg.rand = simReader{rand.New(rand.NewPCG(cfg.ID, 1))}
	e, err := NewEndpoint(cfg, p, p)
	if err != nil {
		tb.Fatal(err)
	}
	return e, p
}

// victim is an endpoint with a connection to one that the test plays itself.
func victim(tb testing.TB, encrypt bool) (e *Endpoint, p *trap, c *Conn, peer *Endpoint, q *trap) {
	return victimOf(tb, Config{Encrypt: encrypt})
}

func victimOf(tb testing.TB, cfg Config) (e *Endpoint, p *trap, c *Conn, peer *Endpoint, q *trap) {
	cfg.ID = 1
	e, p = trapped(tb, cfg)
	peer, q = trapped(tb, Config{ID: 2, MTU: cfg.MTU, Unit: cfg.Unit})
	c, _ = e.Dial(1000, 1, 2, []byte("dialer"), nil)
	_, _ = peer.Listen(1000, 1, 1, []byte("listener"), nil)
	p.keep, q.keep = true, true
	for now := Time(2000); len(peer.peers)+len(e.peers) > 0; now += 1e6 {
		for _, x := range []struct {
			e, to *Endpoint
			p     *trap
		}{{e, peer, p}, {peer, e, q}} {
			x.e.Flush(now)
			if x.e.Next() <= now {
				x.e.Tick(now)
			}
			out := x.p.sent
			x.p.sent = nil
			for _, b := range out {
				x.to.Input(now, []byte("address"), Frame{Data: b})
			}
		}
		if now > 1e9 {
			tb.Fatal("no connection")
		}
	}
	e.Flush(e.now)
	p.keep, q.keep, p.sent, q.sent = false, false, nil, nil
	return e, p, c, peer, q
}

// packet is a valid packet to c, with changes.
func packet(c *Conn, n int, change func(h *header, b []byte)) []byte {
	b := make([]byte, n)
	h := header{kind: kindData, conn: c.id, pn: c.newest + 1, cum: c.next, credit: uint32(c.next + 16), stamp: 7}
	if n >= HeaderSize {
		le.PutUint64(b[48:], c.cum)
	}
	change(&h, b)
	putHeader(b, &h)
	finishPacket(b)
	return b
}

// A data packet that fills its frame has no room to tell what has arrived behind a gap: that goes in a packet of its own.
func TestFullPacketsDoNotHideAGap(t *testing.T) {
	e, p, c, _, _ := victim(t, false)
	f, _ := p.Get()
	c.Post(e.now, f, c.MaxFragment(), false)
	b := packet(c, HeaderSize+10, func(_ *header, b []byte) { le.PutUint64(b[48:], c.cum+1) })
	e.Input(e.now, []byte("address"), Frame{Data: b})
	p.keep = true
	e.Flush(e.now)
	var kinds []kind
	for _, b := range p.sent {
		var h header
		parseHeader(b, &h)
		kinds = append(kinds, h.kind)
		if h.words > 0 {
			return
		}
	}
	t.Errorf("packets of kinds %v were sent, none of which has the bitmap", kinds)
}

// Copies of a genuine packet, which anybody on the path can send, do not stand for a peer that is silent.
func TestRepeatedPacketsAreNoSignOfLife(t *testing.T) {
	e, p, c, _, _ := victimOf(t, Config{DeadTime: time.Second})
	b := packet(c, 48, func(h *header, _ []byte) { h.kind = kindAck })
	begin := e.now
	for now := begin; p.down == nil; now += 1e8 {
		if now > begin+3e9 {
			t.Fatal("a peer whose last packet is repeated lives on")
		}
		e.Input(now, []byte("address"), Frame{Data: bytes.Clone(b)})
		e.Flush(now)
		if e.Next() <= now {
			e.Tick(now)
		}
	}
	if !errors.Is(p.down, errBroken) {
		t.Errorf("the connection ended with %v, want %v", p.down, errBroken)
	}
}

// A genuine packet with any malformed field is counted, nothing of it is delivered, and a violation of the protocol
// ends the connection.
func TestHostilePacketsAreDroppedAndCounted(t *testing.T) {
	const drop, end = false, true
	for _, c := range []struct {
		name   string
		ends   bool
		n      int
		change func(h *header, b []byte)
	}{
		{"no packet number", drop, 60, func(h *header, _ []byte) { h.pn = 0 }},
		{"bitmap longer than packet", drop, 60, func(h *header, _ []byte) { h.words = 2 }},
		{"bitmap too long", drop, 400, func(h *header, _ []byte) { h.words = maxWords + 1 }},
		{"bitmap all of it", drop, 64, func(h *header, _ []byte) { h.words = 2 }},
		{"sealed, but no keys", drop, 80, func(h *header, _ []byte) { h.flags = flagSealed }},
		{"no kind", drop, 60, func(h *header, _ []byte) { h.kind = 0 }},
		{"unknown kind", drop, 60, func(h *header, _ []byte) { h.kind = 12 }},
		{"close without its end", drop, 50, func(h *header, _ []byte) { h.kind = kindClose }},
		{"end beyond credit", end, 60, func(h *header, b []byte) { h.kind = kindClose; le.PutUint64(b[48:], 1<<40) }},
		{"fragment without seq", drop, 54, func(*header, []byte) {}},
		{"beyond credit", end, 60, func(_ *header, b []byte) { le.PutUint64(b[48:], 16) }},
		{"far beyond credit", end, 60, func(_ *header, b []byte) { le.PutUint64(b[48:], 1<<63) }},
		{"acknowledges what was not sent", end, 60, func(h *header, _ []byte) { h.cum = 1 << 50 }},
		{"bitmap of what was not sent", end, 64, func(h *header, b []byte) { h.words = 1; b[56] = 1 }},
		{"placed, too short", end, 79, func(h *header, _ []byte) { h.flags = flagPlaced }},
		{"placed beyond its message", end, 90, func(h *header, b []byte) { h.flags = flagPlaced; le.PutUint64(b[72:], 9) }},
		{"placed where the sum wraps", end, 90, func(h *header, b []byte) {
			h.flags = flagPlaced
			le.PutUint64(b[64:], 1<<64-5)
			le.PutUint64(b[72:], 1<<64-1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, p, conn, _, _ := victim(t, false)
			before := e.stats.Bad
			if c.n == 64 {
				p.held[5] = true
			}
			if e.Input(e.now, nil, Frame{ID: 5, Data: packet(conn, c.n, c.change)}) {
				t.Error("kept")
			}
			if e.stats.Bad != before+1 {
				t.Errorf("%d counted, want 1", e.stats.Bad-before)
			}
			if got := errors.Is(p.down, ErrProtocol); got != c.ends {
				t.Errorf("connection ended with %v, want the end: %v", p.down, c.ends)
			}
		})
	}
}

// Values that only hurt their sender do not end the connection, nor make work.
func TestStrangeNumbersAreHarmless(t *testing.T) {
	for name, change := range map[string]func(h *header, b []byte){
		"highest packet number": func(h *header, _ []byte) { h.pn = 1<<64 - 1 },
		"echo of the future":    func(h *header, _ []byte) { h.echo = 1 << 31 },
		"echo of the past":      func(h *header, _ []byte) { h.echo = 1<<31 + 1 },
		"credit below":          func(h *header, _ []byte) { h.credit = 1 << 31 },
		"credit far beyond":     func(h *header, _ []byte) { h.credit = 1<<31 - 1 },
		"greatest delay":        func(h *header, _ []byte) { h.echo, h.delay = 1, 0xffff },
		"repeated often":        func(h *header, _ []byte) { h.dups = 200 },
	} {
		e, p, c, _, _ := victim(t, false)
		e.Input(e.now, nil, Frame{Data: packet(c, 60, change)})
		if p.down != nil || e.stats.Bad != 0 {
			t.Errorf("%s: down %v, %d bad", name, p.down, e.stats.Bad)
		}
		if c.limit > 64*maxWords {
			t.Errorf("%s: credit up to %d is believed", name, c.limit)
		}
	}
}

// With encryption nothing that was not sealed for this connection, once, is taken.
func TestSealedConnectionTakesNothingElse(t *testing.T) {
	e, p, c, peer, q := victim(t, true)
	pc := peer.remote[c.id]
	q.keep = true
	pc.sendBare(kindPing, 0, 0)
	good := q.sent[0]
	try := func(name string, b []byte, want uint64) {
		t.Helper()
		before := e.stats.Bad
		e.Input(e.now, nil, Frame{Data: b})
		if got := e.stats.Bad - before; got != want || p.down != nil {
			t.Errorf("%s: %d refused, want %d; down %v", name, got, want, p.down)
		}
	}
	for k := range good {
		if k >= 8 && k < 16 {
			continue // of another connection
		}
		b := bytes.Clone(good)
		b[k] ^= 1
		if sized(b) == nil || kind(b[0]) >= kindData {
			try("changed at "+hex.EncodeToString([]byte{byte(k)}), b, 1)
		}
	}
	try("not sealed", packet(c, 60, func(*header, []byte) {}), 1)
	try("itself", bytes.Clone(good), 0)
	try("repeated", bytes.Clone(good), 1)
}

// A flood of greetings costs no memory, and packets of connections are handled all the same. Nothing is remembered of
// the sender of a greeting before its cookie has come back, and no answer is longer than what it answers.
func TestFloodOfGreetingsAllocatesNothing(t *testing.T) {
	e, p, c, _, _ := victim(t, false)
	dialer, d := trapped(t, Config{ID: 3})
	d.keep = true
	_, _ = dialer.Dial(1, 1, 1, nil, nil)
	dialer.Tick(1)
	bare := d.sent[0]
	cookied := bytes.Clone(bare)
	p.keep = true
	e.Input(e.now, []byte("there"), Frame{Data: bytes.Clone(bare)})
	copy(cookied[atCookie:], p.sent[0][16:])
	copy(cookied[atMAC:], e.secrets.greeting.MAC(cookied[:4], cookied[8:atMAC], nil, nil))
	finishPacket(cookied)
	forged := bytes.Clone(cookied)
	forged[atMAC] ^= 1
	finishPacket(forged)
	e.sendNote(Reply, note{kind: kindConnectRequest, to: 1, from: 99}, nil)
	e.sendNote(Reply, note{kind: kindQuery, to: 1, from: 99, conn: 1 << 40}, nil)
	request, query := p.sent[1], p.sent[2]
	unauthentic := bytes.Clone(request)
	unauthentic[atNoteMAC] ^= 1
	finishPacket(unauthentic)
	p.keep, p.sent = false, nil
	from := []byte("there")
	for name, b := range map[string][]byte{"without cookie": bare, "no listener": cookied, "forged": forged, "connect request": request,
		"connect request without the secret": unauthentic, "query": query,
		"of no connection": packet(&Conn{id: 1 << 40}, 60, func(*header, []byte) {})} {
		b, conns := bytes.Clone(b), e.Conns()
		p.bytes = 0
		if got := testing.AllocsPerRun(1000, func() { e.Input(e.now, from, Frame{Data: b}) }); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
		if e.Conns() != conns || len(e.peers) != 0 {
			t.Errorf("%s: something is remembered", name)
		}
		if p.bytes > 1001*len(b) {
			t.Errorf("%s: answered %d bytes to %d", name, p.bytes, 1001*len(b))
		}
	}
	p.held[5] = true
	if e.Input(e.now, nil, Frame{ID: 5, Data: packet(c, 60, func(*header, []byte) {})}); c.cum != 1 {
		t.Error("packets of the connection are not handled")
	}
	if p.lent != 0 {
		t.Errorf("%d frames lost", p.lent)
	}
}

// A message costs no allocation at either end, whatever its kind.
func TestMessagesDoNotAllocate(t *testing.T) {
	for _, cfg := range []Config{{}, {Encrypt: true}, {MTU: 20_000, Unit: 1500}} {
		w := newWire(t, 2, cfg)
		from, to := w.ends[0], w.ends[1]
		from.src, to.dst = make([]byte, 1<<16), make([]byte, 1<<16)
		tr := Transfer{Len: 1 << 16, Total: 1 << 16}
		run := func() {
			w.pingPong(from.conns[1], to.conns[1])
			from.post(64, 20)
			from.conns[0].Start(w.now, &tr)
			for at := from.placed; from.placed == at; {
				w.step(5000)
			}
			w.step(1e6)
		}
		for range 100 {
			run()
		}
		if got := testing.AllocsPerRun(200, run); got != 0 {
			t.Errorf("encrypted %v, MTU %d: %v allocations", cfg.Encrypt, cfg.MTU, got)
		}
	}
}
