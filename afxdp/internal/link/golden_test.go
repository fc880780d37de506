package link

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

func goldenPackets(t *testing.T) map[string][]byte {
	text, err := os.ReadFile("testdata/packets.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name[0] != '#' {
			b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all[name] = b
		}
	}
	return all
}

const (
	goldenDial, goldenAccept       = 0x3132333435360000, 0x4142434445460002 // connections
	goldenDialer, goldenListener   = 0x2122232425262728, 0x1112131415161718 // endpoints
	goldenCum                      = 0x100000002
	goldenSent                     = 0x7172737475767778
	goldenStamp, goldenEcho, delay = 0x01020304, 0x01020300, 7
)

// goldenAddress is where the endpoint of a Query lives.
const goldenAddress = "udp4,192.0.2.1,24249,0"

func goldenNonce(from byte) (n [nonceSize]byte) {
	for k := range n {
		n[k] = from + byte(k)
	}
	return n
}

func goldenSecrets(t *testing.T) *secrets {
	t.Helper()
	s, err := newSecrets([]byte("sixteen bytes or more"), make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func goldenGreetings() (dial, accept greeting) {
	dial = greeting{
		kind: kindInit, version: version, to: goldenListener, from: goldenDialer, id: goldenDial, nonce: goldenNonce(0),
		mtu: 3766, credit: 36, longest: 65503, window: 256, sent: goldenSent, hello: []byte("hello"),
	}
	accept = greeting{
		kind: kindAccept, version: version, to: goldenDial, from: goldenListener, id: goldenAccept, nonce: goldenNonce(16),
		mtu: 3766, credit: 36, longest: 8964, window: 1024, hello: []byte{},
	}
	return dial, accept
}

// goldenHeaders are the packets of a connection.
func goldenHeaders() map[string]header {
	of := func(k kind, flags uint8, pn uint64, words, dups uint8) header {
		return header{
			kind: k, flags: flags, conn: goldenAccept, pn: pn, cum: goldenCum, credit: 0x12, stamp: goldenStamp, echo: goldenEcho,
			delay: delay, words: words, dups: dups,
		}
	}
	return map[string]header{
		"data": of(kindData, flagMore|flagAsk, 5, 0, 0), "placed": of(kindData, flagPlaced, 6, 0, 0),
		"data-bitmap": of(kindData, 0, 7, 2, 0), "ack": of(kindAck, 0, 8, 1, 3), "ping": of(kindPing, 0, 9, 0, 0),
		"close": of(kindClose, flagAbort, 10, 0, 0), "closed": of(kindClosed, 0, 11, 0, 0), "sealed": of(kindData, 0, 12, 0, 0),
	}
}

// goldenBodies is what follows the headers.
var goldenBodies = map[string]func(b []byte) []byte{
	"data": func(b []byte) []byte { return append(le.AppendUint64(b, 3), "hello"...) },
	"placed": func(b []byte) []byte {
		for _, v := range []uint64{4, 0x5152535455565758, 4096, 1 << 20} {
			b = le.AppendUint64(b, v)
		}
		return append(b, "placed"...)
	},
	"data-bitmap": func(b []byte) []byte {
		b = append(le.AppendUint64(b, 5), "both"...)
		return le.AppendUint64(le.AppendUint64(b, 0x8000000000000017), 1)
	},
	"ack":    func(b []byte) []byte { return le.AppendUint64(b, 6) },
	"ping":   func(b []byte) []byte { return b },
	"close":  func(b []byte) []byte { return le.AppendUint64(b, 6) },
	"closed": func(b []byte) []byte { return le.AppendUint64(b, 0) },
	"sealed": func(b []byte) []byte { return append(le.AppendUint64(b, 6), "secret"...) },
}

func TestPacketsAreTheGoldenOnes(t *testing.T) {
	golden := goldenPackets(t)
	dial, accept := goldenGreetings()
	s := goldenSecrets(t)
	e := &Endpoint{secrets: s}
	cookie := golden["cookie"][16:]
	room := func() []byte { return make([]byte, 256) }
	got := map[string][]byte{
		"init":            e.putGreeting(room(), &dial, cookie, nil),
		"accept":          e.putGreeting(room(), &accept, nil, &dial),
		"reject":          putSmall(room(), kindReject, goldenDial, goldenListener, uint8(rejectVersion)),
		"connect request": e.putNote(room(), &note{kindConnectRequest, goldenDialer, goldenListener, goldenAccept, goldenSent}, nil),
		"here":            e.putNote(room(), &note{kindHere, goldenListener, goldenDialer, goldenAccept, goldenSent}, nil),
		"query":           e.putNote(room(), &note{kindQuery, goldenListener, goldenDialer, goldenAccept, goldenSent}, []byte(goldenAddress)),
		"gone":            e.putNote(room(), &note{kindGone, goldenDialer, goldenListener, goldenAccept, goldenSent}, []byte(goldenAddress)),
		"reset":           putSmall(room(), kindReset, goldenAccept, 0, 0),
		"cookie":          cookie, // of an address and a moment: TestGoldenCookieIsEchoed
	}
	for name, h := range goldenHeaders() {
		b := make([]byte, ackSize, 256)
		putHeader(b, &h)
		b = goldenBodies[name](b)
		if name == "sealed" {
			b = s.keys(true, &dial, &accept).seal(b[:len(b):cap(b)], b, h.pn)
		} else {
			finishPacket(b)
		}
		got[name] = b
	}
	if len(got) != len(golden) {
		t.Errorf("%d vectors, %d packets", len(golden), len(got))
	}
	for name, want := range golden {
		if name != "cookie" && !bytes.Equal(got[name], want) {
			t.Errorf("%s:\n got % x\nwant % x", name, got[name], want)
		}
	}
}

func TestGoldenPacketsAreParsed(t *testing.T) {
	golden := goldenPackets(t)
	dial, accept := goldenGreetings()
	s := goldenSecrets(t)
	for name, b := range golden {
		p := sized(append(bytes.Clone(b), make([]byte, 18)...)) // Ethernet's padding
		if len(p) != len(b) || name != "sealed" && le.Uint32(p[4:]) != sum(p) {
			t.Errorf("%s: %d bytes of %d, sum %#x", name, len(p), len(b), sum(p))
			continue
		}
		if want, ok := goldenHeaders()[name]; ok {
			if name == "sealed" {
				want.flags |= flagSealed
			}
			var h header
			if parseHeader(p, &h); h != want {
				t.Errorf("%s: %+v, want %+v", name, h, want)
			}
		}
	}
	for name, want := range map[string]greeting{"init": dial, "accept": accept} {
		var g greeting
		ok := g.parse(golden[name])
		hello := g.hello
		g.hello, want.hello = nil, nil
		if w := map[string]string{"init": "hello"}[name]; !ok || string(hello) != w || !sameGreeting(&g, &want) {
			t.Errorf("%s: %+v %q, want %+v", name, g, hello, want)
		}
	}
	for name, want := range map[string]note{
		"connect request": {kindConnectRequest, goldenDialer, goldenListener, goldenAccept, goldenSent},
		"gone":            {kindGone, goldenDialer, goldenListener, goldenAccept, goldenSent},
	} {
		var n note
		if n.parse(golden[name]); n != want {
			t.Errorf("%s: %+v, want %+v", name, n, want)
		}
	}
	var p Placement
	if !p.parse(golden["placed"], 0) || p.Tag != 0x5152535455565758 || p.Offset != 4096 || p.Total != 1<<20 ||
		string(p.Data) != "placed" {
		t.Errorf("placed: %+v", p)
	}
	sealed := bytes.Clone(golden["sealed"])
	if b := s.keys(false, &dial, &accept).open(sealed, 12); b == nil || string(b[ackSize+8:]) != "secret" {
		t.Errorf("sealed: % x", b)
	}
}

func sameGreeting(a, b *greeting) bool {
	return a.kind == b.kind && a.version == b.version && a.to == b.to && a.from == b.from && a.id == b.id &&
		a.nonce == b.nonce && a.mtu == b.mtu && a.credit == b.credit && a.options == b.options &&
		a.longest == b.longest && a.window == b.window && a.sent == b.sent
}

// oneFrame is a carrier that keeps what was sent last.
type oneFrame struct {
	mem  [256]byte
	sent []byte
}

func (c *oneFrame) Get() (Frame, bool)     { return Frame{Data: c.mem[:]}, true }
func (c *oneFrame) GetLong() (Frame, bool) { return c.Get() }
func (c *oneFrame) Put(uint64)             {}
func (c *oneFrame) Sending(uint64) bool    { return false }
func (c *oneFrame) Address(Route) []byte   { return nil }
func (c *oneFrame) Send(_ Route, f Frame, n int) bool {
	c.sent = bytes.Clone(f.Data[:n])
	return true
}

// A dialer answers a cookie by the Init with it in it.
func TestGoldenCookieIsEchoed(t *testing.T) {
	golden := goldenPackets(t)
	var out oneFrame
	e := &Endpoint{carrier: &out, secrets: goldenSecrets(t), now: goldenSent, cfg: Config{MTU: 65503, Unit: 3766}}
	c := &Conn{e: e, id: goldenDial, state: stateDialing}
	c.mine, _ = goldenGreetings()
	e.conns = []*Conn{c}
	e.Input(0, nil, Frame{Data: golden["cookie"]})
	if !bytes.Equal(out.sent, golden["init"]) {
		t.Errorf("\n got % x\nwant % x", out.sent, golden["init"])
	}
}
