package drivertest

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

func notRace(*driver.Properties) bool { return !raceEnabled }

// roleEcho answers n messages.
var roleEcho = role("echo", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	in, out := packet(make([]byte, 64)), packet(make([]byte, 64))
	for range n {
		c.postRecv(in)
		c.endRecv(in)
		c.postSend(out)
		c.endSend(out)
	}
	e.parent.sync()
})

func checkAllocations(e *end) {
	rounds, warm := 5000, 1000
	if testing.Short() {
		rounds, warm = e.times(2000, 1000), e.times(500, 200)
	}
	puts := e.times(2000, 1000)
	if e.large {
		// Oneself, so that no control pipe carries rdv data.
		c := e.self()
		e.allocates("message", puts, puts/4, func() { c.bounce() })
		c.leave()
	} else {
		p, c := e.pair(roleEcho, rounds+warm)
		in, out := packet(make([]byte, 64)), packet(make([]byte, 64))
		e.allocates("round trip", rounds, warm, func() { c.roundTrip(in, out) })
		p.sync()
		p.join()
	}
	if hasPut(e.query().Properties()) {
		r := e.target(shared{4096, allAccess, true})
		op := &driver.Op{Local: make([]byte, 64), Remote: r.regs[0]}
		e.allocates("put", puts, puts/4, func() { r.c.doPoll(r.one, op) })
		r.end()
	}
}

// allocates checks that f does not, after a warm-up. The count is the whole
// process's, so the runtime's own and what earlier checks left behind is in it:
// f is without fault if one of several batches is as good as free of them,
// which no batch of an f can be that allocates now and then.
func (e *end) allocates(what string, n, warm int, f func()) {
	e.Helper()
	for range warm {
		f()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const batches = 5
	n /= batches
	least := uint64(math.MaxUint64)
	for range batches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			f()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least > uint64(max(n/100, 10)) {
		e.Errorf("%d allocations in %d times a %s, want none", least, n, what)
	}
}

// roundTrip and bounce poll by themselves: the helpers of conn allocate.
func (c *conn) roundTrip(in, out *driver.Packet) {
	if err := c.i.RecvPost(in); err != nil {
		c.e.Fatalf("receive: %v", err)
	}
	for c.i.SendPost(out) == driver.ErrBusy {
		runtime.Gosched()
	}
	c.settle(in, out)
}

func (c *conn) bounce() {
	in, out := &c.bounced[0], &c.bounced[1]
	if in.IOV == nil {
		in.IOV, out.IOV = [][]byte{make([]byte, 4096)}, [][]byte{make([]byte, 4096)}
	}
	if err := c.i.RecvPost(in); err != nil {
		c.e.Fatalf("receive: %v", err)
	}
	out.RdvData = in.RdvData
	if err := c.i.SendPost(out); err != nil {
		c.e.Fatalf("send: %v", err)
	}
	c.settle(in, out)
}

func (c *conn) settle(in, out *driver.Packet) {
	sent, received := false, false
	for n := 0; !sent || !received; n++ {
		var err error
		if !sent {
			if sent, err = c.i.SendPoll(out); err != nil {
				c.e.Fatalf("send: %v", err)
			}
		}
		if !received {
			if received, err = c.i.RecvPoll(in); err != nil {
				c.e.Fatalf("receive: %v", err)
			}
		}
		if n > 10_000_000 {
			c.e.Fatalf("a message does not arrive")
		}
		yield(n)
	}
}

// yield lets others run, and after a while other processes, too.
func yield(n int) {
	if n%1000 == 999 {
		time.Sleep(10 * time.Microsecond)
		return
	}
	runtime.Gosched()
}

func (c *conn) doPoll(one driver.OneSided, op *driver.Op) {
	if err := one.PutPost(op); err != nil {
		c.e.Fatalf("put: %v", err)
	}
	for n := 0; ; n++ {
		done, err := one.OpPoll(op)
		if err != nil {
			c.e.Fatalf("put: %v", err)
		}
		if done {
			return
		}
		yield(n)
	}
}
