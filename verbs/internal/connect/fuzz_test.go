//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
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

// FuzzPeer: whatever an authenticated peer that asks or answers sends, in whatever order, an endpoint moves its queue
// pairs in order, is ready only after all steps, and can be finalized.
func FuzzPeer(f *testing.F) {
	kinds := func(list ...messageKind) (script []byte) {
		for _, k := range list {
			script = append(script, byte(k), 0)
		}
		return script
	}
	for _, asks := range []bool{false, true} {
		f.Add(asks, kinds(msgRequest, msgConfirm, msgConfirm, msgGone))
		f.Add(asks, kinds(msgReply, msgConfirm, msgConfirm, msgBye))
		f.Add(asks, kinds(msgRequest, msgReject))
		f.Add(asks, kinds(msgReply, msgAlive, msgReply))
	}
	f.Fuzz(func(t *testing.T, asks bool, script []byte) {
		h := aHost(t, func(c *Config, _ *Port) {
			if asks {
				c.Incarnation += 1 << 50
			}
		})
		conn, e := insiderOf(t, h, 1<<40, asks)
		for len(script) >= 2 {
			m := message{kind: messageKind(script[0])%msgBye + 1, code: rejectCode(script[1]), offer: anOffer()}
			m.offer.n = 1
			script = script[2:]
			if conn.Send(m.append(nil)) != nil {
				break
			}
		}
		if s := e.State(); s == Ready || s == Lost {
			if did, _ := e.qps[0].did(); did != allSteps {
				t.Fatalf("%v after the steps %q", s, did)
			}
		}
		e.finalize(t)
		if did, _ := e.qps[0].did(); !strings.HasPrefix(allSteps, did) {
			t.Fatalf("steps %q", did)
		}
	})
}

// insiderOf is a raw link of a peer that has proved the secret, and the endpoint of a host towards that peer.
func insiderOf(t testing.TB, h *host, inc uint64, asks bool) (*handshake.Conn, *testEnd) {
	if asks {
		e := h.endpointTo(inc, aHost(t, nil).m.Card(), nil)
		conn, _, w := insider(t, h, h.claimOf(inc, forEndpoint))
		if w.code != 0 {
			t.Fatalf("refused with code %d", w.code)
		}
		return conn, e
	}
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	e := h.endpointTo(inc, cardAt(l.Addr()), nil)
	c := must[net.Conn](t)(l.Accept())
	t.Cleanup(func() { c.Close() })
	conn, _, err := handshake.Accept(c, aKey(t, theSecret).Find, h.hub().config())
	if err == nil {
		err = conn.Send((&welcome{}).append(nil))
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn, e
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
		if s := h.m.Stats(); s.links != 0 {
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
