//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestSharedReceivesServeEveryQueuePair(t *testing.T) {
	a, b := newPair(t, pairOptions{srq: 7})
	o := withDefaults(pairOptions{})
	third := newEnd(t, a.c, o)
	init := ibv.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SRQ: b.srq, MaxSendWR: 8, Tag: 3}
	h := *b
	h.qp = closing[*ibv.QP](t)(b.pd.CreateQP(init))
	connect(t, &h, third, o)
	connect(t, third, &h, o)

	for round := range 10 { // more than the queue holds: polled receives must free it
		for i := range 4 {
			b.recv(uint64(i), 100*i, 100)
		}
		fill(a.mem[:100], byte(round))
		fill(third.mem[:100], byte(round+100))
		for i, from := range []*end{a, third, third, a} {
			from.next(1, 0, 60+i).Send()
			from.post()
			from.done(1, ibv.WCSend)
			wc := b.completion()
			want := b.qp.Num()
			if from == third {
				want = h.qp.Num()
			}
			at := b.mem[100*wc.ID:]
			if wc.Err() != nil || wc.QPNum != want || int(wc.ByteLen) != 60+i || !bytes.Equal(at[:60+i], from.mem[:60+i]) {
				t.Fatalf("round %d, message %d: %+v, %v", round, i, wc, wc.Err())
			}
		}
	}
	for i := range 7 {
		b.recv(uint64(i), 0, 8)
	}
	b.r.Next()
	n, err := b.srq.PostRecv(b.r)
	if n != 0 {
		t.Error("an eighth receive was taken")
	}
	wantErrno(t, err, syscall.ENOMEM, "full")
	b.r.Reset()
	b.r.Next()
	_, err = b.qp.PostRecv(b.r)
	wantErrno(t, err, syscall.EINVAL, "SRQ")
}

func TestFailedReceivesFreeTheSharedQueue(t *testing.T) {
	o := withDefaults(pairOptions{srq: 4})
	c := open(t)
	b := newEnd(t, c, o)
	plain := withDefaults(pairOptions{})
	for round := range 6 {
		a := newEnd(t, c, plain)
		h := *b
		h.qp = ok[*ibv.QP](t)(b.pd.CreateQP(ibv.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SRQ: b.srq, MaxSendWR: 8}))
		connect(t, &h, a, plain)
		connect(t, a, &h, plain)
		h.recv(uint64(10+round), 0, 4)
		a.next(1, 0, 100).Send()
		a.post()
		a.failed(1, ibv.WCRemoteInvalid, ibv.WCRemoteOperation)
		h.failed(uint64(10+round), ibv.WCLocalLength, ibv.WCLocalQPOperation)
		must(t, h.qp.Close())
	}
	for i := range 4 {
		b.recv(uint64(i), 0, 8)
	}
}

func TestLimitEvent(t *testing.T) {
	a, b := newPair(t, pairOptions{srq: 16})
	for i := range 8 {
		b.recv(uint64(i), 0, 8)
	}
	must(t, b.srq.SetLimit(6))
	for i := range 4 {
		a.next(uint64(i), 0, 8).Send()
		a.post()
		a.done(uint64(i), ibv.WCSend)
		b.done(uint64(i), ibv.WCRecv)
	}
	for {
		ev, err := b.c.GetAsyncEvent(soon(t))
		must(t, err)
		if ev.Type == ibv.EventSRQLimit {
			if ev.SRQ != b.srq {
				t.Errorf("event of %p, want %p", ev.SRQ, b.srq)
			}
			break
		}
		t.Logf("also: %v", ev.Type)
	}
	wantErrno(t, b.srq.SetLimit(17), syscall.EINVAL, "limit 17", "holds 16")
	_, err := b.pd.CreateSRQ(b.c.Query().MaxSRQWR+1, 1)
	wantErrno(t, err, syscall.EINVAL, "the device has")
}

// TestClosedQueuePairsLeaveTheSharedCount: the SRQ takes exactly as many receives as it holds while failed sends of
// queue pairs that were reset or closed are still to be polled.
func TestClosedQueuePairsLeaveTheSharedCount(t *testing.T) {
	for _, x := range []struct {
		name   string
		before func(qp *ibv.QP) error // the poll
	}{
		{"closed", (*ibv.QP).Close},
		{"reset", (*ibv.QP).ToReset},
		{"reset and closed", func(qp *ibv.QP) error { return errors.Join(qp.ToReset(), qp.Close()) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			const room = 4
			o := withDefaults(pairOptions{srq: room, channel: true})
			c := open(t)
			b := newEnd(t, c, o)
			for i := range room {
				b.recv(uint64(i), 0, 8)
			}
			for range room - 1 { // so many that their sum does not pass what is posted
				h := *b
				h.qp = ok[*ibv.QP](t)(b.pd.CreateQP(ibv.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SRQ: b.srq, MaxSendWR: 8, MaxSendSGE: 1}))
				defer h.qp.Close()
				connect(t, &h, &h, o)
				must(t, h.qp.ToErr())
				must(t, b.cq.ReqNotify(false))
				h.next(100, 0, 8).Send()
				h.post()
				ok[*ibv.CQ](t)(b.ch.Wait(soon(t)))
				must(t, x.before(h.qp))
				flushed := ok[int](t)(b.cq.Poll(b.wcs[:]))
				if flushed == 0 {
					t.Skip("this device drops the completions of queue pairs that are reset or closed")
				}
				for _, wc := range b.wcs[:flushed] {
					if wc.Status != ibv.WCFlushed || wc.ID != 100 {
						t.Fatalf("completion %d: %v, want a flushed send", wc.ID, wc.Status)
					}
				}
			}
			b.r.Next()
			_, err := b.srq.PostRecv(b.r)
			wantErrno(t, err, syscall.ENOMEM, "full")
		})
	}
}

// TestReceivesAfterAReset: failed sends that are polled after a reset do not use up the receive queue.
func TestReceivesAfterAReset(t *testing.T) {
	o := withDefaults(pairOptions{channel: true})
	e := newLone(t, o)
	connect(t, e, e, o)
	must(t, e.qp.ToErr())
	must(t, e.cq.ReqNotify(false))
	for range 3 {
		e.next(1, 0, 8).Send()
	}
	e.post()
	ok[*ibv.CQ](t)(e.ch.Wait(soon(t)))
	must(t, e.qp.ToReset())
	if ok[int](t)(e.cq.Poll(e.wcs[:])) == 0 {
		t.Skip("this device drops the completions of queue pairs that are reset")
	}
	must(t, e.qp.ToInit(e.init))
	e.recv(2, 0, 8)
}
