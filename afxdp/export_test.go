//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
)

// URLVersion is what frames begin with, behind the magic.
const URLVersion = urlVersion

// Describe returns the state of an instance's connection.
func Describe(i driver.Instance) string {
	var c *conn
	switch x := i.(type) {
	case *small:
		c = &x.conn
	case *large:
		c = &x.conn
	}
	n := c.ctx.nic
	n.mustLock()
	defer n.unlock()
	s := fmt.Sprintf("%v\n  %+v\n  free %d spare %d", c.lc, c.ctx.end.Stats(), len(n.free), len(n.spare))
	for k := range n.queues {
		q := &n.queues[k]
		st, _ := q.sock.Stats()
		s += fmt.Sprintf("\n  queue %d: out %d under %d posted %d stuck %v, %+v", k, q.out, q.under, q.posted, q.stuck, st)
	}
	return s
}

// Stopped runs f while nothing of a context's device is handled, as if its process were stopped.
func Stopped(c driver.Context, f func()) {
	n := contextOf(c).nic
	n.mustLock()
	defer n.unlock()
	f()
}

// PausedRoundTrip waits for the peer of an instance to acknowledge what was sent, as a process does that begins a step
// after some time, before the acknowledgement comes, and does not run until it is there. It returns the least time that
// a packet and its acknowledgement have taken so far.
func PausedRoundTrip(i driver.Instance, after time.Duration) time.Duration {
	c := &i.(*small).conn
	n := c.ctx.nic
	n.mustLock()
	defer n.unlock()
	<-time.After(after)
	n.clock()
	q := &n.queues[0]
	for c.lc.Unacknowledged() > 0 {
		if q.sock.RxPending() > 0 {
			n.receive(q)
		}
		runtime.Gosched()
	}
	_, least, _ := strings.Cut(c.lc.String(), "(least ")
	least, _, _ = strings.Cut(least, ",")
	d, err := time.ParseDuration(least)
	if err != nil {
		panic(err)
	}
	return d
}

// Kill forgets all connections of a context, as its process's death does. Close it then.
func Kill(c driver.Context) {
	x := contextOf(c)
	x.nic.mustLock()
	defer x.nic.unlock()
	x.end.Abandon()
}

// Shrink has the path of an instance take only packets of mtu bytes. It is for the function that Stopped runs.
func Shrink(i driver.Instance, mtu int) error {
	c := &i.(*small).conn
	err := c.lc.SetMTU(mtu)
	c.fragment.Store(int32(c.lc.MaxFragment()))
	return err
}

// Routes counts the ways to other contexts that a context keeps up to date.
func Routes(c driver.Context) (n int) {
	x := contextOf(c)
	x.nic.mustLock()
	defer x.nic.unlock()
	for _, r := range x.routes {
		if r != nil {
			n++
		}
	}
	return n
}

func contextOf(c driver.Context) *share {
	if s, ok := c.(smallContext); ok {
		return s.share
	}
	return c.(*share)
}

// PeersName is what packets to the peer of an instance name the connection by. It is seen on the wire.
func PeersName(i driver.Instance) uint64 {
	c := &i.(*small).conn
	c.ctx.nic.mustLock()
	defer c.ctx.nic.unlock()
	var mine, peers uint64
	if _, err := fmt.Sscanf(c.lc.String(), "connection %v, the peer's %v,", &mine, &peers); err != nil {
		panic(err)
	}
	return peers
}

// Placed is how many bytes of a message a packet of the large track carries.
func Placed(i driver.Instance) int {
	c := &i.(*large).conn
	n := c.ctx.nic
	n.mustLock()
	defer n.unlock()
	return c.lc.MaxPlaced()
}

// FillRingEmpty is how many frames found no chunk to be received into.
func FillRingEmpty(i driver.Instance) (sum uint64) {
	var c *conn
	switch x := i.(type) {
	case *small:
		c = &x.conn
	case *large:
		c = &x.conn
	}
	for k := range c.ctx.nic.queues {
		st, err := c.ctx.nic.queues[k].sock.Stats()
		if err != nil {
			panic(err)
		}
		sum += st.FillRingEmpty
	}
	return sum
}

// Rounds returns how often anything of a context's device was handled.
func Rounds(c driver.Context) uint64 { return uint64(contextOf(c).nic.polls.Load()) }

// LatePolls has a program poll so often, at intervals, and returns how many of its polls have not looked at timers.
func LatePolls(c driver.Context, polls int, interval time.Duration) (late int) {
	n := contextOf(c).nic
	n.mustLock()
	defer n.unlock()
	for range polls {
		for begin := time.Now(); time.Since(begin) < interval; {
			runtime.Gosched()
		}
		before := n.now
		if n.step(); n.now == before {
			late++
		}
	}
	return late
}

// Held reports whether the engine soon looks whether frames that had no room can be sent.
func Held(c driver.Context) bool {
	n := contextOf(c).nic
	n.mustLock()
	defer n.unlock()
	q := &n.queues[0]
	n.push(q)
	defer func(out int) { q.out = out }(q.out)
	q.out = 1
	return n.held()
}
