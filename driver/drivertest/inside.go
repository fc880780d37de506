package drivertest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/bywash/bywash/driver"
)

// insideSize is long enough for a stop to fall into the middle of a put.
const insideSize = 2 << 20

// roleInsider puts to regions of the test, over a connection for each, until a put fails.
var roleInsider = role("insider", func(e *end) {
	var sizes []int
	e.args(&sizes)
	for _, size := range sizes {
		c := e.parent.connectPeer()
		one := c.i.(driver.OneSided)
		var key []byte
		e.parent.recvNote("key", &key)
		reg, err := one.Import(key)
		e.noErr("import", err)
		b := make([]byte, size)
		for k := 0; err == nil; k++ {
			if err = c.do(one.PutPost, &driver.Op{Local: b, Remote: reg}); k == 0 {
				e.parent.sendNote("putting", nil)
			}
		}
		if !ends(err) && !errors.Is(err, driver.ErrRemoteKey) {
			e.Fatalf("put to a region that is deregistered, over a connection that ends: %v", err)
		}
		e.parent.sendNote("refused", nil)
		if err := c.i.Disconnect(); err != nil && !errors.Is(err, driver.ErrClosed) {
			e.Fatalf("disconnect: %v", err)
		}
	}
})

// Ways in which this end treats the connection before it deregisters.
const (
	insideStays = iota
	insideDisconnects
	insideCloses
	insideWays
)

// checkStoppedInside stops a peer at random moments of its puts, so that it is often inside the region.
func checkStoppedInside(e *end) {
	o := e.caps.OneSided
	rounds := 12
	if e.cfg.TimeScale > 1 { // emulated machines take seconds for each
		rounds = 6
	}
	sizes := make([]int, rounds)
	for k := range sizes {
		// Long ones to memory that the peer may have mapped, short ones to private memory: they begin often.
		if sizes[k] = min(insideSize, o.MaxPut); k/insideWays%2 == 1 {
			sizes[k] = min(512, o.MaxPut)
		}
		sizes[k] -= sizes[k] % o.PutAlignment
	}
	rnd := e.rand(5)
	p := e.peer(roleInsider, sizes)
	for k, size := range sizes {
		ctx := e.ctx
		e.ctx = e.open() // which is closed in one of the ways
		c := p.connectPeer()
		r := e.register(shared{size, driver.RemoteWrite, k/insideWays%2 == 0})
		p.sendNote("key", r.Key())
		p.recvNote("putting", nil)
		for until := time.Now().Add(time.Duration(rnd.IntN(500_000))); time.Now().Before(until); {
		}
		p.stop()
		e.leaveInside(k%insideWays, c, p, r)
		_ = e.ctx.Close()
		e.ctx = ctx
	}
	p.join()
}

// leaveInside ends the connection to a peer that is stopped, takes the memory back as soon as the driver gives it, and
// lets the peer go on.
func (e *end) leaveInside(way int, c *conn, p *peer, r driver.Region) {
	e.Helper()
	switch way {
	case insideDisconnects:
		e.noErr("disconnect from a peer that is stopped", c.i.Disconnect())
	case insideCloses:
		e.noErr("close with a peer that is stopped", e.ctx.Close())
	}
	before := e.ctx
	free := func() bool {
		err := r.Deregister()
		if err != nil && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrClosed) {
			e.Fatalf("deregister: %v", err)
		}
		return !errors.Is(err, driver.ErrBusy)
	}
	resume := func() { p.signal(sigCont) }
	stopped := free()
	if !stopped {
		var n driver.Counters
		if before.Counters(&n); n.DeregisterBusy == 0 {
			e.Errorf("counter of deregistrations that returned ErrBusy is 0 after one")
		}
		resume()
		e.until("deregister after the peer has gone on", free)
	}
	b := r.Bytes()
	setCanary(b)
	if stopped {
		resume()
	}
	p.recvNote("refused", nil)
	e.within(moment, func() bool { return disturbed(b[:1]) >= 0 })
	if k := disturbed(b); k >= 0 {
		e.Fatalf("byte %d was written after Deregister had returned nil (the peer was stopped, way %d)", k, way)
	}
}

// stop stops the peer process and waits until none of its threads runs, where that can be seen from here.
func (p *peer) stop() {
	p.e.Helper()
	p.signal(sigStop)
	if p.e.cfg.Signal == nil { // else it runs elsewhere
		p.e.within(p.e.cfg.limit, func() bool { return halted(p.cmd.Process.Pid) })
	}
}

// halted reports whether all threads of a process are stopped, or the process cannot be seen.
func halted(pid int) bool {
	stats, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if at := bytes.LastIndexByte(b, ')'); at >= 0 && at+2 < len(b) && b[at+2] != 'T' {
			return false
		}
	}
	return true
}
