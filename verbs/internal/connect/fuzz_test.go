//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// FuzzMessage: every message that parses is encoded to the same bytes.
func FuzzMessage(f *testing.F) {
	_, messages := goldenMessages()
	for _, m := range messages {
		f.Add(m.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if err := m.parse(b); err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("% x: %v", b, err)
			}
			return
		}
		if got := m.append(nil); !bytes.Equal(got, b) {
			t.Fatalf("% x is written as % x", b, got)
		}
		if len(b) > maxPayload || m.offer.n > maxQPs || len(m.offer.user) > maxUserData {
			t.Fatalf("%d bytes: %+v", len(b), m)
		}
	})
}

// FuzzClaim: every claim, welcome or ticket that parses is encoded to the same bytes. No random ticket has a valid MAC.
func FuzzClaim(f *testing.F) {
	for _, b := range goldenBytes() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(err error, again []byte) {
			if err != nil && !errors.Is(err, errMalformed) && !errors.Is(err, driver.ErrVersion) {
				t.Fatalf("% x: %v", b, err)
			}
			if err == nil && !bytes.Equal(again, b[:len(again)]) {
				t.Fatalf("% x is written as % x", b, again)
			}
		}
		var c claim
		check(c.parse(b), c.append(nil))
		var w welcome
		check(w.parse(b), w.append(nil))
		var k ticket
		err := k.parse(b)
		check(err, k.append(nil))
		if key, _ := handshake.NewKey([]byte("another secret, long enough")); err == nil && key.Check(k.mac[:], ticketLabel, k.signed()) {
			t.Fatalf("% x has the right MAC", b)
		}
	})
}

// FuzzCard: a card is ErrInvalid or is written back as it was.
func FuzzCard(f *testing.F) {
	f.Add("oob,50,AQR_AAABEjQ;rdmacm,30,AQI")
	f.Add("oob,0,")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseCard(s)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if got := formatCard(list); got != s {
			t.Fatalf("%q is written as %q", s, got)
		}
		other := []entry{{"oob", 50, nil}, {"rdmacm", 30, nil}}
		i, k := match(list, other)
		if k2, i2 := match(other, list); i != i2 || k != k2 {
			t.Fatalf("%q: sides choose differently", s)
		}
	})
}

// FuzzBlob: the blob of each manager is an error that names it, or leads somewhere.
func FuzzBlob(f *testing.F) {
	for _, b := range goldenBytes() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseOOBBlob(b)
		if err == nil && (len(list) == 0 || len(list) > maxOOBAddrs || !list[0].IsValid()) {
			t.Fatalf("oob % x: %v", b, list)
		}
		at, also := parseRDMABlob(b)
		if also == nil && (!at.IsValid() || at.Port() == 0) {
			t.Fatalf("rdmacm % x: %v", b, at)
		}
		for _, err := range []error{err, also} {
			if err != nil && !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrVersion) {
				t.Fatalf("% x: %v", b, err)
			}
		}
	})
}

// FuzzMachine: whatever an authenticated peer sends, in whatever order, between
// whatever the user does, the machine keeps its promises: states only grow, steps come
// in order, memory is bounded, and what is Ready has been through all steps.
func FuzzMachine(f *testing.F) {
	_, messages := goldenMessages()
	var all []byte
	for k, m := range messages {
		b := m.append([]byte{byte(k % 8)})
		all = append(append(all, byte(len(b))), b...)
	}
	f.Add(true, all)
	f.Add(false, all)
	// A connection is a list of length, event and body.
	f.Add(true, []byte{0, 8, 0, 1, 3, 7, 2, 4, 2, 0, 2, 3, 7, 3, 4, 2, 0, 2, 3, 7, 5, 4, 2, 0, 0, 0})
	f.Add(false, []byte{0, 8, 0, 1, 3, 7, 1, 4, 0, 3, 7, 3, 4, 1, 0, 2, 3, 7, 0x13, 4, 1, 0, 3, 3, 7, 5, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, asks bool, script []byte) {
		m := &machine{self: 2, peer: 1}
		if asks {
			m.peer = 3
		}
		var id uint64
		m.nextID = func() uint64 { id++; return id }
		var now time.Duration
		moved := make(map[*end]step)
		working := make(map[*end]bool)
		shown := make(map[*end]State)
		m.linkUp(now)
		for len(script) > 2 {
			n := min(int(script[0]), len(script)-2)
			what, body := script[1], script[2:2+n]
			script = script[2+n:]
			fuzzStep(m, what, body, now, working)
			now += time.Duration(n) * time.Millisecond
			for _, a := range m.take(now) {
				switch a.kind {
				case actSend:
					var back message
					if err := back.parse(a.msg.append(nil)); err != nil {
						t.Fatalf("sends %+v: %v", a.msg, err)
					}
				case actWork:
					if last, begun := moved[a.end]; working[a.end] || begun && a.first != last+1 || !begun && a.first != stepInit {
						t.Fatalf("steps %d to %d after %d", a.first, a.last, last)
					}
					moved[a.end], working[a.end] = a.last, true
				case actState:
					s := a.end.state.public()
					if s < shown[a.end] || s == Ready && moved[a.end] != stepRTS {
						t.Fatalf("%v after %v, step %d", s, shown[a.end], moved[a.end])
					}
					shown[a.end] = s
				}
			}
			if len(m.ends) > 8 || len(m.out) > 0 {
				t.Fatalf("%d ends, %d actions are kept", len(m.ends), len(m.out))
			}
		}
	})
}

// fuzzStep is one event of a script.
func fuzzStep(m *machine, what byte, body []byte, now time.Duration, working map[*end]bool) {
	var e *end
	if len(m.ends) > 0 {
		e = m.ends[int(what>>4)%len(m.ends)]
	}
	switch what & 7 {
	case 0:
		if len(m.ends) < 8 {
			m.add(&end{offer: anOffer(), timeout: time.Second, target: "there", clear: what&8 != 0, cts: what&8 == 0}, now)
		}
	case 1:
		if e != nil {
			m.start(e, now)
		}
	case 2:
		if e != nil && working[e] {
			working[e] = false
			m.done(e, nil, now)
		}
	case 3:
		m.tick(now)
	case 4:
		if e != nil && what&8 != 0 {
			m.finalize(e)
		} else if e != nil {
			m.clearToSend(e)
		}
	case 5:
		if m.up {
			m.linkDown(now)
		} else {
			m.linkUp(now)
		}
	case 6:
		var msg message
		if msg.parse(body) == nil {
			_ = m.receive(&msg, now)
		}
	default: // any kind about ids that there may be
		if len(body) < 3 {
			return
		}
		kind := messageKind(body[0])%msgPong + 1
		msg := message{kind: kind, flags: body[0] >> 4 & flagsOf[kind], from: uint64(body[1]), to: uint64(body[2]), code: rejectCode(body[1]), offer: anOffer()}
		if msg.checkIDs() == nil {
			_ = m.receive(&msg, now)
		}
	}
}

// FuzzListener: bytes of unauthenticated dialers at a real listener neither crash nor hang it, nor make links.
func FuzzListener(f *testing.F) {
	f.Add([]byte("ByHs\x01\x01\x00\x00"))
	f.Add(append([]byte("ByHs\x01\x01\x00\x00"), make([]byte, 56)...))
	h := aHost(f, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.Dial("tcp", h.address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(b); err == nil {
			_ = c.(*net.TCPConn).CloseWrite()
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the listener keeps a connection that has ended")
		}
		if s := h.mods.Stats(); s.links != 0 {
			t.Fatalf("an unauthenticated dialer has made a link: %+v", s)
		}
	})
}

// FuzzNetwork: a network is ErrInvalid or is written back as it was, and two sides agree whether they reach each other.
func FuzzNetwork(f *testing.F) {
	own := []Network{
		{linkLayer: InfiniBand, gidType: GIDInfiniBand, pkey: 0xffff, prefix: [8]byte{0xfe, 0x80}},
		{linkLayer: Ethernet, gidType: GIDRoCEv2, pkey: 0xffff},
		{linkLayer: Ethernet, gidType: GIDRoCEv1, pkey: 0x7fff, prefix: [8]byte{0xfe, 0x80}},
	}
	for _, n := range own {
		f.Add(n.String())
	}
	f.Add("2,2,ffff,00000000000000000")
	f.Add("1,2,ffff,0000000000000000")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseNetwork(s)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if n.String() != s {
			t.Fatalf("%q is written as %q", s, n)
		}
		for _, o := range own {
			if o.Apart(n) != n.Apart(o) {
				t.Fatalf("%v returns %q for %v, which returns %q", o, o.Apart(n), n, n.Apart(o))
			}
		}
	})
}
