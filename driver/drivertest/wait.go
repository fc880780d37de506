package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

func hasRecvWait(p *driver.Properties) bool { return p.Capabilities.RecvWait }
func hasSendWait(p *driver.Properties) bool { return p.Capabilities.SendWait }
func hasAnyWait(p *driver.Properties) bool  { return hasRecvWait(p) || hasProbe(p) }

// idles checks that f, which waits in vain until its context ends, sleeps.
func (e *end) idles(what string, f func(context.Context) error) {
	e.Helper()
	d := 500 * time.Millisecond
	if testing.Short() {
		d = 200 * time.Millisecond
	}
	d = e.cfg.scale(d)
	least := d
	for range 5 { // the process has other goroutines, and a busy machine other costs
		runtime.GC() // not while it is counted
		ctx, cancel := context.WithTimeout(context.Background(), d)
		before := cpuTime()
		err := e.bounded(what, func() error { return f(ctx) })
		least = min(least, cpuTime()-before)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			e.Fatalf("%s while nothing comes: got %v, want its context's error", what, err)
		}
		if least <= d/5 || raceEnabled {
			return
		}
	}
	e.Errorf("%s used %v of CPU time in %v, want less than a fifth", what, least, d)
}

var roleOnOrder = role("send-on-order", func(e *end) {
	c := e.parent.connectPeer()
	var n int
	for e.parent.recvNote("send", &n); n > 0; e.parent.recvNote("send", &n) {
		newWindow(c, 1, 64).sendRun(n, 64, 0)
	}
	e.parent.sync()
})

func checkWaitSleeps(e *end) {
	p, c := e.pair(roleOnOrder, nil)
	q := packet(make([]byte, 64))
	ctx, cancel := e.bound()
	defer cancel()
	if w, ok := c.i.(driver.RecvWaiter); ok {
		c.postRecv(q)
		e.idles("RecvWait", func(ctx context.Context) error { return w.RecvWait(ctx, q) })
		p.sendNote("send", 1) // it is still posted
		e.noErr("wait", w.RecvWait(ctx, q))
		e.noErr("message", verify(q.IOV[0], 0))
		c.forget(q)
		if e.caps.BufferRecv {
			b := &driver.Packet{}
			e.idles("RecvWait for a buffer", func(ctx context.Context) error { return w.RecvWait(ctx, b) })
			p.sendNote("send", 1)
			e.noErr("wait for a buffer", w.RecvWait(ctx, b))
			e.noErr("message", verify(b.Buf[:b.N], 0))
			e.noErr("release", c.i.(driver.BufferReceiver).RecvBufRelease(b))
		}
	}
	if w, ok := e.context().(driver.Prober); ok {
		e.idles("RecvWaitAny", func(ctx context.Context) error { _, err := w.RecvWaitAny(ctx); return err })
		p.sendNote("send", 1)
		i, err := w.RecvWaitAny(ctx)
		if err != nil || i != c.i {
			e.Fatalf("RecvWaitAny names %v, error %v", i, err)
		}
		e.atOnce(c, q)
	}
	if got := e.counters().Waits; got == 0 {
		e.Errorf("counter of waits: 0")
	}
	p.sendNote("send", 0)
	p.sync()
	p.join()
}

func checkWaitCancel(e *end) {
	p, c := e.pair(roleOnOrder, nil)
	if w, ok := c.i.(driver.RecvWaiter); ok {
		q := packet(make([]byte, 64))
		c.postRecv(q)
		e.cancels("RecvWait", func(ctx context.Context) error { return w.RecvWait(ctx, q) })
		e.noErr("cancel", c.i.RecvCancel(q))
		e.wantErr("cancelled receive", c.recvErr(q), driver.ErrCanceled)
	}
	if w, ok := e.context().(driver.Prober); ok {
		wait := func(ctx context.Context) error { _, err := w.RecvWaitAny(ctx); return err }
		e.cancels("RecvWaitAny", wait)
		e.noErr("cancel", w.RecvCancelAny())
		ctx, cancel := context.WithTimeout(context.Background(), moment)
		e.wantErr("RecvWaitAny after a cancel that met no waiter", wait(ctx), context.DeadlineExceeded)
		cancel()
		e.cancelAny(w)
	}
	p.sendNote("send", 0)
	p.sync()
	p.join()
}

// cancels checks that a wait ends with its context.
func (e *end) cancels(what string, f func(context.Context) error) {
	e.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(moment/2, cancel)
	err := e.bounded(what+" whose context is cancelled", func() error { return f(ctx) })
	e.wantErr(what, err, context.Canceled)
}

// cancelAny checks that every waiter is woken, and that a context that closes
// wakes them as well.
func (e *end) cancelAny(w driver.Prober) {
	e.Helper()
	const waiters = 4
	for _, closing := range []bool{false, true} {
		if closing {
			w = e.open().(driver.Prober)
		}
		var left atomic.Int32
		var wg sync.WaitGroup
		left.Store(waiters)
		for range waiters {
			wg.Go(func() {
				defer left.Add(-1)
				_, err := w.RecvWaitAny(context.Background())
				if !errors.Is(err, driver.ErrCanceled) && !(closing && errors.Is(err, driver.ErrClosed)) {
					e.Errorf("RecvWaitAny that was cancelled: %v", err)
				}
			})
		}
		if closing {
			e.noErr("close", w.Close())
		}
		e.until("waiters are woken", func() bool {
			if !closing {
				e.noErr("RecvCancelAny", w.RecvCancelAny())
			}
			return left.Load() == 0
		})
		wg.Wait()
	}
}

// roleRandom answers each message with one, after a random moment.
var roleRandom = role("answer-randomly", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	rnd := rand.New(rand.NewPCG(e.cfg.Seed, 7))
	in, out := packet(make([]byte, 8)), packet(make([]byte, 8))
	for range n {
		c.postRecv(in)
		c.endRecv(in)
		for until := time.Now().Add(time.Duration(rnd.IntN(1 + rnd.IntN(50_000)))); time.Now().Before(until); {
			runtime.Gosched()
		}
		c.postSend(out)
		c.endSend(out)
	}
	e.parent.sync()
})

func checkWakeup(e *end) {
	n := 5000
	if e.large {
		n = 300
	}
	if raceEnabled || testing.Short() {
		n /= e.times(5, 20)
	}
	if raceEnabled {
		n /= 4
	}
	p, c := e.pair(roleRandom, n)
	in, out := packet(make([]byte, 8)), packet(make([]byte, 8))
	w, one := c.i.(driver.RecvWaiter)
	all, probes := e.context().(driver.Prober)
	ctx, cancel := e.bound()
	defer func() { cancel() }()
	for k := range n {
		if k%100 == 99 { // the limit is for a wait, not for all of them
			cancel()
			ctx, cancel = e.bound()
		}
		if e.large {
			c.postRecv(in) // the answer's rdv data goes ahead
		}
		c.postSend(out)
		c.endSend(out)
		if probes && (k%2 == 1 || !one) {
			if _, err := all.RecvWaitAny(ctx); err != nil {
				e.dumpf("round %d: RecvWaitAny: %v", k, err)
			}
			e.atOnce(c, in)
			continue
		}
		if !e.large {
			c.postRecv(in)
		}
		if err := w.RecvWait(ctx, in); err != nil {
			e.dumpf("round %d: RecvWait: %v", k, err)
		}
		c.forget(in)
	}
	p.sync()
	p.join()
}

// roleLate receives n messages at each order.
var roleLate = role("receive-on-order", func(e *end) {
	c := e.parent.connectPeer()
	var n int
	for e.parent.recvNote("receive", &n); n > 0; e.parent.recvNote("receive", &n) {
		newWindow(c, 1, 64).recvRun(n, 64, 0)
	}
	e.parent.sync()
})

func checkSendWait(e *end) {
	p, c := e.pair(roleLate, nil)
	w := c.i.(driver.SendWaiter)
	ctx, cancel := e.bound()
	defer cancel()
	for range 50 {
		p.sendNote("receive", 1)
		q := packet(make([]byte, 64))
		fill(q.IOV[0], 0)
		c.postSend(q)
		if err := w.SendWait(ctx, q); err != nil {
			e.dumpf("SendWait: %v", err)
		}
		c.forget(q)
	}
	if !e.large {
		total, open := e.fillUp(c)
		if len(open) > 0 {
			last := open[len(open)-1]
			e.idles("SendWait", func(ctx context.Context) error { return w.SendWait(ctx, last) })
		}
		p.sendNote("receive", total)
		for _, q := range open {
			if err := w.SendWait(ctx, q); err != nil {
				e.dumpf("SendWait of a send that was stuck: %v", err)
			}
		}
	}
	p.sendNote("receive", 0)
	p.sync()
	p.join()
}
