//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// address is where a host's oob listens.
func (h *host) address() string {
	list, err := parseOOBBlob(h.hub().blob)
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

// rawConn is a raw connection to a host.
func rawConn(t testing.TB, h *host) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", h.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

const theSecret = "the secret of the session"

func aKey(t testing.TB, secret string) *handshake.Key {
	t.Helper()
	return must[*handshake.Key](t)(handshake.NewKey([]byte(secret)))
}

// insider is a raw connection to a host that has proved the secret, and the host's reply to its claim.
func insider(t testing.TB, h *host, c claim) (*handshake.Conn, *net.TCPConn, welcome) {
	t.Helper()
	tcp := rawConn(t, h)
	conn, err := handshake.Dial(tcp, aKey(t, theSecret), h.hub().config(), c.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	b, err := conn.Receive()
	if err != nil {
		t.Fatalf("welcome: %v", err)
	}
	var w welcome
	if err := w.parse(b); err != nil {
		t.Fatal(err)
	}
	return conn, tcp, w
}

func (h *host) claimOf(inc uint64, what purpose) claim {
	return claim{version: protocolVersion, purpose: what, from: inc, to: h.inc}
}

// mustStillConnect checks that genuine peers do.
func mustStillConnect(t testing.TB, h *host) {
	t.Helper()
	p := aHost(t, nil)
	x, y := h.endpoint(p, nil), p.endpoint(h, nil)
	x.mustConnect(t)
	y.mustConnect(t)
}

// A dialer of another version of the protocol receives that as the reason; a listener of another version is ErrVersion.
func TestOtherVersion(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	c := h.claimOf(1<<60, forWatching)
	c.version++
	if _, _, w := insider(t, h, c); w.code != refuseVersion {
		t.Errorf("answer %+v, want a refusal for the version", w)
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
		conn, _, err := handshake.Accept(c, aKey(t, theSecret).Find, h.hub().config())
		if err != nil {
			t.Error(err)
			return
		}
		w := (&welcome{}).append(nil)
		w[0]++
		_ = conn.Send(w)
		_, _ = io.Copy(io.Discard, c)
	}()
	x := h.endpointTo(1<<60, cardAt(l.Addr()), nil)
	x.mustFail(t, Failed, driver.ErrVersion)
}

// Unauthenticated dialers that send nothing, or garbage, delay no peer: the oldest are dropped when there are too many.
func TestUnauthenticatedDialersDelayNoPeer(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	before, _ := held()
	for k := range 2 * maxUnauthenticated {
		c := rawConn(t, h)
		switch k % 3 {
		case 1:
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		case 2:
			_, _ = c.Write([]byte("ByHs\x01\x01\x00")) // a hello that goes no further
		}
	}
	mustStillConnect(t, h)
	waitUntil(t, "unauthenticated dialers are counted", func() bool { s := h.m.Stats(); return s.Refused > 0 && s.BadMessages > 0 })
	hub := h.hub()
	hub.mu.Lock()
	n := len(hub.unauthenticated)
	hub.mu.Unlock()
	if n > maxUnauthenticated {
		t.Errorf("%d unauthenticated sockets are kept, limit is %d", n, maxUnauthenticated)
	}
	waitUntil(t, "the sockets of those who had to go are closed", func() bool {
		fds, _ := held()
		return fds <= before+2*maxUnauthenticated+maxUnauthenticated+50
	})
}

// A dialer that claims a peer's incarnation without the secret changes nothing for that peer.
func TestDialerWithoutSecret(t *testing.T) {
	onHost(t)
	h, p := aHost(t, nil), aHost(t, nil)
	x := h.endpoint(p, nil)
	c := h.claimOf(p.inc, forWatching)
	_, err := handshake.Dial(rawConn(t, h), aKey(t, "a guess, long enough"), h.hub().config(), c.append(nil))
	if !errors.Is(err, handshake.ErrSecret) {
		t.Errorf("a dialer without the secret gets %v, want %v", err, handshake.ErrSecret)
	}
	if x.State() != Connecting {
		t.Errorf("endpoint is %v: %v", x.State(), x.Err())
	}
	y := p.endpoint(h, nil)
	x.mustConnect(t)
	y.mustConnect(t)
}

// A peer that has the secret keeps one request that no endpoint has met, and one link by which it watches this process:
// the newest of each.
func TestLinksAreBounded(t *testing.T) {
	onHost(t)
	h := aHost(t, func(c *Config, _ *Port) { c.Incarnation += 1 << 50 })
	for _, what := range []purpose{forEndpoint, forWatching} {
		var all []*handshake.Conn
		for range 12 {
			conn, _, w := insider(t, h, h.claimOf(1<<40, what))
			if w.code != 0 {
				t.Fatalf("refused with code %d", w.code)
			}
			if what == forEndpoint {
				_ = conn.Send((&message{kind: msgRequest, offer: anOffer()}).append(nil))
			}
			all = append(all, conn)
		}
		var kept atomic.Int32
		var tasks sync.WaitGroup
		for _, conn := range all {
			tasks.Go(func() {
				for range beats / 2 { // the host says that it is alive
					if _, err := conn.Receive(); err != nil {
						return
					}
				}
				kept.Add(1)
			})
		}
		if tasks.Wait(); kept.Load() != 1 {
			t.Errorf("%d links of purpose %d are kept, want 1", kept.Load(), what)
		}
	}
}

// A request that was accepted before the one that waits does not take its place: it is of an endpoint that was given up.
func TestOlderRequestDisplacesNone(t *testing.T) {
	onHost(t)
	h := aHost(t, func(c *Config, _ *Port) { c.Incarnation += 1 << 50 })
	request := func() *handshake.Conn {
		conn, _, _ := insider(t, h, h.claimOf(1<<40, forEndpoint))
		_ = conn.Send((&message{kind: msgRequest, offer: anOffer()}).append(nil))
		return conn
	}
	newer := request()
	waitUntil(t, "the request waits", func() bool {
		h.hub().mu.Lock()
		defer h.hub().mu.Unlock()
		p := h.hub().peers[1<<40]
		if p == nil || p.request == nil || p.request.msg == nil {
			return false
		}
		p.request.link.number = 1 << 40
		return true
	})
	older := request()
	for {
		if _, err := older.Receive(); err != nil {
			break
		}
	}
	h.endpointTo(1<<40, aHost(t, nil).m.Card(), nil)
	for {
		b, err := newer.Receive()
		if err != nil {
			t.Fatalf("the newer request: %v, want a reply", err)
		}
		if messageKind(b[0]) == msgReply {
			return
		}
	}
}

// Short secrets are refused, with the remedy.
func TestShortSecret(t *testing.T) {
	_, err := Open(Config{Incarnation: 1, Secret: []byte("fifteen bytes..")}, aPort("a"))
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "16") {
		t.Errorf("got %v, want %v that names the least length", err, driver.ErrInvalid)
	}
}

// relay is between two hosts. It changes what it forwards, and cuts connections or stops to forward.
type relay struct {
	l     net.Listener
	mu    sync.Mutex
	rng   *rand.Rand
	flip  float64 // per piece of bytes
	after int     // of the first connection, bytes to forward in both directions; less than 0: all
	stall bool    // then nothing more is forwarded, instead of a cut
	all   []net.Conn
}

func newRelay(t testing.TB, to string, seed uint64, flip float64, after int, stall bool) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, rng: rand.New(rand.NewPCG(seed, 2)), flip: flip, after: after, stall: stall}
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
			left := r.after
			r.after = -1
			r.all = append(r.all, a, b)
			r.mu.Unlock()
			go r.pass(a, b, &left)
			go r.pass(b, a, &left)
		}
	}()
	return r
}

// pass forwards bytes as long as left, which both directions share, allows it.
func (r *relay) pass(from, to net.Conn, left *int) {
	var b [4096]byte
	for {
		n, err := from.Read(b[:])
		if err != nil {
			break
		}
		r.mu.Lock()
		flip, at := r.rng.Float64() < r.flip, r.rng.IntN(8*n)
		last := *left >= 0 && n >= *left
		if last {
			n = *left
		}
		if *left >= 0 {
			*left -= n
		}
		r.mu.Unlock()
		if flip {
			b[at/8] ^= 1 << (at % 8)
		}
		if _, err := to.Write(b[:n]); err != nil {
			break
		}
		if last && r.stall {
			return
		}
		if last {
			break
		}
	}
	from.Close()
	to.Close()
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		c.Close()
	}
	r.all = nil
}

func (r *relay) close() {
	r.l.Close()
	r.cut()
}

// Bits that change on the way never make queue pairs that do not belong
// together: endpoints are connected to the right peer, or fail.
func TestBitsThatChange(t *testing.T) {
	onHost(t)
	for seed := uint64(1); seed <= 8; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel() // most of the time goes by until something is sent again
			a, b := aHost(t, nil), aHost(t, nil)
			ra, rb := newRelay(t, a.address(), seed, 0.2, -1, false), newRelay(t, b.address(), seed+100, 0.2, -1, false)
			for range 5 {
				x, y := a.endpointTo(b.inc, cardAt(rb.l.Addr()), nil), b.endpointTo(a.inc, cardAt(ra.l.Addr()), nil)
				x.await(t, Ready)
				y.await(t, Ready)
				for _, e := range [][2]*testEnd{{x, y}, {y, x}} {
					if e[0].State() != Ready {
						continue
					}
					if _, p := e[0].qps[0].did(); p.PeerQP != e[1].qps[0].num {
						t.Errorf("connected to queue pair %d, want %d", p.PeerQP, e[1].qps[0].num)
					}
				}
				x.finalize(t)
				y.finalize(t)
			}
		})
	}
}

// A link to a watching peer outlives an earlier link of that peer, even if the host looks at the earlier one last.
func TestWatcherThatIsServedLate(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	const inc = 1 << 61
	watch := func(before *link) (*handshake.Conn, *link) {
		conn, _, w := insider(t, h, h.claimOf(inc, forWatching))
		if w.code != 0 {
			t.Fatalf("refused with code %d", w.code)
		}
		var l *link
		waitUntil(t, "the host serves the watcher", func() bool {
			h.hub().mu.Lock()
			defer h.hub().mu.Unlock()
			if p := h.hub().peers[inc]; p != nil {
				l = p.watcher
			}
			return l != nil && l != before
		})
		return conn, l
	}
	_, earlier := watch(nil)
	conn, later := watch(earlier)
	h.hub().serveWatcher(inc, earlier)
	for range 2 {
		if _, err := conn.Receive(); err != nil {
			t.Fatalf("the later link has ended: %v", err)
		}
	}
	select {
	case <-later.leaving:
		t.Error("the host ends the later link")
	default:
	}
}

// An authenticated peer that does not follow the protocol loses its link; bytes of no sense change nothing.
func TestPeerThatBreaksTheProtocol(t *testing.T) {
	onHost(t)
	h := aHost(t, nil)
	for _, payload := range [][]byte{
		{}, {0}, make([]byte, headBytes), make([]byte, maxPayload), make([]byte, maxPayload+1),
		(&message{kind: msgRequest, offer: anOffer()}).append(nil), // the host asks this peer
		(&message{kind: msgReply, offer: offer{n: 1, mtu: 9}}).append(nil),
		(&message{kind: msgConfirm}).append(nil),
	} {
		before := h.m.Stats().BadMessages
		conn, _, w := insider(t, h, h.claimOf(1<<61, forWatching))
		if w.code != 0 {
			t.Fatalf("refused with code %d", w.code)
		}
		_ = conn.Send(payload)
		for {
			if _, err := conn.Receive(); err != nil {
				break
			}
		}
		waitUntil(t, "bad message is counted", func() bool { return h.m.Stats().BadMessages > before })
	}
	c := h.claimOf(1<<61, forEndpoint) // the host asks this peer
	if _, err := handshake.Dial(rawConn(t, h), aKey(t, theSecret), h.hub().config(), c.append(nil)); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "a request of the side that answers is counted", func() bool { return h.m.Stats().BadMessages > 8 })
	mustStillConnect(t, h)
}
