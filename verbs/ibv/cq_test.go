//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/verbs/ibv"
)

func TestArmedQueueWakesItsWaiter(t *testing.T) {
	a, b := newPair(t, pairOptions{channel: true})
	for i := range 5 {
		must(t, b.cq.ReqNotify(false))
		woken := make(chan error, 1)
		go func() {
			cq, err := b.ch.Wait(soon(t))
			if err == nil && cq != b.cq {
				err = errors.New("another queue")
			}
			woken <- err
		}()
		b.recv(1, 0, 8)
		select {
		case err := <-woken:
			t.Fatalf("round %d: woken (%v) before anything arrived", i, err)
		case <-time.After(10 * time.Millisecond):
		}
		a.next(2, 0, 8).Send()
		a.post()
		must(t, <-woken)
		b.done(1, ibv.WCRecv)
		a.done(2, ibv.WCSend)
	}
}

func TestSolicitedQueueWakesOnlyForMarkedSends(t *testing.T) {
	a, b := newPair(t, pairOptions{channel: true})
	b.recv(1, 0, 8)
	b.recv(2, 0, 8)
	must(t, b.cq.ReqNotify(true))
	a.next(1, 0, 8).Send()
	a.post()
	a.done(1, ibv.WCSend)
	must(t, b.ch.SetDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := b.ch.Wait(context.Background()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("woken for an unmarked send: %v", err)
	}
	must(t, b.ch.SetDeadline(time.Time{}))
	w := a.next(2, 0, 8)
	w.Flags |= ibv.SendSolicited
	w.Send()
	a.post()
	_, err := b.ch.Wait(soon(t))
	must(t, err)
	b.done(1, ibv.WCRecv)
	b.done(2, ibv.WCRecv)
}

func TestWaitEnds(t *testing.T) {
	c := open(t)
	ch := closing[*ibv.CompChannel](t)(c.CreateCompChannel())
	wait := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := ch.Wait(ctx)
			done <- err
		}()
		time.Sleep(10 * time.Millisecond)
		return done
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := wait(ctx)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := <-wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timed out: %v", err)
	}
	done = wait(context.Background())
	must(t, ch.SetDeadline(time.Unix(1, 0)))
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	must(t, ch.SetDeadline(time.Now().Add(100*time.Millisecond)))
	ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := <-wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timed out before the deadline: %v", err)
	}
	if err := <-wait(context.Background()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the deadline, after a wait whose context ended: %v", err)
	}
	must(t, ch.SetDeadline(time.Time{}))
	done = wait(context.Background())
	must(t, ch.Close())
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := ch.Wait(context.Background()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestAsyncEventWaitEnds(t *testing.T) {
	c := ok[*ibv.Context](t)(ibv.Open(deviceName(t)))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if ev, err := c.GetAsyncEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v", ev, err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.GetAsyncEvent(context.Background())
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	must(t, c.Close())
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestResizedQueueKeepsItsCompletions(t *testing.T) {
	a, b := newPair(t, pairOptions{})
	for i := range 20 {
		a.next(uint64(i), 0, 8).Write(b.mr.Addr(), b.mr.RKey())
	}
	a.post()
	time.Sleep(20 * time.Millisecond)
	must(t, a.cq.Resize(1000))
	if a.cq.Len() < 1000 {
		t.Errorf("%d entries after Resize(1000)", a.cq.Len())
	}
	must(t, a.cq.Resize(300))
	for i := range 20 {
		a.done(uint64(i), ibv.WCWrite)
	}
	wantErrno(t, a.cq.Resize(63), syscall.EINVAL, "can cause 64 completions")
	wantErrno(t, a.cq.Resize(a.c.Query().MaxCQE+1), syscall.EINVAL, "the device has")
	wantErrno(t, a.cq.Resize(0), syscall.EINVAL)
	_, err := a.c.CreateCQ(a.c.Query().MaxCQE+1, nil, 0)
	wantErrno(t, err, syscall.EINVAL, "the device has")
}

func TestOneQueueServesManyQueuePairsByTag(t *testing.T) {
	c := open(t)
	o := withDefaults(pairOptions{})
	hub := newEnd(t, c, o)
	const peers = 24 // more than the first table of queue pairs holds
	cq := closing[*ibv.CQ](t)(c.CreateCQ(peers*2, nil, 0))
	var ends []*end
	var hubs []*ibv.QP
	for i := range peers {
		e := newEnd(t, c, o)
		init := ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, Tag: uint32(1000 + i)}
		h := *hub
		h.qp = closing[*ibv.QP](t)(hub.pd.CreateQP(init))
		connect(t, &h, e, o)
		connect(t, e, &h, o)
		h.recv(uint64(i), 64*i, 64)
		ends, hubs = append(ends, e), append(hubs, h.qp)
	}
	for i, e := range ends {
		e.next(1, 0, 8+i).Send()
		e.post()
		e.done(1, ibv.WCSend)
	}
	got := 0
	for deadline := time.Now().Add(maxWait); got < peers; {
		n, err := cq.Poll(hub.wcs[:])
		must(t, err)
		for _, wc := range hub.wcs[:n] {
			i := int(wc.ID)
			if wc.Err() != nil || wc.Tag != uint32(1000+i) || wc.QPNum != hubs[i].Num() || int(wc.ByteLen) != 8+i {
				t.Errorf("completion %+v, %v", wc, wc.Err())
			}
			got++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d", got, peers)
		}
	}
	must(t, hubs[0].Close())
	for _, h := range hubs[1:] {
		must(t, h.Close())
	}
	must(t, cq.Resize(1)) // nothing is reserved any more
}
