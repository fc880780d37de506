//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// sim is two machines, their users' queue pairs, a network and a clock. All
// chance comes from one seed.
type sim struct {
	t    testing.TB
	seed uint64
	rng  *rand.Rand
	now  time.Duration
	todo agenda
	n    int // events so far
	side [2]*simSide
	cfg  simConfig

	epoch   int // of the newest link
	cut     int // links up to this one are dead, and their messages are lost
	dialing bool
	cutOff  bool // nothing gets through, and no error is reported
	hang    bool // work on queue pairs never ends
	sent    int
	trace   []string
}

type simConfig struct {
	cut       float64       // chance of the link at a message
	delay     time.Duration // longest
	work      time.Duration // longest time of moving queue pairs
	timeout   time.Duration
	stepFails float64
}

type simSide struct {
	m    *machine
	ends []*simEnd // all there ever were
	dead bool
	ids  uint64

	link  int           // whose epoch; 0: none
	after time.Duration // messages arrive in order, and not before this time
}

type simEnd struct {
	*end
	moved    step // highest reached
	begun    bool
	posted   bool
	deferred bool
	state    State // as reported
	atReady  []time.Duration
}

type event struct {
	at time.Duration
	n  int
	do func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, k int) bool {
	return a[i].at < a[k].at || a[i].at == a[k].at && a[i].n < a[k].n
}
func (a agenda) Swap(i, k int) { a[i], a[k] = a[k], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	x := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return x
}

func newSim(t testing.TB, seed uint64, cfg simConfig) *sim {
	t.Helper()
	onHost(t)
	if cfg.timeout == 0 {
		cfg.timeout = 5 * time.Second
	}
	s := &sim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), cfg: cfg}
	for k := range s.side {
		w := &simSide{}
		w.ids = s.rng.Uint64N(1000) // ids of both sides differ, or not
		w.m = &machine{self: uint64(1 + k), peer: uint64(2 - k), nextID: func() uint64 { w.ids++; return w.ids }}
		s.side[k] = w
	}
	return s
}

func (s *sim) at(d time.Duration, do func()) {
	s.n++
	heap.Push(&s.todo, event{s.now + d, s.n, do})
}

func (s *sim) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(s.rng.Int64N(int64(d)))
}

func (s *sim) log(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%12v ", s.now)+fmt.Sprintf(format, args...))
	if len(s.trace) > 400 {
		s.trace = s.trace[1:]
	}
}

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	for _, l := range s.trace {
		s.t.Log(l)
	}
	s.t.Fatalf("seed %d at %v: "+format, append([]any{s.seed, s.now}, args...)...)
}

// endOf makes an end of side k with unique user data.
func (s *sim) endOf(k int, deferred bool) *simEnd {
	w := s.side[k]
	e := &simEnd{end: &end{target: "there", timeout: s.cfg.timeout, clear: !deferred, cts: deferred, offer: anOffer()}, deferred: deferred}
	e.offer.user = []byte{byte(k), byte(len(w.ends))}
	e.offer.qps[0] = qpOffer{uint32(k<<8 + len(w.ends)), uint32(s.rng.Uint64N(1 << 24))}
	e.end.user = e
	w.ends = append(w.ends, e)
	w.m.add(e.end, s.now)
	s.log("%d: add end %d", k, e.id)
	s.carryOut(k)
	return e
}

func anOffer() offer {
	return offer{linkLayer: Ethernet, gidType: GIDRoCEv2, mtu: 3, responder: 16, initiator: 16, pkey: 0xffff, n: 1,
		gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}}
}

func (s *sim) start(k int, e *simEnd) {
	s.side[k].m.start(e.end, s.now)
	s.log("%d: start end %d", k, e.id)
	s.carryOut(k)
}

func (s *sim) finalize(k int, e *simEnd) {
	s.log("%d: finalize end %d in state %v", k, e.id, e.end.state)
	s.side[k].m.finalize(e.end)
	s.carryOut(k)
}

func (s *sim) clear(k int, e *simEnd) {
	e.posted = true
	s.side[k].m.clearToSend(e.end)
	s.carryOut(k)
}

// kill ends a process: its kernel notifies the other side.
func (s *sim) kill(k int) {
	s.log("%d: dies", k)
	s.side[k].dead = true
	s.cutLink()
}

// up reports whether there is a link that is not dead.
func (s *sim) up() bool { return s.epoch > s.cut }

// cutLink ends the link; each side notices in its own time.
func (s *sim) cutLink() {
	if !s.up() {
		return
	}
	s.cut = s.epoch
	s.log("link down")
	for k, w := range s.side {
		s.at(s.upTo(10*time.Millisecond), func() {
			if !w.dead && w.link != 0 && w.link <= s.cut {
				w.link = 0
				w.m.linkDown(s.now)
				s.carryOut(k)
			}
		})
	}
}

// carryOut does what a machine wants.
func (s *sim) carryOut(k int) {
	w := s.side[k]
	if w.dead {
		w.m.take(s.now)
		return
	}
	for _, a := range w.m.take(s.now) {
		switch a.kind {
		case actSend:
			s.transmit(k, &a.msg)
		case actWork:
			s.work(k, a)
		case actState:
			s.report(k, a.end)
		}
	}
	s.dial()
	if at, ok := w.m.next(); ok {
		s.at(max(at-s.now, 0), func() {
			if at, ok := w.m.next(); ok && at <= s.now && !w.dead {
				w.m.tick(s.now)
				s.carryOut(k)
			}
		})
	}
}

func (s *sim) dial() {
	wanted := false
	for _, w := range s.side {
		wanted = wanted || !w.dead && len(w.m.targets()) > 0
	}
	if s.up() || s.dialing || !wanted {
		return
	}
	s.dialing = true
	s.at(time.Millisecond+s.upTo(50*time.Millisecond), func() {
		s.dialing = false
		dead := s.side[0].dead || s.side[1].dead
		if !dead && !s.cutOff {
			s.epoch++
			s.log("link %d up", s.epoch)
			first := s.rng.IntN(2) // the listener
			epoch, later := s.epoch, s.upTo(20*time.Millisecond)
			s.side[1-first].after = s.now + later
			s.at(later, func() { s.join(1-first, epoch) })
			s.join(first, epoch)
			return
		}
		for k, w := range s.side {
			switch {
			case w.dead:
				continue
			case s.cutOff:
				w.m.noLink("there", errTimedOut, false)
			default:
				w.m.noLink("there", fmt.Errorf("%w: connection refused", driver.ErrBroken), true)
			}
			s.carryOut(k)
		}
	})
}

// join gives a side its end of a new link.
func (s *sim) join(k, epoch int) {
	w := s.side[k]
	if w.dead || epoch <= s.cut {
		return
	}
	if w.link != 0 {
		w.m.linkDown(s.now)
	}
	w.link = epoch
	w.m.linkUp(s.now)
	s.carryOut(k)
}

func (s *sim) transmit(k int, msg *message) {
	s.sent++
	b := msg.append(nil)
	if len(b) > maxPayload {
		s.fail("message of %d bytes, limit is %d", len(b), maxPayload)
	}
	s.log("%d: sends kind %d flags %d from %d to %d", k, msg.kind, msg.flags, msg.from, msg.to)
	epoch, w := s.side[k].link, s.side[1-k]
	w.after = max(w.after, s.now+s.upTo(s.cfg.delay))
	s.at(w.after-s.now, func() {
		if epoch <= s.cut || w.link != epoch || w.dead {
			return
		}
		var in message
		if err := in.parse(b); err != nil {
			s.fail("message % x of a machine: %v", b, err)
		}
		if err := w.m.receive(&in, s.now); err != nil {
			s.fail("message %+v of a machine: %v", in, err)
		}
		s.carryOut(1 - k)
	})
	if s.rng.Float64() < s.cfg.cut {
		s.cutLink()
	}
}

// work moves queue pairs, which takes its time.
func (s *sim) work(k int, a action) {
	e := a.end.user.(*simEnd)
	if a.first != stepRTS && e.begun || a.first == stepRTS && (!e.begun || e.moved != stepRTR) || s.side[k].m.asks() == (a.first == stepInit && a.last == stepRTS) {
		s.fail("side %d end %d: steps %d to %d after step %d", k, e.id, a.first, a.last, e.moved)
	}
	var err *stepError
	if s.rng.Float64() < s.cfg.stepFails {
		err = &stepError{step: a.last, err: syscall.ETIMEDOUT}
	}
	s.at(s.upTo(s.cfg.work), func() {
		if s.side[k].dead || s.hang {
			return
		}
		e.begun = true
		if err == nil {
			e.moved = a.last
			e.posted = e.posted || !e.deferred
		}
		s.side[k].m.done(a.end, err, s.now)
		s.carryOut(k)
	})
}

// report checks what must hold when an end changes its state.
func (s *sim) report(k int, x *end) {
	e := x.user.(*simEnd)
	was := e.state
	e.state = x.state.public()
	s.log("%d: end %d is %v (%v)", k, x.id, e.state, x.err)
	if e.state < was {
		s.fail("side %d end %d: %v after %v", k, x.id, e.state, was)
	}
	if (e.state == Failed || e.state == Lost) != (x.err != nil) && e.state != Finalized {
		s.fail("side %d end %d: %v with error %v", k, x.id, e.state, x.err)
	}
	if e.state != Ready {
		return
	}
	e.atReady = append(e.atReady, s.now)
	p := s.partner(k, e)
	switch {
	case p == nil:
		s.fail("side %d end %d is ready with end %d, which there is not", k, x.id, x.peerID)
	case p.peerID != x.id:
		s.fail("side %d end %d is ready with end %d, which has met %d", k, x.id, x.peerID, p.peerID)
	case e.moved != stepRTS || !p.begun || p.moved < stepRTR || !p.posted:
		s.fail("side %d end %d is ready; own step %d, peer's %d, peer's receives posted: %v", k, x.id, e.moved, p.moved, p.posted)
	case !bytes.Equal(x.remote.user, p.offer.user) || x.remote.qps != p.offer.qps:
		s.fail("side %d end %d: knows %+v of %+v", k, x.id, x.remote, p.offer)
	}
}

func (s *sim) partner(k int, e *simEnd) *simEnd {
	for _, p := range s.side[1-k].ends {
		if p.id == e.peerID {
			return p
		}
	}
	return nil
}

// run goes on for d, and at most so many events.
func (s *sim) run(d time.Duration) {
	s.t.Helper()
	until := s.now + d
	for events := 0; s.todo.Len() > 0 && s.todo[0].at <= until; events++ {
		if events > 200000 {
			s.fail("does not come to rest")
		}
		e := heap.Pop(&s.todo).(event)
		s.now = e.at
		e.do()
	}
	s.now = until
}

// step does one event; false if there is none.
func (s *sim) step() bool {
	if s.todo.Len() == 0 {
		return false
	}
	e := heap.Pop(&s.todo).(event)
	s.now = e.at
	e.do()
	return true
}

// all reports whether each end of a side that was not finalized is in that state.
func (s *sim) all(k int, want ...State) *simEnd {
	for _, e := range s.side[k].ends {
		ok := e.state == Finalized
		for _, w := range want {
			ok = ok || e.state == w
		}
		if !ok {
			return e
		}
	}
	return nil
}

func (s *sim) mustAll(k int, want ...State) {
	s.t.Helper()
	if e := s.all(k, want...); e != nil {
		s.fail("side %d end %d is %v (%v), want %v", k, e.id, e.end.state, e.err, want)
	}
}

// quiet checks that nothing more is sent.
func (s *sim) quiet() {
	s.t.Helper()
	s.run(60 * time.Second)
	before := s.sent
	s.run(time.Hour)
	if s.sent != before {
		s.fail("%d messages in an hour in which nothing happened", s.sent-before)
	}
}

var errTimedOut = syscall.ETIMEDOUT
