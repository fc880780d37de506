//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
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
		Path: ibv.Path{DGID: p.PeerGID, SGIDIndex: int(p.GIDIndex), TrafficClass: p.TrafficClass, DLID: p.PeerLID, SL: p.ServiceLevel},
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

// receive waits for the send's completion and for the message.
func (q *realQP) receive(t testing.TB) string {
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
						c.Prepare = func([]byte) error { return q.postReceive() }
					}
				}
				x, y := a.endpoint(b, use(p)), b.endpoint(a, use(q))
				x.mustConnect(t)
				p.send(t, "from p")
				y.mustConnect(t)
				q.send(t, "from q")
				if got, also := p.receive(t), q.receive(t); got != "from q" || also != "from p" {
					t.Errorf("received %q and %q", got, also)
				}
				x.finalize(t)
				y.mustFail(t, Lost, driver.ErrClosed)
				y.finalize(t)
			}
		})
	}
}

// A GID that no device has: RTR takes its time and fails, and meanwhile others connect.
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
		ends = append(ends, a.endpoint(b, use))
		y := b.endpoint(a, use)
		if k%2 == 0 {
			ends = append(ends, y)
		}
	}
	c := aHost(t, with)
	x, y := a.endpoint(c, nil), c.endpoint(a, nil)
	x.mustConnect(t)
	y.mustConnect(t)
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

// pipes makes a connection of two pipes.
func pipes(t testing.TB) (dialer, listener *pipe) {
	t.Helper()
	a, b := aHost(t, nil), aHost(t, nil)
	m, n := a.rdmacm(), b.rdmacm()
	dialed, got := make(chan stream, 1), make(chan stream, 1)
	n.accepted = func(c stream) { got <- c }
	err := m.dial(m.ctx, b.inc, n.hub.blob, func(c stream) error { dialed <- c; return nil })
	if err != nil {
		t.Fatal(err)
	}
	x, y := <-dialed, <-got
	t.Cleanup(func() {
		x.Close()
		y.Close()
	})
	return x.(*pipe), y.(*pipe)
}

// Bytes arrive in order, in both directions at once, however many; a reader that stops holds the writer up, and
// nothing is lost; CloseWrite delivers everything, and then the end.
func TestPipeCarriesBytes(t *testing.T) {
	onDevice(t)
	t.Run("bytes", pipeBytes)
	t.Run("deadline", pipeDeadline)
}

// isHeldUp waits until all slots for sends are under way.
func (c *pipe) isHeldUp() bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); runtime.Gosched() {
		c.mu.Lock()
		full := len(c.free) == 0
		c.mu.Unlock()
		if full {
			return true
		}
	}
	return false
}

func pipeBytes(t *testing.T) {
	const n = 200 << 10
	text := make([]byte, n)
	for k := range text {
		text[k] = byte(k ^ k>>8)
	}
	x, y := pipes(t)
	deadline := time.Now().Add(60 * time.Second)
	_, _ = x.SetDeadline(deadline), y.SetDeadline(deadline)
	var tasks sync.WaitGroup
	for _, ends := range [][2]*pipe{{x, y}, {y, x}} {
		from, to := ends[0], ends[1]
		tasks.Go(func() {
			if _, err := from.Write(text); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		tasks.Go(func() {
			if !from.isHeldUp() {
				t.Error("a peer goes on writing although no reader reads")
			}
			got := make([]byte, n)
			if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, text) {
				t.Errorf("read: %v, equal: %v", err, bytes.Equal(got, text))
			}
		})
	}
	tasks.Wait()
	if _, err := x.Write(text[:3000]); err != nil {
		t.Fatal(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(y); err != nil || !bytes.Equal(got, text[:3000]) {
		t.Errorf("after CloseWrite: %d bytes, %v; want 3000 and the end", len(got), err)
	}
}

func pipeDeadline(t *testing.T) {
	x, y := pipes(t)
	_ = x.SetDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := x.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read beyond the deadline: %v", err)
	}
	_ = x.SetDeadline(time.Time{})
	if _, err := y.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(x, b); err != nil || string(b) != "late" {
		t.Errorf("read after the deadline was lifted: %q, %v", b, err)
	}
	_ = y.SetDeadline(time.Now().Add(200 * time.Millisecond))
	sent := 0
	for ; ; sent++ {
		if _, err := y.Write([]byte("x")); err != nil {
			break
		}
	}
	_ = x.SetDeadline(time.Now().Add(-time.Second))
	if _, err := x.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline, of bytes that are there: %v", err)
	}
	if sent > recvSlots+sendSlots {
		t.Errorf("%d pieces went to a peer that does not read, limit is %d", sent, recvSlots+sendSlots)
	}
}

// ask sends a connect request with that private data to a host, and returns how
// the connection manager answers.
func ask(t *testing.T, h *host, data []byte) *ibv.CMEvent {
	t.Helper()
	rawConn := aHost(t, nil).rdmacm()
	m := h.rdmacm()
	at, err := parseRDMABlob(m.hub.blob)
	if err != nil {
		t.Fatal(err)
	}
	c := rawConn.adopt(must[*ibv.CMID](t)(rawConn.events.NewID()))
	defer c.Close()
	if err := c.id.ResolveAddr(netip.AddrPortFrom(rawConn.addr, 0), at, rawConn.stepTime()); err != nil {
		t.Fatal(err)
	}
	must[*ibv.CMEvent](t)(c.await(t.Context(), ibv.CMAddrResolved))
	if err := c.id.ResolveRoute(rawConn.stepTime()); err != nil {
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

// Requests without a valid ticket are rejected before any resource is allocated, with the reason if the ticket is
// well-formed. The sender of a replayed ticket gets no link.
func TestRDMAUnauthenticated(t *testing.T) {
	onDevice(t)
	h := aHost(t, nil)
	m := h.rdmacm()
	good := func() *ticket {
		k := &ticket{from: 1 << 60, to: h.inc}
		k.mac = m.key.MAC(ticketLabel, k.signed())
		return k
	}
	version := good().append(nil)
	version[4]++
	stale := good()
	stale.to++
	stale.mac = m.key.MAC(ticketLabel, stale.signed())
	guess := good()
	guess.mac = aKey(t, "a guess, long enough").MAC(ticketLabel, guess.signed())
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
	} {
		ev := ask(t, h, tt.data)
		want := error(nil)
		if tt.want != 0 {
			want = tt.want.err()
		}
		if got := rejection(ev, nil); ev.Type != ibv.CMRejected || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v with %v, want a reject with %v", tt.name, ev.Type, got, want)
		}
	}
	if ev := ask(t, h, good().append(nil)); ev.Type != ibv.CMConnectResponse {
		t.Errorf("a ticket that was seen: %v", ev.Type)
	}
	if s := h.m.Stats(); s.Refused != 3 || s.BadMessages != 2 || s.links != 0 {
		t.Errorf("counters %+v", s)
	}
	mustStillConnect(t, h)
}
