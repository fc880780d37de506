package drivertest

import "github.com/bywash/bywash/driver"

var roleCounted = role("counted", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	for k := range n {
		c.swaps(k)
	}
	if e.caps.OneSided != nil {
		e.parent.sendNote("key", e.register(shared{4096, allAccess, true}).Key())
	}
	e.parent.recvNote("leave", nil)
	c.leave()
	var now driver.Counters
	e.context().Counters(&now)
	e.parent.sendNote("counters", now)
})

func checkCounters(e *end) {
	const n = 50
	p, c := e.pair(roleCounted, n)
	for k := range n {
		c.swaps(k)
	}
	if e.caps.OneSided != nil {
		e.countsOneSided(p, c)
	}
	p.sendNote("leave", nil)
	var theirs driver.Counters
	p.recvNote("counters", &theirs)
	c.leave()
	p.join()
	for side, got := range map[string]driver.Counters{"here": e.counters(), "there": theirs} {
		for _, x := range []struct {
			name      string
			got, want uint64
		}{
			{"messages sent", got.MessagesSent, n}, {"messages received", got.MessagesReceived, n},
			{"bytes sent", got.BytesSent, 100 * n}, {"bytes received", got.BytesReceived, 100 * n},
			{"connects", got.Connects, 1}, {"broken peers", got.BrokenPeers, 0}, {"truncated", got.Truncated, 0},
		} {
			if x.got != x.want {
				e.Errorf("%s: %s: %d, want %d", side, x.name, x.got, x.want)
			}
		}
	}
	if theirs.Disconnects == 0 {
		e.Errorf("disconnects: 0 where Disconnect was called")
	}
	sum := e.counters()
	e.context().Counters(&sum)
	if sum.MessagesSent != 2*n {
		e.Errorf("Counters does not add to what is there: %d, want %d", sum.MessagesSent, 2*n)
	}
}

func (e *end) countsOneSided(p *peer, c *conn) {
	e.Helper()
	var key []byte
	p.recvNote("key", &key)
	one := c.i.(driver.OneSided)
	reg, err := one.Import(key)
	e.noErr("import", err)
	o, want := e.caps.OneSided, driver.Counters{}
	if o.Put {
		e.noErr("put", c.do(one.PutPost, &driver.Op{Local: make([]byte, 8), Remote: reg}))
		want.Puts = 1
	}
	if o.Get {
		e.noErr("get", c.do(one.GetPost, &driver.Op{Local: make([]byte, 8), Remote: reg}))
		want.Gets = 1
	}
	if o.Atomics64.Has(driver.Add) {
		e.noErr("atomic", c.do(one.AtomicPost, &driver.Op{Atomic: driver.Add, Size: 8, Remote: reg}))
		want.Atomics = 1
	}
	if got := e.counters(); got.Puts != want.Puts || got.Gets != want.Gets || got.Atomics != want.Atomics {
		e.Errorf("one-sided operations: counted %d, %d, %d; want %d, %d, %d", got.Puts, got.Gets, got.Atomics, want.Puts, want.Gets, want.Atomics)
	}
}
