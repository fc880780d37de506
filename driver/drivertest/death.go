package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
)

// An act is an operation in the middle of which peers are killed: the victim's part and the test's part, until the
// connection breaks.
type act struct {
	name   string
	need   func(*driver.Properties) bool
	victim func(*conn, *rand.Rand) error // returns only an error
	test   func(*conn) error
}

func onSmall(p *driver.Properties) bool { return p.Track == driver.Small }

func lends(p *driver.Properties) bool { return p.Capabilities.BufferRecv }

var acts = []act{
	{"receive", nil, (*conn).sendsForever, (*conn).receivesOnce},
	{"send", nil, (*conn).receivesForever, (*conn).sendsOnce},
	{"exchange", nil, (*conn).swapsForever, (*conn).swapsOnce},
	{"idle receive", nil, (*conn).idles, (*conn).receivesOnce},
	{"send to one who does not receive", onSmall, (*conn).idles, (*conn).sendsOnce},
	{"receive wait", hasRecvWait, (*conn).idles, (*conn).waitsOnce},
	{"probe wait", hasProbe, (*conn).sendsForever, (*conn).waitsForAny},
	{"idle probe wait", hasProbe, (*conn).idles, (*conn).waitsForAny},
	{"message out", lends, (*conn).sendsForever, (*conn).holdsMessage},
	{"put", hasPut, (*conn).offersMemory, (*conn).putsOnce},
	{"flush", hasPut, (*conn).offersMemory, (*conn).flushesOnce},
	{"atomic", hasAtomics, (*conn).offersMemory, (*conn).addsOnce},
	{"connect", nil, nil, nil}, // before the connection is established
}

// roleVictim plays one act until it is killed.
var roleVictim = role("victim", func(e *end) {
	var a struct {
		Act  int
		Seed uint64
	}
	e.args(&a)
	if acts[a.Act].victim == nil {
		c := e.parent.begin()
		c.waitUp()
		c.idles(nil)
	}
	c := e.parent.connectPeer()
	if err := acts[a.Act].victim(c, rand.New(rand.NewPCG(a.Seed, 1))); err != nil {
		e.Fatalf("victim of %s: %v", acts[a.Act].name, err)
	}
})

func (c *conn) idles(*rand.Rand) error {
	c.e.parent.next(99, "killed")
	return nil
}

const deathSize = 3000

func (c *conn) size() int {
	if c.e.large {
		return min(1<<20, c.e.caps.MaxMessage)
	}
	return min(deathSize, c.e.caps.MaxMessage)
}

func (c *conn) sendsForever(*rand.Rand) error {
	for p := packet(make([]byte, c.size())); ; {
		if err := c.trySend(p); err != nil {
			return err
		}
		if err := c.sendErr(p); err != nil {
			return err
		}
	}
}

func (c *conn) receivesForever(*rand.Rand) error {
	for p := packet(make([]byte, c.size())); ; {
		if err := c.tryRecv(p); err != nil {
			return err
		}
		if err := c.recvErr(p); err != nil {
			return err
		}
	}
}

func (c *conn) swapsForever(*rand.Rand) error {
	for {
		if err := c.swapsOnce(); err != nil {
			return err
		}
	}
}

func (c *conn) offersMemory(r *rand.Rand) error {
	reg := c.e.register(shared{1 << 16, allAccess, r.IntN(2) == 0})
	c.sendNote("key", reg.Key())
	return c.idles(r)
}

// dies is what fails if the death of a peer is not noticed.
const dies = "an operation on a peer that dies"

func (c *conn) receivesOnce() error {
	p := packet(make([]byte, c.size()))
	if err := c.tryRecv(p); err != nil {
		return err
	}
	return c.finish(dies, p, c.i.RecvPoll)
}

// holdsMessage keeps a message in the driver's memory until the driver reports, without a receive, that the peer has
// died.
func (c *conn) holdsMessage() error {
	en, ok := c.i.(driver.Ender)
	if !ok {
		return c.receivesOnce()
	}
	var p driver.Packet
	if err := c.finish(dies, &p, c.i.RecvPoll); err != nil {
		return err
	}
	var err error
	c.e.until("the end of a peer that dies while a buffer is out", func() bool {
		if pr, ok := c.e.ctx.(driver.Prober); ok {
			_, _ = pr.RecvProbeAny()
		}
		err = en.Err()
		return err != nil
	})
	_ = c.i.(driver.BufferReceiver).RecvBufRelease(&p)
	return err
}

func (c *conn) sendsOnce() error {
	p := packet(make([]byte, c.size()))
	if c.e.large && !c.rdvComes(p) {
		return c.probeBroken()
	}
	var err error
	c.e.until("send to a peer that dies", func() bool {
		err = c.i.SendPost(p)
		return err != driver.ErrBusy
	})
	if err != nil {
		return err
	}
	if c.e.large {
		c.posted(p)
	}
	return c.finish(dies, p, c.i.SendPoll)
}

// rdvComes takes the next rdv data, unless the peer dies before it sends any.
func (c *conn) rdvComes(p *driver.Packet) (ok bool) {
	var n note
	c.e.until("rdv data", func() bool {
		if len(c.notes) > 0 {
			n, ok = c.notes[0], true
			c.notes = c.notes[1:]
			return true
		}
		if n, ok = c.l.try(c.ch); ok && n.Tag == "update" {
			c.update(n)
			return false
		}
		if ok {
			return true
		}
		select {
		case <-c.l.gone:
			n, ok = c.l.try(c.ch)
			return true
		default:
			return false
		}
	})
	if ok {
		c.l.expect(n, "rdv", &p.RdvData)
	}
	return ok
}

// probeBroken waits, with a receive, for a death to be noticed.
func (c *conn) probeBroken() error {
	p := packet(make([]byte, 8))
	if err := c.i.RecvPost(p); err != nil {
		return err
	}
	return c.finish(dies, p, c.i.RecvPoll)
}

func (c *conn) swapsOnce() error {
	in := packet(make([]byte, c.size()))
	if err := c.tryRecv(in); err != nil {
		return err
	}
	if err := c.sendsOnce(); err != nil {
		return err
	}
	return c.finish(dies, in, c.i.RecvPoll)
}

func (c *conn) waitsOnce() error {
	p := packet(make([]byte, c.size()))
	if err := c.tryRecv(p); err != nil {
		return err
	}
	ctx, cancel := c.e.bound()
	defer cancel()
	return c.i.(driver.RecvWaiter).RecvWait(ctx, p)
}

func (c *conn) waitsForAny() error {
	ctx, cancel := c.e.bound()
	defer cancel()
	i, err := c.e.ctx.(driver.Prober).RecvWaitAny(ctx)
	if err != nil {
		return err
	}
	if i != c.i {
		return nil // left by an earlier victim
	}
	return c.receivesOnce()
}

// region takes the victim's, unless it dies before it offers one.
func (c *conn) region() (reg driver.RemoteRegion, err error) {
	if c.reg != nil {
		return c.reg, nil
	}
	var key []byte
	c.e.until("key", func() bool {
		n, ok := c.l.try(c.ch)
		if ok {
			c.l.expect(n, "key", &key)
			return true
		}
		select {
		case <-c.l.gone:
			return true
		default:
			return false
		}
	})
	if key == nil {
		return nil, c.probeBroken()
	}
	c.reg, err = c.i.(driver.OneSided).Import(key)
	return c.reg, err
}

func (c *conn) oneSided(post func(*driver.Op) error, op *driver.Op) error {
	reg, err := c.region()
	if err != nil {
		return err
	}
	op.Remote = reg
	return c.do(post, op)
}

func (c *conn) putsOnce() error {
	b := make([]byte, min(1<<16, c.e.caps.OneSided.MaxPut))
	return c.oneSided(c.i.(driver.OneSided).PutPost, &driver.Op{Local: b})
}

func (c *conn) addsOnce() error {
	return c.oneSided(c.i.(driver.OneSided).AtomicPost, &driver.Op{Atomic: driver.Add, Size: 8, Operand: 1})
}

func (c *conn) flushesOnce() error {
	reg, err := c.region()
	if err != nil {
		return err
	}
	one := c.i.(driver.OneSided)
	op := &driver.Op{Local: make([]byte, 4096), Remote: reg}
	if err := one.PutPost(op); err != nil {
		return err
	}
	ctx, cancel := c.e.bound()
	defer cancel()
	ferr := one.Flush(ctx)
	if err := c.opErr(op); err != nil {
		return err
	}
	return ferr
}

// slack is what scheduling may add to a dead time.
const slack = 2 * time.Second

func (e *end) deadTime() time.Duration { return e.cfg.scale(e.caps.DeadTime) }

func checkDeath(e *end) {
	props := e.query().Properties()
	w, witness := e.pair(roleSurvivor, nil)
	rnd := e.rand(3)
	soak, _ := time.ParseDuration(os.Getenv(envSoak))
	start, n := time.Now(), e.cfg.Deaths
	if raceEnabled {
		n = max(10, n/5)
	}
	before := e.counters().BrokenPeers
	established := uint64(0)
	var took []time.Duration
	for k := 0; k < n || time.Since(start) < soak; k++ {
		a := k % len(acts)
		if need := acts[a].need; need != nil && !need(props) {
			continue
		}
		up, after := e.kills(a, rnd)
		if up {
			established++
		}
		took = append(took, after)
		w.sendNote("swap", k+1)
		witness.swaps(k + 1)
	}
	if got := e.counters().BrokenPeers - before; got < established {
		e.Errorf("counter of broken peers: %d after %d deaths", got, established)
	}
	w.sendNote("swap", 0)
	w.join()
	slices.Sort(took)
	e.Logf("%d deaths were noticed after %v (median), %v (99 %%), %v (all)",
		len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// roleSurvivor is a peer that lives on.
var roleSurvivor = role("survivor", func(e *end) {
	c := e.parent.connectPeer()
	for k := 1; ; {
		if e.parent.recvNote("swap", &k); k == 0 {
			return
		}
		c.swaps(k)
	}
})

// kills plays one act, kills the peer at a random moment, and checks how that
// shows. It reports whether the connection was established, and how long the
// death went unnoticed.
func (e *end) kills(a int, rnd *rand.Rand) (up bool, took time.Duration) {
	e.Helper()
	p := e.peer(roleVictim, map[string]any{"Act": a, "Seed": rnd.Uint64()})
	c := p.begin()
	delay := time.Duration(rnd.IntN(1 + rnd.IntN(8_000_000)))
	died := make(chan time.Time, 1)
	kill := func() {
		for until := time.Now().Add(delay); time.Now().Before(until); {
			runtime.Gosched()
		}
		p.signal(syscall.SIGKILL)
		died <- time.Now()
	}
	if acts[a].test == nil {
		go kill()
		err := waitFor(c.i, e.cfg.limit)
		if err == nil {
			err = c.probeBroken()
		}
		took = e.noticed(p, acts[a].name, err, died)
		_ = c.i.Disconnect()
		p.free()
		return false, took
	}
	c.waitUp()
	go kill()
	var err error
	e.until("a death is noticed in "+acts[a].name, func() bool {
		err = acts[a].test(c)
		return err != nil
	})
	took = e.noticed(p, acts[a].name, err, died)
	e.wantErr("post after a death in "+acts[a].name, c.i.RecvPost(packet(make([]byte, 8))), driver.ErrBroken)
	e.noErr("disconnect of a broken instance", c.i.Disconnect())
	p.free()
	return true, took
}

// noticed checks the error and returns the time for which a death went unnoticed.
func (e *end) noticed(p *peer, what string, err error, died <-chan time.Time) time.Duration {
	e.Helper()
	now := time.Now()
	at := <-died
	p.awaitExit()
	if errors.Is(err, context.DeadlineExceeded) {
		e.dumpf("%s: a death was not noticed within %v", what, e.cfg.limit)
	}
	e.wantErr(what+" with a peer that was killed", err, driver.ErrBroken)
	took := now.Sub(at)
	if most := e.deadTime() + e.cfg.scale(slack); took > most {
		e.Errorf("%s: a death was noticed after %v, dead time is %v", what, took, e.deadTime())
	}
	return max(took, 0)
}

func checkDeathIsolated(e *end) {
	var ps []*peer
	var cs []*conn
	for range 4 {
		p, c := e.pair(roleSurvivor, nil)
		ps, cs = append(ps, p), append(cs, c)
	}
	for dead := range 3 {
		ps[dead].kill()
		err := cs[dead].probeBroken()
		e.wantErr("receive from a peer that was killed", err, driver.ErrBroken)
		for k := dead + 1; k < len(ps); k++ {
			for r := range 10 {
				ps[k].sendNote("swap", r+1)
				cs[k].swaps(r + 1)
			}
		}
		e.noErr("disconnect of a broken instance", cs[dead].i.Disconnect())
	}
	ps[3].sendNote("swap", 0)
	ps[3].join()
}

// checkStopped stops a peer several times, each for less than the dead time: with BYWASH_SOAK ten times, for 0.8 of it. The
// last time, this side sends and disconnects meanwhile.
func checkStopped(e *end) {
	n, stops := e.times(200, 60), e.times(3, 2)
	if e.large {
		n = 20
	}
	soak := os.Getenv(envSoak) != ""
	if soak {
		n, stops = 200, 10
	}
	p, c := e.pair(roleStopped, n)
	stopTime := min(e.deadTime()/2, e.cfg.scale(300*time.Millisecond))
	if soak {
		stopTime = e.deadTime() * 8 / 10
	}
	for k := range n {
		if k%(n/stops) == n/stops/2 {
			p.pause(stopTime)
		}
		c.swap(c.size(), ofTest+uint64(k), ofPeer+uint64(k))
	}
	var last [lastMessages]*driver.Packet
	for k := range last {
		last[k] = packet(make([]byte, c.size()))
		fill(last[k].IOV[0], ofTest+uint64(k))
		c.takeRdv(last[k])
	}
	p.sync()
	p.pause(stopTime)
	for _, q := range last {
		e.noErr("send to a stopped peer", c.tryReady(q))
	}
	for _, q := range last {
		c.endSend(q)
	}
	c.leave()
	p.sync()
	p.join()
}

// lastMessages is how many are sent to a stopped peer before the end.
const lastMessages = 3

// pause stops the process for some time.
func (p *peer) pause(d time.Duration) {
	p.e.Helper()
	p.signal(sigStop)
	time.AfterFunc(d, func() { _ = p.cmd.Process.Signal(sigCont) })
	if f := p.e.cfg.Signal; f != nil {
		time.AfterFunc(d, func() { _ = f(p.cmd, p.pid, sigCont) })
	}
}

var roleStopped = role("stopped", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	for k := range n {
		c.swap(c.size(), ofPeer+uint64(k), ofTest+uint64(k))
	}
	var last [lastMessages]*driver.Packet
	for k := range last {
		last[k] = packet(make([]byte, c.size()))
		c.postRecv(last[k])
	}
	e.parent.sync()
	for k, q := range last {
		c.endRecv(q)
		if err := verify(q.IOV[0][:q.N], ofTest+uint64(k)); err != nil || q.N != c.size() {
			e.Fatalf("message %d, sent before the peer disconnected while this process was stopped: %d bytes, %v", k, q.N, err)
		}
	}
	q := packet(make([]byte, c.size()))
	err := c.i.RecvPost(q)
	if err == nil {
		err = c.recvErr(q)
	}
	e.wantErr("receive after the peer has disconnected", err, driver.ErrClosed)
	e.parent.sync()
})
