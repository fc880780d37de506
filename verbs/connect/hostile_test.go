package connect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// address is where a host's oob listens.
func (h *host) address() string {
	list, err := parseOOBBlob(h.mods.entries[0].blob)
	if err != nil {
		h.t.Fatal(err)
	}
	return list[0].String()
}

// cardAt is a card of oob that leads to another address.
func cardAt(a net.Addr) string {
	at := netip.MustParseAddrPort(a.String())
	ip := at.Addr().As4()
	return formatCard([]entry{{"oob", 50, binary.BigEndian.AppendUint16(append([]byte{oobVersion, 4}, ip[:]...), at.Port())}})
}

// stranger is a raw connection to a host.
func stranger(t testing.TB, h *host) *tcpConn {
	t.Helper()
	c, err := net.Dial("tcp", h.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return newTCPConn(c.(*net.TCPConn))
}

// mustStillConnect checks that genuine peers do.
func mustStillConnect(t testing.TB, h *host) {
	t.Helper()
	p := aHost(t, nil)
	x, y := h.start(p, nil), p.start(h, nil)
	x.mustStand(t)
	y.mustStand(t)
}

// A dialer of another version of the protocol is told so; a listener of another version is ErrVersion.
func TestOtherVersion(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	hello := (&frame{kind: frameHello, from: 1 << 60, to: h.inc}).append(nil)
	hello[4]++
	c := stranger(t, h)
	if err := c.send(hello); err != nil {
		t.Fatal(err)
	}
	var f frame
	if b, err := c.receive(); err != nil || f.parse(b) != nil || f.kind != frameRefuse || f.code != refuseVersion {
		t.Errorf("answer %+v, %v; want a refusal for the version", f, err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conn := newTCPConn(c.(*net.TCPConn))
		_, _ = conn.receive()
		answer := (&frame{kind: frameChallenge}).append(nil)
		answer[4]++
		_ = conn.send(answer)
		_, _ = io.Copy(io.Discard, c)
	}()
	x := h.endpointTo(1<<60, cardAt(l.Addr()), nil)
	_ = x.Start()
	x.mustFail(t, Failed, driver.ErrVersion)
}

// Strangers who say nothing, or nothing that makes sense, hold up nobody: the oldest go when there are too many.
func TestStrangersHoldUpNobody(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	before, _ := held()
	for k := range 2 * maxStrangers {
		c := stranger(t, h)
		switch k % 3 {
		case 1:
			_, _ = c.tcp.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		case 2:
			_ = c.send((&frame{kind: frameHello, from: 1 << 60, to: h.inc}).append(nil))
		}
	}
	mustStillConnect(t, h)
	waitUntil(t, "strangers are counted", func() bool { s := h.mods.Stats(); return s.Refused > 0 && s.BadMessages > 0 })
	hub := h.hub()
	hub.mu.Lock()
	n := len(hub.strangers)
	hub.mu.Unlock()
	if n > maxStrangers {
		t.Errorf("%d strangers are kept, limit is %d", n, maxStrangers)
	}
	waitUntil(t, "the sockets of those who had to go are closed", func() bool {
		fds, _ := held()
		return fds <= before+2*maxStrangers+maxStrangers+50
	})
}

// Who claims a peer's incarnation without the secret changes nothing for that peer.
func TestImpostorWithoutSecret(t *testing.T) {
	onHost(t)
	h, p := aHost(t, nil), aHost(t, nil)
	x := h.start(p, nil)
	c := stranger(t, h)
	hs := handshake{secret: []byte("a guess"), manager: "oob"}
	_ = c.send(hs.dial(p.inc, h.inc).append(nil))
	var f frame
	if err := receiveFrame(c, &f); err != nil || f.kind != frameChallenge {
		t.Fatalf("%+v, %v", f, err)
	}
	hs.chal = f
	_ = c.send((&frame{kind: frameProof, mac: hs.proof("dialer")}).append(nil))
	if err := receiveFrame(c, &f); err != nil || f.kind != frameRefuse || f.code != refuseSecret {
		t.Errorf("an impostor hears %+v, %v", f, err)
	}
	if x.State() != Connecting {
		t.Errorf("endpoint is %v: %v", x.State(), x.Err())
	}
	y := p.start(h, nil)
	x.mustStand(t)
	y.mustStand(t)
}

// A peer that has the secret cannot keep more than a few links.
func TestLinksAreBounded(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	var all []*tcpConn
	for range 3 * maxLinks {
		c := stranger(t, h)
		hs := handshake{secret: []byte("the secret of the session"), manager: "oob"}
		_ = c.send(hs.dial(1<<62, h.inc).append(nil))
		var f frame
		if err := receiveFrame(c, &f); err != nil {
			t.Fatal(err)
		}
		proof, err := hs.answer(&f)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.send(proof.append(nil))
		if _, err := c.receive(); err != nil {
			t.Fatalf("welcome: %v", err)
		}
		all = append(all, c)
	}
	for _, c := range all[:2*maxLinks] {
		if _, err := c.receive(); err == nil {
			t.Error("an old link is kept")
		}
	}
	hub := h.hub()
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if n := len(hub.peers[1<<62].links); n != maxLinks {
		t.Errorf("%d links, limit is %d", n, maxLinks)
	}
}

// A proof fits neither the other role, nor another connection, manager or secret.
func TestProofsFitOnce(t *testing.T) {
	onHost(t)
	seen := make(map[[macBytes]byte]string)
	for _, manager := range []string{"oob", "rdmacm"} {
		for _, secret := range []string{"one", "two"} {
			for _, role := range []string{"dialer", "listener", "dialer messages", "listener messages"} {
				for n := range 8 {
					h := handshake{secret: []byte(secret), manager: manager}
					h.hello = frame{from: uint64(n & 1), to: 7}
					h.hello.nonce[0], h.chal.nonce[0] = byte(n>>1&1), byte(n>>2)
					mac := h.proof(role)
					if was := seen[mac]; was != "" {
						t.Errorf("%s %s %s %d: the proof of %s", manager, secret, role, n, was)
					}
					seen[mac] = manager + " " + secret + " " + role
				}
			}
		}
	}
}

// What is changed, left out, repeated, swapped or reflected among sealed messages is noticed.
func TestSealsNoticeChanges(t *testing.T) {
	hs := handshake{secret: []byte("secret"), manager: "oob"}
	hs.dial(1, 2)
	fresh := func() (s *seal, frames [][]byte) {
		there, back := hs.seals()
		if there.key == back.key {
			t.Fatal("both directions have one key")
		}
		for k := range 4 {
			frames = append(frames, there.close([]byte{byte(k), 1, 2, 3}))
		}
		receiver, _ := hs.seals()
		return receiver, frames
	}
	for what, change := range map[string]func(f [][]byte) [][]byte{
		"a bit":     func(f [][]byte) [][]byte { f[1][2] ^= 1; return f },
		"the MAC":   func(f [][]byte) [][]byte { f[1][len(f[1])-1] ^= 1; return f },
		"left out":  func(f [][]byte) [][]byte { return append(f[:1], f[2:]...) },
		"repeated":  func(f [][]byte) [][]byte { return [][]byte{f[0], f[0]} },
		"swapped":   func(f [][]byte) [][]byte { f[0], f[1] = f[1], f[0]; return f },
		"truncated": func(f [][]byte) [][]byte { f[0] = f[0][:3]; return f },
	} {
		s, frames := fresh()
		noticed := false
		for _, f := range change(frames) {
			if _, err := s.open(f); err != nil {
				noticed = true
				break
			}
		}
		if !noticed {
			t.Errorf("%s: not noticed", what)
		}
	}
	s, frames := fresh()
	for _, f := range frames {
		if _, err := s.open(f); err != nil {
			t.Fatal(err)
		}
	}
	_, back := hs.seals()
	if _, err := back.open(frames[0]); !errors.Is(err, driver.ErrAuth) {
		t.Errorf("reflected: %v, want %v", err, driver.ErrAuth)
	}
}

// relay stands between two hosts and does harm.
type relay struct {
	l    net.Listener
	mu   sync.Mutex
	rng  *rand.Rand
	flip float64 // per piece of bytes
	cut  float64
	all  []net.Conn
}

func newRelay(t testing.TB, to string, seed uint64, flip, cut float64) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, rng: rand.New(rand.NewPCG(seed, 2)), flip: flip, cut: cut}
	t.Cleanup(r.close)
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			r.mu.Lock()
			r.all = append(r.all, a, b)
			r.mu.Unlock()
			go r.pass(a, b)
			go r.pass(b, a)
		}
	}()
	return r
}

func (r *relay) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	var b [4096]byte
	for {
		n, err := from.Read(b[:])
		if err != nil {
			return
		}
		r.mu.Lock()
		cut, flip, at := r.rng.Float64() < r.cut, r.rng.Float64() < r.flip, r.rng.IntN(8*n)
		r.mu.Unlock()
		if cut {
			return
		}
		if flip {
			b[at/8] ^= 1 << (at % 8)
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *relay) close() {
	r.l.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		c.Close()
	}
}

// Links that are cut again and again: endpoints stand all the same, and those
// that stand survive.
func TestLinksThatAreCut(t *testing.T) {
	onHost(t)
	for seed := uint64(1); seed <= 6; seed++ {
		a, b := aHost(t, nil), aHost(t, nil)
		ra, rb := newRelay(t, a.address(), seed, 0, 0.1), newRelay(t, b.address(), seed+100, 0, 0.1)
		var ends []*testEnd
		for range 10 {
			x, y := a.endpointTo(b.inc, cardAt(rb.l.Addr()), nil), b.endpointTo(a.inc, cardAt(ra.l.Addr()), nil)
			_, _ = x.Start(), y.Start()
			ends = append(ends, x, y)
			time.Sleep(2 * time.Millisecond)
		}
		for k, e := range ends {
			e.await(t, Ready)
			if e.State() != Ready {
				t.Errorf("seed %d: endpoint %d is %v: %v", seed, k, e.State(), e.Err())
			}
		}
		for _, r := range []*relay{ra, rb} { // all links at once
			r.mu.Lock()
			for _, c := range r.all {
				c.Close()
			}
			r.cut = 0
			r.mu.Unlock()
		}
		x, y := a.endpointTo(b.inc, cardAt(rb.l.Addr()), nil), b.endpointTo(a.inc, cardAt(ra.l.Addr()), nil)
		_, _ = x.Start(), y.Start()
		x.mustStand(t)
		y.mustStand(t)
		for k, e := range ends {
			if e.State() != Ready {
				t.Errorf("seed %d: endpoint %d is %v after its link was cut: %v", seed, k, e.State(), e.Err())
			}
		}
	}
}

// Bits that change on the way never make queue pairs that do not belong
// together: endpoints stand with the right peer, or fail.
func TestBitsThatChange(t *testing.T) {
	onHost(t)
	for seed := uint64(1); seed <= 8; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel() // most of the time goes by until something is sent again
			a, b := aHost(t, nil), aHost(t, nil)
			ra, rb := newRelay(t, a.address(), seed, 0.2, 0), newRelay(t, b.address(), seed+100, 0.2, 0)
			for range 5 {
				x, y := a.endpointTo(b.inc, cardAt(rb.l.Addr()), nil), b.endpointTo(a.inc, cardAt(ra.l.Addr()), nil)
				_, _ = x.Start(), y.Start()
				x.await(t, Ready)
				y.await(t, Ready)
				for _, e := range [][2]*testEnd{{x, y}, {y, x}} {
					if e[0].State() != Ready {
						continue
					}
					if r := e[0].Remote(); r.QPs[0] != e[1].qps[0].num {
						t.Errorf("connected to queue pair %d, want %d", r.QPs[0], e[1].qps[0].num)
					}
				}
				x.finalize(t)
				y.finalize(t)
			}
		})
	}
}

// An authenticated peer that does not follow the protocol loses its link; bytes of no sense change nothing.
func TestPeerThatBreaksTheProtocol(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	for _, payload := range [][]byte{
		{}, {0}, make([]byte, headBytes), make([]byte, maxPayload),
		(&message{kind: msgWelcome}).append(nil),
		(&message{kind: msgRequest, from: 1, offer: anOffer()}).append(nil),                // the host asks this peer
		(&message{kind: msgReply, from: 1, to: 1, offer: offer{n: 1, mtu: 9}}).append(nil), // no such MTU
		(&message{kind: msgClose}).append(nil),
	} {
		before := h.mods.Stats().BadMessages
		c := stranger(t, h)
		hs := handshake{secret: []byte("the secret of the session"), manager: "oob"}
		_ = c.send(hs.dial(1<<61, h.inc).append(nil)) // a higher incarnation answers
		var f frame
		if err := receiveFrame(c, &f); err != nil {
			t.Fatal(err)
		}
		proof, err := hs.answer(&f)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.send(proof.append(nil))
		there, back := hs.seals()
		b, err := c.receive()
		if err == nil {
			_, err = back.open(b)
		}
		if err != nil {
			t.Fatalf("welcome: %v", err)
		}
		_ = c.send(there.close(append([]byte(nil), payload...)))
		if _, err := c.receive(); err == nil {
			t.Errorf("payload % x: the link goes on", payload)
		}
		waitUntil(t, "bad message is counted", func() bool { return h.mods.Stats().BadMessages > before })
	}
	mustStillConnect(t, h)
}
