//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestSendArrivesInOrderWithItsBytes(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	for i, n := range []int{1, 8, 100, 1024, 1025, 4096, 60000} {
		fill(a.mem[:n], byte(i))
		clear(b.mem)
		b.recv(uint64(100+i), 0, len(b.mem))
		a.next(uint64(i), 0, n).Send()
		a.post()
		a.done(uint64(i), ibv.WCSend)
		wc := b.done(uint64(100+i), ibv.WCRecv)
		if int(wc.ByteLen) != n || !bytes.Equal(a.mem[:n], b.mem[:n]) {
			t.Errorf("%d bytes: %d arrived, equal %v", n, wc.ByteLen, bytes.Equal(a.mem[:n], b.mem[:n]))
		}
	}
}

func TestImmediateDataKeepsItsValue(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	const imm = 0x01020304
	for _, write := range []bool{false, true} {
		t.Run(fmt.Sprintf("write=%v", write), func(t *testing.T) {
			b.recv(1, 0, 64)
			w := a.next(2, 0, 8)
			want := ibv.WCRecv
			if write {
				w.WriteImm(b.mr.Addr()+128, b.mr.RKey(), imm)
				want = ibv.WCRecvWriteImm
			} else {
				w.SendImm(imm)
			}
			a.post()
			a.completion()
			wc := b.done(1, want)
			if wc.Imm() != imm || wc.Flags&ibv.WCWithImm == 0 || wc.ByteLen != 8 {
				t.Errorf("immediate %#x, flags %#x, %d bytes; want %#x with WCWithImm, 8 bytes",
					wc.Imm(), wc.Flags, wc.ByteLen, imm)
			}
		})
	}
}

func TestZeroSizeMessagesComplete(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	b.recv(1, 0, 0)
	a.next(2, 0, 0).Send()
	a.post()
	a.done(2, ibv.WCSend)
	if wc := b.done(1, ibv.WCRecv); wc.ByteLen != 0 {
		t.Errorf("%d bytes, want 0", wc.ByteLen)
	}
	a.next(3, 0, 0).Write(b.mr.Addr(), b.mr.RKey())
	a.post()
	a.done(3, ibv.WCWrite)
	a.next(4, 0, 0).Read(b.mr.Addr(), b.mr.RKey())
	a.post()
	a.done(4, ibv.WCRead)
	b.recv(5, 0, 0)
	a.next(6, 0, 0).WriteImm(b.mr.Addr(), b.mr.RKey(), 9)
	a.post()
	a.done(6, ibv.WCWrite)
	if wc := b.done(5, ibv.WCRecvWriteImm); wc.Imm() != 9 {
		t.Errorf("immediate %d, want 9", wc.Imm())
	}
}

func TestWriteAndReadMoveBytesWithoutTheTarget(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	fill(a.mem[:5000], 1)
	a.next(1, 0, 5000).Write(b.mr.Addr()+3, b.mr.RKey())
	a.post()
	a.done(1, ibv.WCWrite)
	if !bytes.Equal(a.mem[:5000], b.mem[3:5003]) {
		t.Error("the write's bytes differ")
	}
	fill(b.mem[10000:20000], 9)
	a.next(2, 30000, 10000).Read(b.mr.Addr()+10000, b.mr.RKey())
	a.post()
	wc := a.done(2, ibv.WCRead)
	if !bytes.Equal(a.mem[30000:40000], b.mem[10000:20000]) || wc.ByteLen != 10000 {
		t.Errorf("the read's %d bytes differ", wc.ByteLen)
	}
	b.quiet()
}

func TestScatterAndGather(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	fill(a.mem[:200], 5)
	w := a.next(1, 0, 30)
	w.AddSGE(a.mr.Addr()+100, 50, a.mr.LKey())
	w.Send()
	r := b.r.Next()
	r.ID = 2
	r.AddSGE(b.mr.Addr()+1000, 7, b.mr.LKey())
	r.AddSGE(b.mr.Addr()+2000, 100, b.mr.LKey())
	_, err := b.qp.PostRecv(b.r)
	must(t, err)
	a.post()
	a.done(1, ibv.WCSend)
	if wc := b.done(2, ibv.WCRecv); wc.ByteLen != 80 {
		t.Errorf("%d bytes, want 80", wc.ByteLen)
	}
	got := append(bytes.Clone(b.mem[1000:1007]), b.mem[2000:2073]...)
	if want := append(bytes.Clone(a.mem[:30]), a.mem[100:150]...); !bytes.Equal(got, want) {
		t.Error("scattered bytes differ")
	}
}

func TestInlineDataCanBeReusedAtOnce(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	if a.qp.Caps().MaxInline < 64 {
		t.Fatalf("inline room %d, asked for 64", a.qp.Caps().MaxInline)
	}
	b.recv(1, 0, 64)
	b.recv(2, 64, 64)
	data := []byte("head, and ")
	w := a.s.Next()
	w.ID = 3
	w.Inline(data)
	clear(data)
	w.Inline([]byte("tail"))
	w.Send()
	w = a.s.Next()
	w.ID, w.Flags = 4, ibv.SendSignaled
	w.Inline([]byte("second"))
	w.Write(b.mr.Addr()+200, b.mr.RKey())
	a.post()
	a.done(4, ibv.WCWrite)
	if wc := b.done(1, ibv.WCRecv); string(b.mem[:wc.ByteLen]) != "head, and tail" {
		t.Errorf("got %q", b.mem[:wc.ByteLen])
	}
	if string(b.mem[200:206]) != "second" {
		t.Errorf("written: %q", b.mem[200:206])
	}
}

func TestAtomicsChangeMemoryOnceAndReturnTheOldValue(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	if a.c.Query().Atomic == ibv.AtomicNone {
		t.Skip("the device has no atomics")
	}
	target := func() *uint64 { return b.word(64) }
	for _, tc := range []struct {
		name                string
		add                 bool
		before, x, y, after uint64
	}{
		{"compare and swap, equal", false, 7, 7, 1 << 60, 1 << 60},
		{"compare and swap, not equal", false, 7, 8, 99, 7},
		{"fetch and add", true, 1<<63 + 5, 1<<63 + 1, 0, 6},
		{"fetch and add of nothing", true, 5, 0, 0, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			*target() = tc.before
			*a.word(8) = 0xdead
			w := a.next(1, 8, 8)
			op := ibv.WCCompareSwap
			if tc.add {
				w.FetchAdd(b.mr.Addr()+64, b.mr.RKey(), tc.x)
				op = ibv.WCFetchAdd
			} else {
				w.CompareSwap(b.mr.Addr()+64, b.mr.RKey(), tc.x, tc.y)
			}
			a.post()
			a.done(1, op)
			if *a.word(8) != tc.before || *target() != tc.after {
				t.Errorf("fetched %#x, memory %#x; want %#x, %#x", *a.word(8), *target(), tc.before, tc.after)
			}
		})
	}
}

func TestManyReadsAndAtomicsKeepToRdAtomic(t *testing.T) {
	for _, depth := range []int{1, 4, 16} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			a, b := newPair(t, pairOptions{rdAtomic: depth})
			const n = 24
			for i := range n {
				a.next(uint64(i), 8*i, 8).FetchAdd(b.mr.Addr(), b.mr.RKey(), 1)
			}
			a.post()
			for i := range n {
				a.done(uint64(i), ibv.WCFetchAdd)
				if *a.word(8 * i) != uint64(i) {
					t.Fatalf("atomic %d fetched %d", i, *a.word(8 * i))
				}
			}
			if *b.word(0) != n {
				t.Errorf("memory %d, want %d", *b.word(0), n)
			}
		})
	}
}

func TestFencedSendSeesTheReadsBytes(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	fill(b.mem[:4096], 3)
	b.recv(9, 8192, 4096)
	w := a.next(1, 0, 4096)
	w.Read(b.mr.Addr(), b.mr.RKey())
	w = a.next(2, 0, 4096)
	w.Flags |= ibv.SendFence
	w.Send()
	a.post()
	a.done(1, ibv.WCRead)
	a.done(2, ibv.WCSend)
	b.done(9, ibv.WCRecv)
	if !bytes.Equal(b.mem[:4096], b.mem[8192:12288]) {
		t.Error("the send went before the read's bytes were there")
	}
}

func TestUnsignaledRequestsCompleteSilently(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	for i := range 9 {
		w := a.next(uint64(i), 0, 8)
		w.Flags = 0
		w.Write(b.mr.Addr(), b.mr.RKey())
	}
	a.next(77, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
	a.post()
	a.done(77, ibv.WCWrite)
	a.quiet()
}

func TestProgressPostsBothWaysAndPollsInOneCall(t *testing.T) {
	a, b := newPair(t, pairOptions{qp: ibv.QPInit{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 1, MaxRecvSGE: 1, Tag: 42}})
	wa := ibv.Work{SendQP: a.qp, Sends: a.s, RecvQP: a.qp, Recvs: a.r}
	wb := ibv.Work{SendQP: b.qp, Sends: b.s, RecvQP: b.qp, Recvs: b.r}
	step := func(e *end, w *ibv.Work) []ibv.WC {
		n, err := e.cq.Progress(w, e.wcs[:])
		must(t, err)
		return e.wcs[:n]
	}
	r := b.r.Next()
	r.ID = 1
	r.AddSGE(b.mr.Addr(), 64, b.mr.LKey())
	step(b, &wb)
	a.next(2, 0, 8).Send()
	r = a.r.Next()
	r.ID = 3
	r.AddSGE(a.mr.Addr()+64, 64, a.mr.LKey())
	for got := step(a, &wa); ; got = step(a, &wa) {
		if len(got) == 1 {
			if got[0].Err() != nil || got[0].ID != 2 || got[0].Tag != 42 {
				t.Fatalf("completion %+v: %v", got[0], got[0].Err())
			}
			break
		}
	}
	if a.s.Len() != 0 || a.r.Len() != 0 {
		t.Errorf("%d sends and %d receives still in the chains", a.s.Len(), a.r.Len())
	}
	b.done(1, ibv.WCRecv)
	b.next(4, 0, 8).Send()
	step(b, &wb)
	if wc := a.done(3, ibv.WCRecv); wc.Tag != 42 {
		t.Errorf("tag %d, want 42", wc.Tag)
	}
}
