package connect

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// realQP is a queue pair of the device, with one receive posted by Prepare.
type realQP struct {
	*ibv.QP
	cq *ibv.CQ
	mr *ibv.MR
	b  []byte // first half to receive into, second half to send from
}

func (q *realQP) Init(p *Path) error {
	return q.ToInit(ibv.InitAttr{Port: int(p.Port), PKeyIndex: int(p.PKeyIndex), Access: ibv.AccessLocalWrite})
}

func (q *realQP) RTR(p *Path) error {
	return q.ToRTR(ibv.RTRAttr{
		Path: ibv.Path{DGID: p.PeerGID, SGIDIndex: int(p.GIDIndex), HopLimit: p.HopLimit, TrafficClass: p.TrafficClass, DLID: p.PeerLID, SL: p.ServiceLevel},
		MTU:  ibv.MTU(mtuCode(p.MTU)), DestQPN: p.PeerQP, RQPSN: p.PeerPSN, MaxDestRdAtomic: int(p.Responder), MinRNRTimer: int(p.MinRNRTimer),
	})
}

func (q *realQP) RTS(p *Path) error {
	return q.ToRTS(ibv.RTSAttr{SQPSN: p.PSN, Timeout: int(p.AckTimeout), RetryCount: int(p.RetryCount), RNRRetry: int(p.RNRRetry), MaxRdAtomic: int(p.Initiator)})
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func aRealQP(t testing.TB) *realQP {
	pd := must[*ibv.PD](t)(device.verbs.AllocPD())
	cq := must[*ibv.CQ](t)(device.verbs.CreateCQ(8, nil, 0))
	q := &realQP{cq: cq, b: make([]byte, 512)}
	q.QP = must[*ibv.QP](t)(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 2, MaxRecvWR: 2}))
	q.mr = must[*ibv.MR](t)(pd.RegMR(q.b, ibv.AccessLocalWrite))
	t.Cleanup(func() {
		for _, err := range []error{q.Close(), q.mr.Close(), cq.Close(), pd.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return q
}

func (q *realQP) postReceive() error {
	c, err := ibv.NewRecvChain(1, 1)
	if err != nil {
		return err
	}
	c.Next().AddSGE(q.mr.Addr(), 256, q.mr.LKey())
	_, err = q.PostRecv(c)
	return err
}

func (q *realQP) send(t testing.TB, text string) {
	t.Helper()
	n := copy(q.b[256:], text)
	c := must[*ibv.SendChain](t)(ibv.NewSendChain(1, 1, 0))
	w := c.Next()
	w.Flags = ibv.SendSignaled
	w.Send()
	w.AddSGE(uint64(uintptr(unsafe.Pointer(&q.b[256]))), uint32(n), q.mr.LKey())
	must[int](t)(q.PostSend(c))
}

// hear waits for the send's completion and for the message.
func (q *realQP) hear(t testing.TB) string {
	t.Helper()
	var wcs [4]ibv.WC
	text, done := "", 0
	for limit := time.Now().Add(20 * time.Second); done < 2; {
		n := must[int](t)(q.cq.Poll(wcs[:]))
		for k := range wcs[:n] {
			if err := wcs[k].Err(); err != nil {
				t.Fatal(err)
			}
			if wcs[k].Opcode.IsRecv() {
				text = string(q.b[:wcs[k].ByteLen])
			}
			done++
		}
		if time.Now().After(limit) {
			t.Fatalf("%d of 2 completions in 20 s", done)
		}
	}
	return text
}

// Real queue pairs that were connected carry messages both ways, the first at
// once after Ready.
func TestQueuePairsCarryMessages(t *testing.T) {
	onDevice(t)
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			with := func(c *Config, _ *Port) { c.Include = []string{name} }
			a, b := aHost(t, with), aHost(t, with)
			for range 5 {
				p, q := aRealQP(t), aRealQP(t)
				use := func(q *realQP) func(*EndpointConfig) {
					return func(c *EndpointConfig) {
						c.QPs = []QP{q}
						c.Prepare = func(*Remote) error { return q.postReceive() }
					}
				}
				x, y := a.start(b, use(p)), b.start(a, use(q))
				x.mustStand(t)
				p.send(t, "from p")
				y.mustStand(t)
				q.send(t, "from q")
				if got, also := p.hear(t), q.hear(t); got != "from q" || also != "from p" {
					t.Errorf("heard %q and %q", got, also)
				}
				x.finalize(t)
				y.mustFail(t, Lost, driver.ErrClosed)
				y.finalize(t)
			}
		})
	}
}

// A GID that nobody has: RTR takes its time and fails, and meanwhile others connect.
func TestUnreachableGID(t *testing.T) {
	onDevice(t)
	with := func(c *Config, _ *Port) { c.Include = []string{"oob"} }
	a := aHost(t, with)
	b := aHost(t, func(c *Config, p *Port) {
		with(c, p)
		p.GID[15] ^= 0x55 // announced, but not its own
	})
	var ends []*testEnd
	for k := range 4 {
		use := func(c *EndpointConfig) { c.QPs = []QP{aRealQP(t)} }
		ends = append(ends, a.start(b, use))
		y := b.start(a, use)
		if k%2 == 0 {
			ends = append(ends, y)
		}
	}
	c := aHost(t, with)
	x, y := a.start(c, nil), c.start(a, nil)
	x.mustStand(t)
	y.mustStand(t)
	failed := 0
	for _, e := range ends {
		e.await(t, Ready)
		if err := e.Err(); err != nil {
			failed++
			if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "RTR") {
				t.Errorf("%v: want %v that names RTR", err, driver.ErrBroken)
			}
		}
	}
	if failed == 0 {
		t.Error("no queue pair failed to find the address")
	}
	for _, e := range ends {
		e.finalize(t)
	}
}

// pipe makes a connection of two rdmaConns.
func pipe(t testing.TB) (dialer, listener conn) {
	t.Helper()
	a, b := aHost(t, nil), aHost(t, nil)
	m, n := a.mods.mods[0].(*rdmaModule), b.mods.mods[0].(*rdmaModule)
	dialed, got := make(chan conn, 1), make(chan conn, 1)
	n.accepted = func(c conn) { got <- c }
	err := m.dial(m.ctx, b.inc, string(n.Blob()), func(c conn) error { dialed <- c; return nil })
	if err != nil {
		t.Fatal(err)
	}
	dialer, listener = <-dialed, <-got
	t.Cleanup(func() {
		dialer.close()
		listener.close()
	})
	return dialer, listener
}

// Frames arrive whole and in order, in both directions at once, however many; a
// reader that stops holds the sender up, and nothing is lost; finish delivers all.
func TestRDMAConnCarriesFrames(t *testing.T) {
	onDevice(t)
	t.Run("frames", rdmaFrames)
	t.Run("deadline", rdmaDeadline)
}

// look tells how a connection is, for messages. It takes completions: the
// connection is of no use any more.
func (c *rdmaConn) look() string {
	c.polling.Lock()
	defer c.polling.Unlock()
	s := fmt.Sprintf("sent %d, peer has %d, free %d, taken %d, arrived %d", c.sent, c.peerHas, c.free, c.taken.Load(), len(c.arrived))
	n, err := c.cq.Poll(c.wcs[:])
	s += fmt.Sprintf("; %d completions in the queue (%v):", n, err)
	for k := range c.wcs[:n] {
		wc := &c.wcs[k]
		s += fmt.Sprintf(" [%v %d %d %d %v]", wc.Opcode, wc.ID, wc.ByteLen, wc.Imm(), wc.Err())
	}
	a, err := c.qp.Query()
	return s + fmt.Sprintf("; queue pair %+v (%v)", a, err)
}

// isHeldUp waits until all that may be sent to the peer is.
func (c *rdmaConn) isHeldUp() bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); runtime.Gosched() {
		c.polling.Lock()
		full := c.sent-c.peerHas == window
		c.polling.Unlock()
		if full {
			return true
		}
	}
	return false
}

func testFrame(k int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%04d", k), 1+k%(maxFrame/4)) }

// exchange sends n frames over c and, like a link, receives until the end. It
// says on all when n have arrived, or that they will not.
// In between it stops until the peer is held up.
func exchange(t *testing.T, tasks *sync.WaitGroup, c, peer conn, n int, received *int, all chan<- error) {
	tasks.Go(func() {
		for k := range n {
			if err := c.send(testFrame(k)); err != nil {
				t.Errorf("send %d: %v", k, err)
				return
			}
		}
	})
	tasks.Go(func() {
		for k := 0; ; k++ {
			if k == 100 && !peer.(*rdmaConn).isHeldUp() {
				t.Error("a peer sends although nobody reads")
			}
			b, err := c.receive()
			if err != nil {
				if k < n {
					all <- fmt.Errorf("receive %d: %w", k, err)
				}
				return
			}
			if !bytes.Equal(b, testFrame(k%n)) {
				t.Errorf("receive %d: %d bytes", k, len(b))
			}
			if *received = k + 1; k+1 == n {
				all <- nil
			}
		}
	})
}

func rdmaFrames(t *testing.T) {
	const n = 500
	var tasks sync.WaitGroup
	t.Cleanup(tasks.Wait) // after pipe's, which ends them
	x, y := pipe(t)
	var received [2]int
	all := make(chan error, 2)
	exchange(t, &tasks, x, y, n, &received[0], all)
	exchange(t, &tasks, y, x, n, &received[1], all)
	limit := time.After(60 * time.Second)
	for range 2 {
		err := error(nil)
		select {
		case err = <-all:
		case <-limit:
			err = errors.New("frames are missing after 60 s")
		}
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, x.(*rdmaConn).look(), y.(*rdmaConn).look())
		}
	}
	for k := range 20 {
		if err := x.send(testFrame(k)); err != nil {
			t.Fatal(err)
		}
	}
	x.finish()
	tasks.Wait()
	if want := [2]int{n, n + 20}; received != want {
		t.Errorf("received %v frames, want %v", received, want)
	}
}

func rdmaDeadline(t *testing.T) {
	x, y := pipe(t)
	x.expire(time.Now().Add(50 * time.Millisecond))
	if _, err := x.receive(); err == nil {
		t.Error("receive beyond the deadline")
	}
	x.expire(time.Time{})
	if err := y.send([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if b, err := x.receive(); err != nil || string(b) != "late" {
		t.Errorf("receive after the deadline was lifted: %q, %v", b, err)
	}
	y.expire(time.Now().Add(200 * time.Millisecond))
	sent := 0
	for ; y.send([]byte("x")) == nil; sent++ {
	}
	if sent > 2*window {
		t.Errorf("%d frames went to a peer that does not read, limit is about %d", sent, window)
	}
}

// A peer cannot have taken less than it said before, nor more than was sent; the counts may wrap.
func TestPeerTakesWhatWasSent(t *testing.T) {
	for _, base := range []uint32{0, 1000, ^uint32(0) - 4} {
		for _, tt := range []struct {
			taken int32
			ok    bool
		}{{0, true}, {1, true}, {10, true}, {11, false}, {-1, false}, {-window - 1, false}} {
			c := &rdmaConn{peerHas: base, sent: base + 10}
			want := base
			if tt.ok {
				want += uint32(tt.taken)
			}
			if err := c.hear(base + uint32(tt.taken)); errors.Is(err, errMalformed) == tt.ok || c.peerHas != want {
				t.Errorf("%+d of 10 from %d: %v, then %d; want %d", tt.taken, base, err, c.peerHas, want)
			}
		}
	}
}

// ask sends a connect request with that private data to a host, and returns how
// the connection manager answers.
func ask(t *testing.T, h *host, data []byte) *ibv.CMEvent {
	t.Helper()
	stranger := aHost(t, nil).mods.mods[0].(*rdmaModule)
	m := h.mods.mods[0].(*rdmaModule)
	at, _, err := parseRDMABlob(m.Blob())
	if err != nil {
		t.Fatal(err)
	}
	c := stranger.adopt(must[*ibv.CMID](t)(stranger.events.NewID()))
	defer c.close()
	if err := c.id.ResolveAddr(netip.AddrPortFrom(stranger.addr, 0), at, stranger.patience()); err != nil {
		t.Fatal(err)
	}
	must[*ibv.CMEvent](t)(c.await(t.Context(), ibv.CMAddrResolved))
	if err := c.id.ResolveRoute(stranger.patience()); err != nil {
		t.Fatal(err)
	}
	must[*ibv.CMEvent](t)(c.await(t.Context(), ibv.CMRouteResolved))
	if err := c.equip(); err != nil {
		t.Fatal(err)
	}
	if err := c.id.Connect(c.qp, c.param(data)); err != nil {
		t.Fatal(err)
	}
	ev, err := c.await(t.Context(), ibv.CMConnectResponse)
	if ev == nil {
		t.Fatal(err)
	}
	return ev
}

// Connect requests without a good ticket are rejected before anything is made for them, with the reason if the
// ticket is one at all; who has replayed a good one gets no link.
func TestRDMAStrangers(t *testing.T) {
	onDevice(t)
	h := aHost(t, nil)
	m := h.mods.mods[0].(*rdmaModule)
	good := func() *ticket {
		k := &ticket{from: 1 << 60, to: h.inc}
		k.mac = k.sign(m.env.Secret, m.nonce)
		return k
	}
	version := good().append(nil)
	version[4]++
	stale := good()
	stale.to++
	stale.mac = stale.sign(m.env.Secret, m.nonce)
	guess := good()
	guess.mac = guess.sign([]byte("a guess"), m.nonce)
	other := good()
	other.mac = other.sign(m.env.Secret, [blobNonceBytes]byte{})
	for _, tt := range []struct {
		name string
		data []byte
		want refusal
	}{
		{"nothing", nil, 0},
		{"garbage", bytes.Repeat([]byte("x"), ticketBytes), 0},
		{"other version", version, refuseVersion},
		{"other incarnation", stale.append(nil), refuseStale},
		{"other secret", guess.append(nil), refuseSecret},
		{"blob not read", other.append(nil), refuseSecret},
	} {
		ev := ask(t, h, tt.data)
		want := error(nil)
		if tt.want != 0 {
			want = refuseError(tt.want)
		}
		if got := rejection(ev, nil); ev.Type != ibv.CMRejected || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v with %v, want a reject with %v", tt.name, ev.Type, got, want)
		}
	}
	if ev := ask(t, h, good().append(nil)); ev.Type != ibv.CMConnectResponse {
		t.Errorf("a ticket that was seen: %v", ev.Type)
	}
	if s := h.mods.Stats(); s.Refused != 4 || s.BadMessages != 2 || s.Links != 0 {
		t.Errorf("counters %+v", s)
	}
	mustStillConnect(t, h)
}
