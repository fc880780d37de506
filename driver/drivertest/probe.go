package drivertest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
)

func hasProbe(p *driver.Properties) bool { return p.Capabilities.Probe && p.Track == driver.Small }

// roleFill posts as many of n messages as the driver takes, reports that, and then
// sends the rest.
var roleFill = role("fill", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	var open []*driver.Packet
	for k := 0; k < n; k++ {
		q := packet(make([]byte, 64))
		fill(q.IOV[0], uint64(k))
		if err := c.i.SendPost(q); err == driver.ErrBusy {
			k--
			if e.stuck(c, &open) {
				break
			}
			continue
		} else if err != nil {
			e.Fatalf("send: %v", err)
		}
		open = append(open, q)
	}
	for !e.stuck(c, &open) && len(open) > 0 {
		continue
	}
	e.parent.sendNote("full", nil)
	for _, q := range open {
		c.endSend(q)
	}
	e.parent.recvNote("enough", nil)
})

func checkProbeFair(e *end) {
	const each = 16
	const needed = 8 // of each peer, in the first half
	peers := e.times(16, 4)
	conns := make(map[driver.Instance]*conn)
	var ps []*peer
	for range peers {
		p, c := e.pair(roleFill, each)
		ps = append(ps, p)
		conns[c.i] = c
	}
	for _, p := range ps {
		p.recvNote("full", nil)
	}
	time.Sleep(5 * moment) // for what is on its way
	got := make(map[driver.Instance]int)
	q := packet(make([]byte, 64))
	for k := range peers * each {
		i := e.named()
		c := conns[i]
		if c == nil {
			e.Fatalf("probe names an unknown instance")
		}
		e.atOnce(c, q)
		e.noErr("message", verify(q.IOV[0], uint64(got[i])))
		got[i]++
		if k+1 != peers*needed {
			continue
		}
		for _, c := range conns {
			if n := got[c.i]; n < needed/2 || n > needed*3/2 {
				e.Errorf("of %d messages, %d were of one peer, want about %d of each", k+1, n, needed)
			}
		}
	}
	for _, p := range ps {
		p.sendNote("enough", nil)
		p.join()
	}
}

// named waits for a probe to name an instance.
func (e *end) named() (i driver.Instance) {
	e.Helper()
	e.until("probe", func() bool {
		var err error
		i, err = e.context().(driver.Prober).RecvProbeAny()
		if err != nil && err != driver.ErrAgain {
			e.Fatalf("probe: %v", err)
		}
		return err == nil
	})
	return i
}

// atOnce receives a message that a probe has named.
func (e *end) atOnce(c *conn, q *driver.Packet) {
	e.Helper()
	c.postRecv(q)
	done, err := c.i.RecvPoll(q)
	if !done || err != nil {
		e.Fatalf("receive after probe: done %v, error %v; want success at once", done, err)
	}
}

// checkProbeRest has one caller be notified of a connection and receive one of two messages: another caller, which
// sleeps, is notified of the second one.
func checkProbeRest(e *end) {
	const rounds = 10
	p, c := e.pair(roleOnOrder, nil)
	w := e.context().(driver.Prober)
	q := packet(make([]byte, 64))
	limit := rounds * e.cfg.scale(moment+200*time.Millisecond)
	start := time.Now()
	for k := range rounds {
		p.sendNote("send", 2)
		if i := e.named(); i != c.i {
			e.Fatalf("probe names %v", i)
		}
		before := e.counters().Waits
		ctx, cancel := e.bound()
		reported := make(chan error, 1)
		go func() {
			i, err := w.RecvWaitAny(ctx)
			if err == nil && i != c.i {
				err = fmt.Errorf("it names %v", i)
			}
			reported <- err
		}()
		e.until("RecvWaitAny sleeps", func() bool { return e.counters().Waits > before })
		time.Sleep(moment) // drivers whose waits sleep again after a time are in a long sleep then
		e.atOnce(c, q)
		e.noErr("RecvWaitAny, after another caller has received the first of two messages", <-reported)
		cancel()
		e.atOnce(c, q)
		if took := time.Since(start); took > limit {
			e.Fatalf("RecvWaitAny was notified of messages behind others after %v on average", took/time.Duration(k+1))
		}
	}
	p.sendNote("send", 0)
	p.sync()
	p.join()
}

// unnamed checks that probes name nothing for a moment.
func (e *end) unnamed(when string) {
	e.Helper()
	e.within(moment, func() bool {
		i, err := e.context().(driver.Prober).RecvProbeAny()
		if err != driver.ErrAgain {
			e.Fatalf("probe %s: got instance %v, error %v, want exactly ErrAgain", when, i != nil, err)
		}
		return false
	})
}

func checkProbeOnce(e *end) {
	p, c := e.pair(roleSendRuns, []run{{N: 2, Size: 64, Depth: 1}})
	p.sync() // both messages are sent
	q := packet(make([]byte, 64))
	for range 2 {
		if i := e.named(); i != c.i {
			e.Fatalf("probe names another instance")
		}
		e.unnamed("between probe and receive")
		e.atOnce(c, q)
	}
	p.join()
}

func checkProbeConcurrent(e *end) {
	const peers, probers = 4, 4
	n := e.times(1000, 300)
	if raceEnabled {
		n = 200
	}
	type place struct {
		c    *conn
		busy atomic.Bool
		next atomic.Int64
	}
	places := make(map[driver.Instance]*place)
	var ps []*peer
	for range peers {
		p, c := e.pair(roleSendRuns, []run{{N: n, Size: 13 * 5, Depth: min(8, e.caps.SendDepth)}})
		ps = append(ps, p)
		places[c.i] = &place{c: c}
	}
	prober := e.context().(driver.Prober)
	var total atomic.Int64
	var wg sync.WaitGroup
	deadline := time.Now().Add(e.cfg.limit)
	for range probers {
		wg.Go(func() {
			q := packet(make([]byte, 65))
			for total.Load() < int64(peers*n) && time.Now().Before(deadline) {
				i, err := prober.RecvProbeAny()
				if err == driver.ErrAgain {
					runtime.Gosched()
					continue
				}
				e.noErr("probe", err)
				pl := places[i]
				if pl.busy.Swap(true) {
					e.Fatalf("an instance was named to two callers")
				}
				k := pl.next.Add(1) - 1
				if err := i.RecvPost(q); err != nil {
					e.Fatalf("receive after probe: %v", err)
				}
				pl.busy.Store(false) // the poll may make it named again
				if done, err := i.RecvPoll(q); !done || err != nil {
					e.Fatalf("receive after probe: done %v, error %v; want success at once", done, err)
				}
				if err := verify(q.IOV[0], uint64(k)); err != nil {
					e.Fatalf("message %d: %v", k, err)
				}
				total.Add(1)
			}
		})
	}
	wg.Wait()
	if got := total.Load(); got != int64(peers*n) {
		e.Fatalf("%d of %d messages were named", got, peers*n)
	}
	for _, p := range ps {
		p.sync()
		p.join()
	}
}

var roleLeave = role("leave", func(e *end) {
	c := e.parent.connectPeer()
	e.parent.recvNote("leave", nil)
	c.leave()
	e.parent.sync()
})

func checkProbeEnd(e *end) {
	p, c := e.pair(roleLeave, nil)
	q, d := e.pair(roleLeave, nil)
	e.unnamed("while nothing was sent")
	for _, end := range []struct {
		c    *conn
		f    func()
		want error
	}{
		{c, p.kill, driver.ErrBroken},
		{d, func() { q.sendNote("leave", nil); q.sync() }, driver.ErrClosed},
	} {
		end.f()
		if i := e.named(); i != end.c.i {
			e.Fatalf("probe names another instance than the one that ended")
		}
		r := packet(make([]byte, 64))
		err := end.c.i.RecvPost(r)
		if err == nil {
			err = end.c.recvErr(r)
		}
		e.wantErr("receive on an instance that ended", err, end.want)
		e.unnamed("after an end was reported")
	}
	q.join()
}
