//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

// The five ways an atomic is refused: the queue pair, the region, the address, the local and the remote key.
func TestAtomicIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    pairOptions
		off  uint64
		lkey uint32
		rkey uint32
		want []ibv.WCStatus // nil: refused by the post
	}{
		{name: "by the queue pair's access", o: pairOptions{access: ibv.AccessLocalWrite},
			want: []ibv.WCStatus{ibv.WCRemoteInvalid, ibv.WCRemoteAccess}},
		{name: "by the region's access", o: pairOptions{mrAccess: ibv.AccessLocalWrite},
			want: []ibv.WCStatus{ibv.WCRemoteAccess}},
		{name: "at a misaligned address", off: 1},
		{name: "by the local key", lkey: 1, want: []ibv.WCStatus{ibv.WCLocalProtection, ibv.WCLocalQPOperation}},
		{name: "by the remote key", rkey: 1, want: []ibv.WCStatus{ibv.WCRemoteAccess}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := newPair(t, tc.o)
			*b.word(0) = 41
			w := a.s.Next()
			w.ID, w.Flags = 7, ibv.SendSignaled
			w.AddSGE(a.mr.Addr()+8, 8, a.mr.LKey()+tc.lkey)
			w.FetchAdd(b.mr.Addr()+tc.off, b.mr.RKey()+tc.rkey, 1)
			if tc.want == nil {
				_, err := a.qp.PostSend(a.s)
				wantErrno(t, err, syscall.EINVAL, "multiples of 8")
			} else {
				a.post()
				a.failed(7, tc.want...)
			}
			if *b.word(0) != 41 && tc.name != "by the local key" {
				t.Errorf("memory changed to %d", *b.word(0))
			}
		})
	}
}

// The device refuses access that the key does not allow, or outside of the region: no byte changes, and the connection
// ends.
func TestRemoteAccessIsRefused(t *testing.T) {
	const size = 1 << 12
	for _, tc := range []struct {
		name     string
		mrAccess ibv.Access
		op       func(w *ibv.SendWR, addr uint64, rkey uint32)
	}{
		{"write without the right", ibv.AccessLocalWrite | ibv.AccessRemoteRead, (*ibv.SendWR).Write},
		{"read without the right", ibv.AccessLocalWrite | ibv.AccessRemoteWrite, (*ibv.SendWR).Read},
		{"write beyond the end", allAccess,
			func(w *ibv.SendWR, addr uint64, rkey uint32) { w.Write(addr+size-7, rkey) }},
		{"read before the start", allAccess,
			func(w *ibv.SendWR, addr uint64, rkey uint32) { w.Read(addr-1, rkey) }},
		{"write with a wrong key", allAccess,
			func(w *ibv.SendWR, addr uint64, rkey uint32) { w.Write(addr, rkey+0x100) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := newPair(t, pairOptions{size: size, mrAccess: tc.mrAccess})
			fill(a.mem, 1)
			tc.op(a.next(3, 0, 8), b.mr.Addr(), b.mr.RKey())
			a.post()
			a.failed(3, ibv.WCRemoteAccess)
			for i, v := range b.mem {
				if v != 0 {
					t.Fatalf("byte %d changed", i)
				}
			}
		})
	}
}

func TestShortReceiveFailsOnBothSides(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	b.recv(1, 0, 4)
	a.next(2, 0, 100).Send()
	a.post()
	a.failed(2, ibv.WCRemoteInvalid, ibv.WCRemoteOperation)
	b.failed(1, ibv.WCLocalLength, ibv.WCLocalQPOperation)
}

func TestWrongLocalKeyFails(t *testing.T) {
	a, _ := newPair(t, pairOptions{})
	w := a.s.Next()
	w.ID, w.Flags = 5, ibv.SendSignaled
	w.AddSGE(a.mr.Addr(), 8, a.mr.LKey()+0x100)
	w.Send()
	a.post()
	// Soft-RoCE of Linux 6.12 reports that it was flushed.
	wc := a.failed(5, ibv.WCLocalProtection, ibv.WCLocalQPOperation, ibv.WCFlushed)
	if wc.Err() == nil {
		t.Error("a failed completion has no error")
	}
}

// A send for which the peer has posted no receive waits at its own end, then fails.
func TestReceiverNotReadyEndsAfterFiniteRetries(t *testing.T) {
	a, _ := newPair(t, pairOptions{rnrRetry: 1, minRNRTimer: 1})
	a.next(5, 0, 8).Send()
	a.post()
	a.failed(5, ibv.WCRNRRetryExceeded)
}

func TestPostRefusesWhatTheDeviceWouldSilentlyTake(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	port := ok[ibv.PortAttr](t)(a.c.QueryPort(1))
	for _, tc := range []struct {
		name string
		fill func(w *ibv.SendWR)
		want string
	}{
		{"too long a message", func(w *ibv.SendWR) {
			w.AddSGE(a.mr.Addr(), port.MaxMessage, a.mr.LKey())
			w.AddSGE(a.mr.Addr(), 1, a.mr.LKey())
			w.Send()
		}, "longer than the port's maximum"},
		{"more entries than the chain has", func(w *ibv.SendWR) {
			for range 3 {
				w.AddSGE(a.mr.Addr(), 1, a.mr.LKey())
			}
			w.Send()
		}, "chain has room"},
		{"more inline bytes than the chain has", func(w *ibv.SendWR) {
			w.Inline(make([]byte, 40))
			w.Inline(make([]byte, 40))
			w.Send()
		}, "chain has room"},
		{"more inline bytes than the queue pair has", func(w *ibv.SendWR) {
			w.AddSGE(a.mr.Addr(), uint32(a.qp.Caps().MaxInline)+1, a.mr.LKey())
			w.Flags |= ibv.SendInline
			w.Send()
		}, "inline bytes"},
		{"an inline read", func(w *ibv.SendWR) {
			w.Inline([]byte("x"))
			w.Read(b.mr.Addr(), b.mr.RKey())
		}, "only sends and writes"},
		{"an atomic of 4 bytes", func(w *ibv.SendWR) {
			w.AddSGE(a.mr.Addr(), 4, a.mr.LKey())
			w.FetchAdd(b.mr.Addr(), b.mr.RKey(), 1)
		}, "8 bytes"},
		{"an atomic into a misaligned word", func(w *ibv.SendWR) {
			w.AddSGE(a.mr.Addr()+4, 8, a.mr.LKey())
			w.CompareSwap(b.mr.Addr(), b.mr.RKey(), 1, 2)
		}, "multiples of 8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			good := a.next(1, 0, 8)
			good.Write(b.mr.Addr(), b.mr.RKey())
			tc.fill(a.s.Next())
			n, err := a.qp.PostSend(a.s)
			if n != 0 {
				t.Errorf("%d posted, want none", n)
			}
			wantErrno(t, err, syscall.EINVAL, "request 1", tc.want, a.c.Name())
			a.s.Reset()
			a.quiet()
		})
	}
}

func TestReadsNeedRdAtomic(t *testing.T) {
	a, b := newPair(t, pairOptions{rdAtomic: -1})
	a.next(1, 0, 8).Read(b.mr.Addr(), b.mr.RKey())
	_, err := a.qp.PostSend(a.s)
	wantErrno(t, err, syscall.EINVAL, "MaxRdAtomic")
}

// A queue takes no more requests than it was made for, those included that complete without a completion.
func TestOutstandingRequestsAreCounted(t *testing.T) {
	// Not a power of two: devices round up, and would take more.
	o := pairOptions{qp: ibv.QPInit{MaxSendWR: 10, MaxRecvWR: 5, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}}
	a, b := newPair(t, o)
	for i := range 5 {
		b.recv(uint64(i), 64*i, 64)
	}
	b.r.Next()
	if n, err := b.qp.PostRecv(b.r); n != 0 {
		t.Errorf("a sixth receive was taken: %v", err)
	} else {
		wantErrno(t, err, syscall.ENOMEM, "full")
	}
	b.r.Reset()

	for round := range 5 { // 10 requests, of which the fifth and tenth complete visibly
		for i := range 10 {
			w := a.next(uint64(i), 0, 8)
			if i%5 != 4 {
				w.Flags = 0
			}
			w.Write(b.mr.Addr()+4096, b.mr.RKey())
		}
		a.post()
		a.next(99, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
		n, err := a.qp.PostSend(a.s)
		if n != 0 {
			t.Fatalf("round %d: an eleventh request was taken", round)
		}
		wantErrno(t, err, syscall.ENOMEM, "full")
		a.s.Reset()
		a.done(4, ibv.WCWrite)
		for range 6 {
			a.next(50, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
		}
		if n, _ := a.qp.PostSend(a.s); n != 0 {
			t.Fatalf("round %d: 6 were taken where 5 fit", round)
		}
		a.s.Reset()
		a.done(9, ibv.WCWrite)
	}

	a.next(1, 0, 8).Send()
	a.post()
	a.done(1, ibv.WCSend)
	b.done(0, ibv.WCRecv)
	b.recv(0, 0, 64) // polled, so there is room again
}

func TestFlushedRequestsFreeTheQueues(t *testing.T) {
	o := pairOptions{qp: ibv.QPInit{MaxSendWR: 6, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	a, b := newPair(t, o)
	for i := range 4 {
		a.recv(uint64(100+i), 0, 8)
	}
	must(t, a.qp.ToErr())
	for i := range 6 {
		w := a.next(uint64(i), 0, 8)
		if i != 5 {
			w.Flags = 0 // failures are seen nevertheless
		}
		w.Write(b.mr.Addr(), b.mr.RKey())
	}
	a.post()
	seen := map[uint64]bool{}
	for range 10 {
		wc := a.completion()
		if wc.Status != ibv.WCFlushed || seen[wc.ID] {
			t.Fatalf("request %d: %v", wc.ID, wc.Status)
		}
		seen[wc.ID] = true
	}
	for i := range 6 { // all polled, so there is room for as many again
		a.next(uint64(i), 0, 8).Write(b.mr.Addr(), b.mr.RKey())
	}
	a.post()
	must(t, a.qp.ToReset())
	must(t, b.qp.ToErr())
	must(t, b.qp.ToReset())
	connect(t, a, b, withDefaults(o))
	connect(t, b, a, withDefaults(o))
	for i := range 4 {
		a.recv(uint64(100+i), 0, 8)
	}
	b.next(1, 0, 8).Send()
	b.post()
	b.done(1, ibv.WCSend)
	for {
		if wc := a.completion(); wc.Status == ibv.WCSuccess {
			break
		}
	}
}

func withDefaults(o pairOptions) pairOptions { o.defaults(); return o }

func TestUseAfterCloseIsAnError(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	must(t, a.qp.Close())
	a.s.Next().Write(b.mr.Addr(), b.mr.RKey())
	a.r.Next()
	_, e1 := a.qp.PostSend(a.s)
	_, e2 := a.qp.PostRecv(a.r)
	_, e3 := a.qp.Query()
	e4 := a.qp.ToErr()
	must(t, a.cq.Close())
	_, e5 := a.cq.Poll(a.wcs[:])
	e6 := a.cq.ReqNotify(false)
	e7 := a.cq.Resize(10)
	_, e8 := a.cq.Progress(&ibv.Work{SendQP: a.qp, Sends: a.s}, a.wcs[:])
	must(t, a.mr.Close())
	must(t, a.pd.Close())
	_, e9 := a.pd.RegMR(make([]byte, 8), 0)
	_, e10 := a.pd.CreateQP(ibv.QPInit{SendCQ: b.cq, RecvCQ: b.cq})
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7, e8, e9, e10} {
		wantErrno(t, err, syscall.EBADF, "closed")
		if !errorsIsClosed(err) {
			t.Errorf("error %d, %v, is not os.ErrClosed", i+1, err)
		}
	}
}

func errorsIsClosed(err error) bool {
	e, is := err.(*ibv.Error)
	return is && e.Is(os.ErrClosed)
}
