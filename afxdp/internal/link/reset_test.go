package link

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"
)

// relay has an attacker that sees all packets show those of host 0 to another host, and that host's answers to host 0
// as if they came from host 1. It does so again and again, until the time that is given.
func (s *sim) relay(other int, until Time) {
	me := s.addHost(Config{ID: 666, Secret: []byte("the attacker has another")})
	me.warp = func(b []byte) {
		if s.now < until {
			s.push(&simEvent{at: s.now + 1000, to: s.hosts[0], from: 1, b: slices.Clone(b)})
			s.push(&simEvent{at: s.now + 30e6, to: s.hosts[0], from: 1, b: slices.Clone(b)})
		}
	}
	s.spy = func(from, to int, b []byte) {
		if from == 0 && s.now < until {
			s.push(&simEvent{at: s.now + 1000, to: s.hosts[other], from: me.n, b: slices.Clone(b)})
		}
	}
}

// Answers of other endpoints of the session to an attacker never end a connection, not even while its peer is
// stopped. RFC 9000 calls that a reset oracle (section 21.11).
func TestOthersAnswersEndNoConnection(t *testing.T) {
	for _, encrypt := range []bool{true, false} {
		seedsOf(t, 20, func(t *testing.T, seed uint64) {
			s := newSim(t, seed, faultless())
			for range 3 {
				s.addHost(Config{DeadTime: time.Second, Encrypt: encrypt})
			}
			x, y := s.connect(0, 1)
			s.run(s.now+5e9, func() bool { return x.up && y.up })
			x.load(50, 0, 5000)
			s.w.stallAt, s.w.stallFor = s.now+Time(s.rnd.Int64N(1e6)), 200e6
			s.relay(2, s.w.stallAt+s.w.stallFor)
			s.run(s.now+20e9, func() bool { return x.done() && y.done() })
			if x.err != nil || y.err != nil {
				s.fail("encrypted %v: %v, %v", encrypt, x.err, y.err)
			}
			s.spy = nil
			s.finish()
		})
	}
}

// Packets that any host could have sent, and recorded ones, are no sign of life: a call to a peer that is not there
// ends after the dead time.
func TestUnauthenticatedPacketsAreNoSignOfLife(t *testing.T) {
	const dead = time.Second
	// from makes the greeting or connect request of an endpoint with that id, which has the secret or has not.
	from := func(t *testing.T, id uint64, secret string, dial bool) []byte {
		e, p := trapped(t, Config{ID: id, Secret: []byte(secret)})
		p.keep = true
		call := e.Listen
		if dial {
			call = e.Dial
		}
		if _, err := call(1, 1, 1, nil, nil); err != nil {
			t.Fatal(err)
		}
		e.Tick(1)
		return p.sent[0]
	}
	for _, c := range []struct {
		name   string
		packet []byte
	}{
		{"init without the secret", from(t, 2, "another secret, long enough", true)},
		{"recorded init without a cookie", from(t, 2, "the secret of all", true)},
		{"connect request without the secret", from(t, 2, "another secret, long enough", false)},
		{"recorded connect request", from(t, 2, "the secret of all", false)},
	} {
		for _, dial := range []bool{true, false} {
			t.Run(c.name+map[bool]string{true: " to who dials", false: " to who listens"}[dial], func(t *testing.T) {
				e, p := trapped(t, Config{DeadTime: dead})
				call := e.Listen
				if dial {
					call = e.Dial
				}
				if _, err := call(1, 1, 2, nil, nil); err != nil {
					t.Fatal(err)
				}
				for now := Time(1); now < Time(3*dead) && p.down == nil; now += 1e6 {
					e.Input(now, []byte("anywhere"), Frame{Data: bytes.Clone(c.packet)})
					e.Tick(now)
				}
				if !errors.Is(p.down, errBroken) {
					t.Errorf("after %v the call ended with %v, want %v", 3*dead, p.down, errBroken)
				}
			})
		}
	}
}

// An end with nothing to send learns that the peer was started again when the new process connects, and not by its
// keepalive.
func TestNewIncarnationEndsTheIdleConnection(t *testing.T) {
	for _, dial := range []bool{true, false} {
		s, x, _ := pair(t, 1, faultless())
		s.restart()
		h := s.hosts[1]
		a, b := &simConn{h: x.h}, &simConn{h: h}
		a.twin, b.twin = b, a
		call := []func(Time, Route, uint64, []byte, any) (*Conn, error){x.h.e.Dial, h.e.Listen}
		if !dial {
			call = []func(Time, Route, uint64, []byte, any) (*Conn, error){x.h.e.Listen, h.e.Dial}
		}
		from := s.now
		var errs [2]error
		a.c, errs[0] = call[0](s.now, 2, 4242, nil, a)
		b.c, errs[1] = call[1](s.now, 1, 1000, nil, b)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		x.h.conns, h.conns = append(x.h.conns, a), append(h.conns, b)
		x.h.poll(s.now)
		h.poll(s.now)
		s.run(s.now+9e8, func() bool { return a.up && b.up && x.err != nil })
		x.wantErr(errReset)
		if s.now-from > 50e6 {
			s.fail("dial %v: noticed after %v", dial, time.Duration(s.now-from))
		}
		if a.err != nil || b.err != nil {
			s.fail("dial %v: the new connection: %v, %v", dial, a.err, b.err)
		}
	}
}

// A Query is answered only by the endpoints that can know the answer.
func TestOnlyThePeersPlaceReportsThatItIsGone(t *testing.T) {
	const here, elsewhere = "here", "elsewhere"
	for _, c := range []struct {
		name  string
		cfg   Config // of the endpoint that is asked about a connection with endpoint 2, which lives here
		conn  uint64 // 0: one that it has
		mac   bool
		gone  bool
		wants uint64 // bad packets
	}{
		{"the peer itself, which has it", Config{ID: 2, Address: []byte(here)}, 0, true, false, 0},
		{"the peer itself, which has it not", Config{ID: 2, Address: []byte(here)}, 1 << 40, true, true, 0},
		{"its successor", Config{ID: 3, Address: []byte(here), Sole: true}, 1 << 40, true, true, 0},
		{"one that may live beside it", Config{ID: 3, Address: []byte(here)}, 1 << 40, true, false, 0},
		{"one elsewhere", Config{ID: 3, Address: []byte(elsewhere), Sole: true}, 1 << 40, true, false, 1},
		{"the peer, asked without the secret", Config{ID: 2, Address: []byte(here)}, 1 << 40, false, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, p := trapped(t, c.cfg)
			asker, q := trapped(t, Config{ID: 1})
			conn, err := e.Listen(1, 1, 1, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.conn == 0 {
				c.conn = conn.id
			}
			q.keep, p.keep = true, true
			asker.sendNote(1, note{kind: kindQuery, to: 2, from: 1, conn: c.conn, sent: 77}, []byte(here))
			b := q.sent[0]
			if !c.mac {
				b[atNoteMAC] ^= 1
				finishPacket(b)
			}
			e.Input(1, []byte("asker"), Frame{Data: b})
			if got := len(p.sent) == 1 && kind(p.sent[0][0]) == kindGone; got != c.gone {
				t.Errorf("%d answers, reports gone: %v, want %v", len(p.sent), got, c.gone)
			}
			if e.stats.Bad != c.wants {
				t.Errorf("%d packets counted as bad, want %d", e.stats.Bad, c.wants)
			}
		})
	}
}

// An answer that the peer is there is valid for the time at which it was asked, however often it is repeated.
func TestRecordedAnswerIsNoSignOfLife(t *testing.T) {
	const dead = time.Second
	for _, dial := range []bool{true, false} {
		e, p := trapped(t, Config{DeadTime: dead})
		peer, q := trapped(t, Config{ID: 2})
		p.keep, q.keep = true, true
		call := e.Listen
		if dial {
			call = e.Dial
		}
		c, err := call(1, 1, 2, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var last []byte // the peer's last answer before it died
		const died = 2 * Time(dead)
		now := Time(1)
		for ; now < 5*Time(dead) && p.down == nil; now += 1e6 {
			p.sent = nil
			e.Tick(now)
			for _, b := range p.sent {
				if now < died {
					peer.Input(now, []byte("here"), Frame{Data: b})
				}
			}
			for _, b := range q.sent {
				if kind(b[0]) == kindHere {
					last = b
				}
				e.Input(now, []byte("there"), Frame{Data: bytes.Clone(b)})
			}
			q.sent = nil
			if now >= died && last != nil {
				e.Input(now, []byte("there"), Frame{Data: bytes.Clone(last)})
			}
		}
		if !errors.Is(p.down, errBroken) || now < died || now > died+Time(dead)+Time(200*time.Millisecond) {
			t.Errorf("dial %v: ended at %v with %v, want %v a dead time after %v", dial,
				time.Duration(now), p.down, errBroken, time.Duration(died))
		}
		_ = c
	}
}

// A call to an address without an answer sends seven packets in a quarter of a second, then ten a second, and ends
// after the dead time: a forged address cannot attract more packets, nor can answers that any host could give.
func TestCallIntoTheVoidSendsLittle(t *testing.T) {
	const dead = 2 * time.Second
	for _, dial := range []bool{true, false} {
		for _, echo := range []bool{false, true} {
			e, p := trapped(t, Config{DeadTime: dead})
			call := e.Listen
			if dial {
				call = e.Dial
			}
			c, err := call(1, 1, 2, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			p.keep = true
			now := Time(1)
			for ; now < 2*Time(dead) && p.down == nil; now += 1e5 {
				e.Tick(now)
				if !echo {
					continue
				}
				for k, kd := range []kind{kindReject, kindReset, kindCookie, kindConnectRequest, kindHere, kindGone, kindQuery} {
					b := putSmall(make([]byte, 64), kd, c.id, 2, uint8(k))
					if kd == kindCookie {
						le.PutUint64(b[16:], uint64(now)) // another one each time
					}
					finishPacket(b)
					e.Input(now, []byte("there"), Frame{Data: b})
				}
			}
			most := 8 + int((dead+200*time.Millisecond)/longPause)
			if echo && dial {
				most += 32 + int(dead/firstPause) // a new cookie is answered, at most so often
			}
			if p.down == nil || now > Time(dead)+Time(200*time.Millisecond) || len(p.sent) > most {
				t.Errorf("dial %v, answers %v: %d packets until %v, %v, want at most %d", dial,
					echo, len(p.sent), p.down, now, most)
			}
		}
	}
}
