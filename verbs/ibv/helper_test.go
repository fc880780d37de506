//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/bywash/bywash/verbs/ibv"
)

// allAccess is what most tests let the peer do.
const allAccess = ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead | ibv.AccessRemoteAtomic

// maxWait is how long a completion may take: long under emulation.
const maxWait = 30 * time.Second

// must fails the test, naming what failed, unless err is nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ok is the value of a call that must not fail.
func ok[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// deviceName is BYWASH_RDMA_DEV, or the first device with an active port.
func deviceName(t testing.TB) string {
	t.Helper()
	if err := ibv.Available(); err != nil {
		t.Skip(err)
	}
	devs, err := ibv.Devices()
	if errors.Is(err, syscall.ENOSYS) {
		t.Skipf("needs an RDMA device: %v", err)
	}
	must(t, err)
	want := os.Getenv("BYWASH_RDMA_DEV")
	for _, d := range devs {
		if want != "" && d.Name != want {
			continue
		}
		c, err := ibv.Open(d.Name)
		must(t, err)
		port, err := c.QueryPort(1)
		must(t, err)
		must(t, c.Close())
		if port.State == ibv.PortActive {
			return d.Name
		}
	}
	if want != "" {
		t.Fatalf("BYWASH_RDMA_DEV=%s: no such device with an active port; there are %v", want, devs)
	}
	t.Skip("needs an RDMA device with an active port (Soft-RoCE will do)")
	return ""
}

// open opens the device of the test and closes it, with everything that closes itself, at the end.
func open(t testing.TB) *ibv.Context {
	t.Helper()
	c, err := ibv.Open(deviceName(t))
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("after the test: %v", err)
		}
	})
	return c
}

// closing closes o at the end of the test.
func closing[T interface{ Close() error }](t testing.TB) func(o T, err error) T {
	return func(o T, err error) T {
		t.Helper()
		must(t, err)
		t.Cleanup(func() {
			if err := o.Close(); err != nil {
				t.Errorf("after the test: %v", err)
			}
		})
		return o
	}
}

// bestGID prefers routable addresses, as the driver does: never by index.
func bestGID(t testing.TB, c *ibv.Context) ibv.GIDEntry {
	t.Helper()
	gids, err := c.GIDs(1)
	must(t, err)
	if len(gids) == 0 {
		t.Fatal("the port has no GID")
	}
	rank := func(e ibv.GIDEntry) int {
		r := 0
		if e.Type == ibv.GIDRoCEv2 {
			r += 2
		}
		if strings.HasPrefix(e.GID.String(), "::ffff:") {
			r++
		}
		return -r
	}
	slices.SortStableFunc(gids, func(a, b ibv.GIDEntry) int { return rank(a) - rank(b) })
	return gids[0]
}

// end is one side of a connection.
type end struct {
	t    testing.TB
	c    *ibv.Context
	pd   *ibv.PD
	cq   *ibv.CQ
	ch   *ibv.CompChannel
	srq  *ibv.SRQ
	qp   *ibv.QP
	mr   *ibv.MR
	mem  []byte
	s    *ibv.SendChain
	r    *ibv.RecvChain
	wcs  [16]ibv.WC
	init ibv.InitAttr
}

// pairOptions change what a pair is made of.
type pairOptions struct {
	qp          ibv.QPInit
	access      ibv.Access // of the queue pairs
	mrAccess    ibv.Access
	size        int // bytes of each memory region
	srq         int // receives of a shared receive queue
	channel     bool
	rdAtomic    int // -1 is none
	minRNRTimer int
	rnrRetry    int
}

// newEnd makes a queue pair in RESET with all it needs.
func newEnd(t testing.TB, c *ibv.Context, o pairOptions) *end {
	t.Helper()
	e := &end{t: t, c: c}
	e.pd = closing[*ibv.PD](t)(c.AllocPD())
	if o.channel {
		e.ch = closing[*ibv.CompChannel](t)(c.CreateCompChannel())
	}
	e.cq = closing[*ibv.CQ](t)(c.CreateCQ(256, e.ch, 0))
	e.mem = make([]byte, o.size)
	e.mr = closing[*ibv.MR](t)(e.pd.RegMR(e.mem, o.mrAccess))
	init := o.qp
	init.SendCQ, init.RecvCQ = e.cq, e.cq
	if o.srq > 0 {
		e.srq = closing[*ibv.SRQ](t)(e.pd.CreateSRQ(o.srq, 2))
		init.SRQ, init.MaxRecvWR, init.MaxRecvSGE = e.srq, 0, 0
	}
	e.qp = closing[*ibv.QP](t)(e.pd.CreateQP(init))
	e.s = ok[*ibv.SendChain](t)(ibv.NewSendChain(64, 2, 64))
	e.r = ok[*ibv.RecvChain](t)(ibv.NewRecvChain(64, 2))
	e.init = ibv.InitAttr{Port: 1, Access: o.access}
	return e
}

// defaults fills in what a test leaves open.
func (o *pairOptions) defaults() {
	if o.qp.MaxSendWR == 0 {
		o.qp.MaxSendWR = 32
	}
	if o.qp.MaxRecvWR == 0 {
		o.qp.MaxRecvWR = 32
	}
	if o.qp.MaxSendSGE == 0 {
		o.qp.MaxSendSGE, o.qp.MaxRecvSGE, o.qp.MaxInline = 2, 2, 64
	}
	if o.access == 0 {
		o.access = allAccess
	}
	if o.mrAccess == 0 {
		o.mrAccess = allAccess
	}
	if o.size == 0 {
		o.size = 1 << 16
	}
	if o.rdAtomic == 0 {
		o.rdAtomic = 4
	}
	if o.minRNRTimer == 0 {
		o.minRNRTimer = 12
	}
	if o.rnrRetry == 0 {
		o.rnrRetry = 6
	}
}

// newPair makes two connected ends on one device, through its own port.
func newPair(t testing.TB, o pairOptions) (a, b *end) {
	t.Helper()
	o.defaults()
	c := open(t)
	a, b = newEnd(t, c, o), newEnd(t, c, o)
	connect(t, a, b, o)
	connect(t, b, a, o)
	return a, b
}

// connect takes e all the way to RTS towards peer.
func connect(t testing.TB, e, peer *end, o pairOptions) {
	t.Helper()
	must(t, e.qp.ToInit(e.init))
	must(t, e.qp.ToRTR(e.rtr(peer, o)))
	must(t, e.qp.ToRTS(e.rts(o)))
}

func (e *end) rtr(peer *end, o pairOptions) ibv.RTRAttr {
	e.t.Helper()
	gid := bestGID(e.t, e.c)
	port, err := e.c.QueryPort(1)
	must(e.t, err)
	return ibv.RTRAttr{
		Path: ibv.Path{DGID: gid.GID, SGIDIndex: gid.Index, DLID: port.LID},
		MTU:  port.ActiveMTU, DestQPN: peer.qp.Num(), RQPSN: psn(peer), MinRNRTimer: o.minRNRTimer,
		MaxDestRdAtomic: max(o.rdAtomic, 0),
	}
}

func (e *end) rts(o pairOptions) ibv.RTSAttr {
	return ibv.RTSAttr{SQPSN: psn(e), Timeout: 14, RetryCount: 6, RNRRetry: o.rnrRetry, MaxRdAtomic: max(o.rdAtomic, 0)}
}

// psn differs between the ends, so that mixing them up shows.
func psn(e *end) uint32 { return e.qp.Num()*7919&0xffffff | 1 }

// recv posts a receive of n bytes at offset at.
func (e *end) recv(id uint64, at, n int) {
	e.t.Helper()
	w := e.r.Next()
	w.ID = id
	if n > 0 {
		w.AddSGE(e.mr.Addr()+uint64(at), uint32(n), e.mr.LKey())
	}
	var err error
	if e.srq != nil {
		_, err = e.srq.PostRecv(e.r)
	} else {
		_, err = e.qp.PostRecv(e.r)
	}
	must(e.t, err)
}

// next is a signaled send request of n bytes at offset at of the region, still without an operation.
func (e *end) next(id uint64, at, n int) *ibv.SendWR {
	e.t.Helper()
	w := e.s.Next()
	w.ID, w.Flags = id, ibv.SendSignaled
	if n > 0 {
		w.AddSGE(e.mr.Addr()+uint64(at), uint32(n), e.mr.LKey())
	}
	return w
}

func (e *end) post() {
	e.t.Helper()
	_, err := e.qp.PostSend(e.s)
	must(e.t, err)
}

// completion polls until one completion is there.
func (e *end) completion() ibv.WC {
	e.t.Helper()
	deadline := time.Now().Add(maxWait)
	for time.Now().Before(deadline) {
		n, err := e.cq.Poll(e.wcs[:1])
		must(e.t, err)
		if n == 1 {
			return e.wcs[0]
		}
		time.Sleep(50 * time.Microsecond)
	}
	e.t.Fatalf("no completion within %v", maxWait)
	return ibv.WC{}
}

// done wants the next completion to be a success of request id.
func (e *end) done(id uint64, op ibv.WCOpcode) ibv.WC {
	e.t.Helper()
	wc := e.completion()
	if wc.Err() != nil || wc.ID != id || wc.Opcode != op {
		e.t.Fatalf("completion %d, %v: %v; want %d, %v", wc.ID, wc.Opcode, wc.Err(), id, op)
	}
	if wc.QPNum != e.qp.Num() {
		e.t.Fatalf("completion of queue pair %#x, want %#x", wc.QPNum, e.qp.Num())
	}
	return wc
}

// failed wants the next completion to be a failure of request id with one of these statuses.
func (e *end) failed(id uint64, want ...ibv.WCStatus) ibv.WC {
	e.t.Helper()
	wc := e.completion()
	if wc.ID != id || !slices.Contains(want, wc.Status) {
		e.t.Fatalf("completion %d: %v; want %d: %v", wc.ID, wc.Status, id, want)
	}
	return wc
}

// quiet wants no completion for a while.
func (e *end) quiet() {
	e.t.Helper()
	time.Sleep(20 * time.Millisecond)
	n, err := e.cq.Poll(e.wcs[:])
	must(e.t, err)
	if n > 0 {
		e.t.Fatalf("unexpected completion %+v: %v", e.wcs[0], e.wcs[0].Err())
	}
}

// word is the 8 aligned bytes at offset at of the region.
func (e *end) word(at int) *uint64 { return (*uint64)(unsafe.Pointer(&e.mem[at])) }

// fill writes a pattern that depends on seed.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7) + byte(i>>8)
	}
}

// wantErrno checks an error's errno and that its words contain all of want.
func wantErrno(t testing.TB, err error, errno syscall.Errno, want ...string) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("error %v; want %v", err, errno)
		return
	}
	var e *ibv.Error
	if !errors.As(err, &e) || e.Verb == "" {
		t.Errorf("error %v is no *ibv.Error with a verb", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	t.Cleanup(cancel)
	return ctx
}
