//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"context"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestDataPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("sanitizers allocate")
	}
	a, b := newPair(t, pairOptions{channel: true})
	wait := func(e *end, n int) {
		for n > 0 {
			got, err := e.cq.Poll(e.wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			n -= got
		}
	}
	work := ibv.Work{SendQP: a.qp, Sends: a.s, RecvQP: a.qp, Recvs: a.r}
	data := []byte("12345678")
	for name, f := range map[string]func(){
		"write": func() { a.next(1, 0, 8).Write(b.mr.Addr(), b.mr.RKey()); a.post(); wait(a, 1) },
		"inline": func() {
			w := a.next(1, 0, 0)
			w.Inline(data)
			w.Write(b.mr.Addr(), b.mr.RKey())
			a.post()
			wait(a, 1)
		},
		"send":       func() { b.recv(1, 0, 8); a.next(1, 0, 8).Send(); a.post(); wait(a, 1); wait(b, 1) },
		"empty poll": func() { _, _ = a.cq.Poll(a.wcs[:]) },
		"progress": func() {
			a.next(1, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
			n, err := a.cq.Progress(&work, a.wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			wait(a, 1-n)
		},
		"event": func() {
			if err := a.cq.ReqNotify(false); err != nil {
				t.Fatal(err)
			}
			a.next(1, 0, 8).Write(b.mr.Addr(), b.mr.RKey())
			a.post()
			if _, err := a.ch.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			wait(a, 1)
		},
		"full queue": func() {
			for range 33 {
				a.s.Next().Write(b.mr.Addr(), b.mr.RKey())
			}
			if n, err := a.qp.PostSend(a.s); n != 0 || err == nil {
				t.Fatalf("%d posted, %v", n, err)
			}
			a.s.Reset()
		},
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkEmptyPoll(b *testing.B) {
	e := newLone(b, pairOptions{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.cq.Poll(e.wcs[:]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFullPost is the cost of a post without the device: it is refused in C.
func BenchmarkFullPost(b *testing.B) {
	e := newLone(b, pairOptions{qp: ibv.QPInit{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	must(b, e.qp.ToInit(e.init))
	e.recv(1, 0, 8)
	e.r.Next()
	b.ReportAllocs()
	for b.Loop() {
		if n, _ := e.qp.PostRecv(e.r); n != 0 {
			b.Fatal("posted")
		}
	}
}

func benchmarkWrites(b *testing.B, batch int, progress bool) {
	x, y := newPair(b, pairOptions{})
	work := ibv.Work{SendQP: x.qp, Sends: x.s}
	b.ReportAllocs()
	for b.Loop() {
		for range batch {
			x.next(1, 0, 8).Write(y.mr.Addr(), y.mr.RKey())
		}
		left := batch
		if progress {
			n, err := x.cq.Progress(&work, x.wcs[:])
			must(b, err)
			left -= n
		} else {
			x.post()
		}
		for left > 0 {
			n, err := x.cq.Poll(x.wcs[:])
			must(b, err)
			left -= n
		}
	}
}

func BenchmarkWrite(b *testing.B)         { benchmarkWrites(b, 1, false) }
func BenchmarkWriteProgress(b *testing.B) { benchmarkWrites(b, 1, true) }
func BenchmarkWrite16(b *testing.B)       { benchmarkWrites(b, 16, true) }
