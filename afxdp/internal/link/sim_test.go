package link

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The simulated network: hosts with an endpoint each, and links that lose, repeat,
// damage, delay and reorder packets, by a seed.

// netConfig is what a network does to packets. Times are in ns.
type netConfig struct {
	loss, dup, damage float64
	reorder           float64 // share that is delayed by up to late more
	delay, jitter     Time
	late              Time
	rate              float64 // bytes/ns of each link's bottleneck; 0: infinite
	queue             int     // packets in front of it
	burst             float64 // chance that a packet begins a burst of losses
	burstTime         Time
	cutFrom, cutTo    Time // nothing passes
	mtu               int
	encrypt           bool
	window, frames    int
	slowTx            Time // how long a frame is being sent
	txRoom            int
	idle              Time // between the calls of a poller
	stallAt, stallFor Time // of host 1
	stallEvery        Time // each host stands still so often on average, at random times; 0: never
	stallLong         Time // for so long
	slow              Time // host 1 polls once in this time; 0: whenever there is something
	hole              int  // from holeFrom to holeTo, longer packets are lost; 0: none
	holeFrom, holeTo  Time // holeTo 0: never
	keyPackets        uint64
	sendFrames        int // of each host; default 1024 more than three windows
	longFrames        int // of each host; default 16
	unit              int // bytes in a frame of each host; 0: the MTU
	ends              [2]endConfig
}

// endConfig is what one of two hosts has for itself; zero: as in netConfig.
type endConfig struct {
	mtu, unit, window, frames int
	whole                     bool // it takes no parts
}

type simEvent struct {
	at   Time
	seq  uint64
	to   *simHost
	from int
	b    []byte // nil: poll the host
}

type simQueue []*simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(*simEvent)) }
func (q *simQueue) Pop() any {
	n := len(*q) - 1
	x := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	return x
}

type sim struct {
	t      testing.TB
	seed   uint64
	rnd    *rand.Rand
	w      netConfig
	now    Time
	seq    uint64
	queue  simQueue
	hosts  []*simHost
	bursts Time // until when all is lost
	// The bottleneck of each direction: link[from][to] or, if shared, that of the receiver.
	busy   map[int]Time
	shared bool
	lostN  int
	seldom int                          // f of run is called after so many events
	waits  []Time                       // if not nil: how long packets wait at a bottleneck
	spy    func(from, to int, b []byte) // sees all packets that are sent
}

func newSim(t testing.TB, seed uint64, w netConfig) *sim {
	return &sim{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), w: w, now: 1, busy: map[int]Time{}}
}

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d at %v: %s\n(replay: BYWASH_SEED=%d)", s.seed, time.Duration(s.now), fmt.Sprintf(format, args...), s.seed)
}

func (s *sim) push(ev *simEvent) {
	s.seq++
	ev.seq = s.seq
	heap.Push(&s.queue, ev)
}

// simHost is an endpoint with its carrier and its program.
type simHost struct {
	s      *sim
	n      int
	e      *Endpoint
	mem    [][]byte
	free   []uint64
	long   []uint64 // free ones for long packets
	shorts int      // frames below are for others
	end    endConfig
	busy   []Time // until when a frame is being sent
	back   []bool // Put came while it was
	lent   []bool
	txq    int
	going  []uint64 // being sent, in order
	pollAt Time
	conns  []*simConn
	reads  *rand.Rand
	far    Time         // of the way to it
	warp   func([]byte) // changes what arrives
	arrive uint64       // address of the packet being handled
	rxHeld int          // frames that hold packets that were kept
	maxRx  int

	stalls             *rand.Rand // when it stands still
	stallFrom, stallTo Time
}

// simConn is one side of a connection and what it shall send and receive.
type simConn struct {
	h    *simHost
	c    *Conn
	name int
	twin *simConn

	up     bool
	err    error
	out    []simMessage // to be sent, in order
	posted int          // bytes of out[0] posted
	places []*simTransfer

	expect  []simMessage // messages that the twin sends
	partial []byte
	gotMsgs int
	held    []heldFrame
	lazy    bool
	whole   int  // as many of held are of complete messages
	atEnd   bool // only they are released, and never fewer than four at a time

	expectPlaced map[uint64]*simTransfer
	placedDone   int      // at the receiver
	flood        bool     // it sends transfers without end, whose bytes are only counted
	flooded      uint64   // bytes that arrived
	tide         Transfer // of a flood
	sentDone     int      // acknowledged
	closed       bool
	gone         bool   // reported after closed
	stuck        bool   // nothing is released
	closeIn      string // the handler's method that closes
	closeAfter   int    // calls of it
}

type heldFrame struct{ id uint64 }

type simMessage struct {
	seed uint64
	n    int
}

type simTransfer struct {
	Transfer
	seed uint64
	got  uint64
	seen map[uint64]bool
}

func pattern(seed, off uint64) byte { return byte((seed+off)*0x9e3779b97f4a7c15>>56) ^ byte(off) }

type simReader struct{ r *rand.Rand }

func (r simReader) Read(b []byte) (int, error) {
	for k := range b {
		b[k] = byte(r.r.Uint32())
	}
	return len(b), nil
}

func (s *sim) addHost(cfg Config) *simHost {
	h := &simHost{s: s, n: len(s.hosts), reads: rand.New(rand.NewPCG(s.seed, uint64(100+len(s.hosts))))}
	setDefault(&cfg.ID, uint64(1000+h.n))
	if cfg.Secret == nil {
		cfg.Secret = []byte("the secret of all")
	}
	cfg.MTU, cfg.Window, cfg.frames, cfg.Encrypt = s.w.mtu, s.w.window, s.w.frames, s.w.encrypt || cfg.Encrypt
	cfg.Unit = s.w.unit
	if h.n < len(s.w.ends) {
		h.end = s.w.ends[h.n]
	}
	for _, x := range []struct{ of, is *int }{
		{&cfg.MTU, &h.end.mtu}, {&cfg.Unit, &h.end.unit}, {&cfg.Window, &h.end.window}, {&cfg.frames, &h.end.frames},
	} {
		if *x.is != 0 {
			*x.of = *x.is
		}
	}
	cfg.Address, cfg.Sole = addressOf(h.n), true
	cfg.rand, cfg.keyPackets = simReader{h.reads}, s.w.keyPackets
	var err error
	if h.e, err = NewEndpoint(cfg, h, h); err != nil {
		s.t.Fatal(err)
	}
	n := s.w.sendFrames
	setDefault(&n, 1024+3*h.e.cfg.Window) // the windows of three connections take some, and sealing one more
	for k := range n {
		h.mem = append(h.mem, make([]byte, h.e.cfg.Unit))
		h.free = append(h.free, uint64(k))
	}
	h.shorts = n
	if h.e.cfg.MTU > h.e.cfg.Unit {
		more := s.w.longFrames
		setDefault(&more, 16)
		for k := range more {
			h.mem = append(h.mem, make([]byte, h.e.cfg.MTU))
			h.long = append(h.long, uint64(n+k))
		}
		n += more
	}
	h.busy, h.back, h.lent = make([]Time, n), make([]bool, n), make([]bool, n)
	s.hosts = append(s.hosts, h)
	return h
}

// wireBytes are what a packet takes besides its own.
const wireBytes = 50

// carry takes a packet over the network.
func (s *sim) carry(from, to int, p []byte) {
	w := &s.w
	if s.spy != nil {
		s.spy(from, to, p)
	}
	if s.now >= w.cutFrom && s.now < w.cutTo || w.hole > 0 && s.now >= w.holeFrom && (w.holeTo == 0 || s.now < w.holeTo) && len(p) > w.hole {
		return
	}
	copies := 1
	if w.burst > 0 && s.rnd.Float64() < w.burst {
		s.bursts = s.now + Time(s.rnd.Int64N(int64(w.burstTime)))
	}
	if s.now < s.bursts {
		copies = 0
	}
	if s.rnd.Float64() < w.loss {
		copies = 0
	}
	if copies == 1 && s.rnd.Float64() < w.dup {
		copies = 2
	}
	if copies == 0 {
		s.lostN++
	}
	for range copies {
		at := s.now + w.delay + s.hosts[from].far + s.hosts[to].far
		if w.jitter > 0 {
			at += Time(s.rnd.Int64N(int64(w.jitter)))
		}
		if w.rate > 0 {
			key := from<<16 | to
			if s.shared {
				key = to
			}
			begin := max(s.now, s.busy[key])
			if float64(begin-s.now)*w.rate > float64(w.queue*w.mtu) {
				s.lostN++
				continue
			}
			if s.waits != nil {
				s.waits = append(s.waits, begin-s.now)
			}
			s.busy[key] = begin + Time(float64(len(p)+wireBytes)/w.rate)
			at += s.busy[key] - s.now
		}
		if w.reorder > 0 && s.rnd.Float64() < w.reorder {
			at += Time(s.rnd.Int64N(int64(w.late)))
		}
		b := append(make([]byte, 0, max(len(p), s.hosts[to].e.cfg.Unit)), p...) // a frame has room for a unit
		if w.damage > 0 && s.rnd.Float64() < w.damage {
			switch k := s.rnd.IntN(len(b)); s.rnd.IntN(3) {
			case 0:
				b[k] ^= 1 << s.rnd.IntN(8)
			case 1:
				b = b[:k]
			default:
				b = append(b, byte(k))
			}
		}
		s.push(&simEvent{at: at, to: s.hosts[to], from: from, b: b})
	}
}

func (h *simHost) poll(at Time) {
	if h.pollAt == 0 || at < h.pollAt {
		h.pollAt = at
		h.s.push(&simEvent{at: at, to: h})
	}
}

// run goes on until f returns true, or fails at the limit.
func (s *sim) run(limit Time, f func() bool) {
	s.t.Helper()
	for n := 0; ; n++ {
		if n%max(s.seldom, 1) == 0 && f() {
			return
		}
		if s.now > limit || len(s.queue) == 0 {
			if f() {
				return
			}
			s.fail("not done by %v: %s", time.Duration(limit), s.state())
		}
		ev := heap.Pop(&s.queue).(*simEvent)
		h := ev.to
		if wakes := h.stalled(ev.at); wakes > ev.at {
			if ev.b == nil && h.pollAt == ev.at {
				h.pollAt = 0
			}
			ev.at = wakes // it finds all that then
			if ev.b == nil {
				h.poll(ev.at)
			} else {
				s.push(ev)
			}
			continue
		}
		s.now = max(s.now, ev.at)
		if ev.b != nil {
			h.receive(ev)
		} else if h.pollAt != ev.at {
			continue
		} else {
			h.pollAt = 0
		}
		h.work()
	}
}

// stalled returns when the host goes on, if it stands still at that time, else 0.
func (h *simHost) stalled(at Time) Time {
	w := &h.s.w
	if h.n == 1 && w.stallFor > 0 && at >= w.stallAt && at < w.stallAt+w.stallFor {
		return w.stallAt + w.stallFor
	}
	if h.n == 1 && w.slow > 0 && at%w.slow != 0 {
		return at - at%w.slow + w.slow
	}
	if w.stallEvery == 0 {
		return 0
	}
	if h.stalls == nil {
		h.stalls = rand.New(rand.NewPCG(h.s.seed, uint64(1000+h.n)))
	}
	for at >= h.stallTo {
		h.stallFrom = h.stallTo + Time(h.stalls.ExpFloat64()*float64(w.stallEvery))
		h.stallTo = h.stallFrom + w.stallLong
	}
	if at < h.stallFrom {
		return 0
	}
	return h.stallTo
}

func (h *simHost) receive(ev *simEvent) {
	s := h.s
	h.arrive = uint64(ev.from)
	if h.warp != nil {
		h.warp(ev.b)
	}
	h.rxHeld++
	from := binary.LittleEndian.AppendUint64(nil, uint64(ev.from))
	if len(ev.b) > h.e.cfg.Unit { // in frames of at least a unit
		h.rxHeld--
		var pieces [][]byte
		for b := ev.b; len(b) > 0; {
			n := min(len(b), h.e.cfg.Unit+s.rnd.IntN(50))
			pieces, b = append(pieces, b[:n:n]), b[n:]
		}
		h.e.InputPieces(s.now, pieces[0], pieces[1:])
		return
	}
	kept := h.e.Input(s.now, from, Frame{ID: rxIDs + s.seq, Data: ev.b})
	if !kept {
		h.rxHeld--
	}
	h.maxRx = max(h.maxRx, h.rxHeld)
}

// bounds checks what holds of credit at any time.
func (h *simHost) bounds() {
	for _, x := range h.conns {
		c := x.c
		if !c.Up() || x.twin.c == nil {
			continue
		}
		if c.arrived > c.granted || c.consumed > c.arrived || uint64(c.reserved) < c.granted-c.consumed || c.sender.sent > c.limit {
			h.s.fail("conn %d: %d units arrived, %d consumed, %d granted, %d reserved; %d sent, limit %d", x.name, c.arrived, c.consumed, c.granted,
				c.reserved, c.sender.sent, c.limit)
		}
		if c.end-c.una > uint64(x.twin.h.e.cfg.Window) {
			h.s.fail("conn %d: %d fragments under way, the peer's window is %d", x.name, c.end-c.una, x.twin.h.e.cfg.Window)
		}
	}
	if h.e.pool.spare < 0 {
		h.s.fail("host %d: %d frames more than there are have credit", h.n, -h.e.pool.spare)
	}
}

// work is the host's program: it posts, releases, and calls what is due.
func (h *simHost) work() {
	s := h.s
	for _, x := range h.conns {
		x.work()
	}
	h.e.Flush(s.now)
	if h.e.Next() <= s.now {
		h.e.Tick(s.now)
	}
	h.bounds()
	if h.rxHeld > h.e.cfg.frames {
		s.fail("host %d holds %d frames, its credit is for %d", h.n, h.rxHeld, h.e.cfg.frames)
	}
	next := h.e.Next()
	if len(h.e.touch) > 0 || h.wants() {
		next = min(next, s.now+max(s.w.idle, 1000))
	}
	if next != never {
		h.poll(max(next, s.now+1))
	}
}

func (h *simHost) wants() bool {
	for _, x := range h.conns {
		if len(x.held) > 0 || x.up && x.err == nil && !x.closed && len(x.out) > 0 {
			return true
		}
	}
	return false
}

func (x *simConn) work() {
	s := x.h.s
	n := len(x.held)
	if x.atEnd {
		if n = x.whole; n < 4 {
			n = 0
		}
		x.whole -= n
	}
	for ; n > 0 && !x.stuck && (!x.lazy || s.rnd.IntN(4) == 0); n-- {
		x.c.Release(x.held[0].id)
		x.held = x.held[1:]
	}
	if !x.up || x.err != nil || x.closed {
		return
	}
	for len(x.out) > 0 && x.c.Room() > 0 {
		m := &x.out[0]
		f, ok := x.h.Get()
		if !ok {
			return
		}
		n := min(m.n-x.posted, x.c.MaxFragment())
		for k := range n {
			f.Data[HeaderSize+k] = pattern(m.seed, uint64(x.posted+k))
		}
		x.posted += n
		x.c.Post(s.now, f, n, x.posted < m.n)
		if x.posted == m.n {
			x.out, x.posted = x.out[1:], 0
		}
	}
	for _, t := range x.places {
		x.c.Start(s.now, &t.Transfer)
	}
	x.places = nil
}

// connect makes a connection between two hosts; a dials.
func (s *sim) connect(a, b int) (x, y *simConn) {
	x = &simConn{h: s.hosts[a], name: 2 * len(s.hosts[a].conns), expectPlaced: map[uint64]*simTransfer{}}
	y = &simConn{h: s.hosts[b], name: 2*len(s.hosts[a].conns) + 1, expectPlaced: map[uint64]*simTransfer{}, twin: x}
	x.twin = y
	var err error
	if x.c, err = x.h.e.Dial(s.now, Route(b+1), uint64(1000+b), []byte{1, 2, 3}, x); err == nil {
		y.c, err = y.h.e.Listen(s.now, Route(a+1), uint64(1000+a), []byte{4}, y)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, z := range []*simConn{x, y} {
		if z.h.end.whole {
			z.c.mine.options &^= optParts
		}
	}
	x.h.conns, y.h.conns = append(x.h.conns, x), append(y.h.conns, y)
	x.h.poll(s.now)
	y.h.poll(s.now)
	return x, y
}

// load gives a side messages and transfers to send.
func (x *simConn) load(messages, transfers, longest int) {
	r := x.h.s.rnd
	for range messages {
		m := simMessage{r.Uint64(), r.IntN(longest)}
		if r.IntN(3) > 0 {
			m.n = r.IntN(100)
		}
		x.out, x.twin.expect = append(x.out, m), append(x.twin.expect, m)
	}
	for k := range transfers {
		t := &simTransfer{seed: r.Uint64(), seen: map[uint64]bool{}}
		t.Tag, t.Len = uint64(k), uint64(r.IntN(8*longest))
		t.Total = t.Len
		t.User = t.seed
		x.places = append(x.places, t)
		copied := *t
		x.twin.expectPlaced[t.Tag] = &copied
	}
}

func (x *simConn) done() bool {
	t := x.twin
	return x.err != nil || t.err != nil ||
		x.up && len(x.out) == 0 && t.gotMsgs == len(t.expect) && x.sentDone == len(t.expectPlaced) && x.c.Unacknowledged() == 0
}

func (s *sim) each(f func(*simConn)) {
	for _, h := range s.hosts {
		for _, x := range h.conns {
			f(x)
		}
	}
}

func (s *sim) state() string {
	out := ""
	s.each(func(x *simConn) {
		c := x.c
		out += fmt.Sprintf("\n  conn %d of host %d: up %v err %v state %d, %d to post, %d of %d messages, %d of %d transfers; una %d next %d end %d limit %d "+
			"inflight %d lost %d cwnd %.1f srtt %v; cum %d top %d granted %d consumed %d; due %v",
			x.name, x.h.n, x.up, x.err, c.state, len(x.out), x.gotMsgs, len(x.expect), x.placedDone, len(x.expectPlaced), c.una, c.next, c.sender.end,
			c.limit, c.inflight, c.lost, c.cwnd, c.srtt, c.cum, c.top, c.granted, c.consumed, time.Duration(c.due))
	})
	return out
}

// finish closes all connections on one side and checks that nothing is left over.
func (s *sim) finish() {
	s.w.loss, s.w.burst, s.w.damage, s.w.stallFor = min(s.w.loss, 0.2), 0, 0, 0
	s.each(func(x *simConn) {
		if x.err == nil && x.twin.err == nil && !x.closed && !x.twin.closed {
			x.c.Close(s.now, false)
			x.closed = true
			x.h.poll(s.now)
		}
	})
	dead := Time(s.hosts[0].e.cfg.DeadTime)
	s.run(s.now+3*dead, func() bool {
		for _, h := range s.hosts {
			if h.e.Conns() > 0 {
				return false
			}
		}
		return true
	})
	s.each(func(x *simConn) {
		if x.err != nil && !errors.Is(x.err, ErrClosed) {
			s.fail("conn %d ended with %v, want %v", x.name, x.err, ErrClosed)
		}
	})
	s.leftovers()
}

// leftovers checks that nothing is left over once all connections have ended.
func (s *sim) leftovers() {
	s.t.Helper()
	s.each(func(x *simConn) {
		for _, f := range x.held {
			x.c.Release(f.id)
		}
		x.held = nil
		if x.up && x.closed && !x.gone {
			s.fail("conn %d is closed, and not reported as gone", x.name)
		}
	})
	s.now += 1e9
	for _, h := range s.hosts {
		h.reap()
		if h.rxHeld != 0 || len(h.free)+len(h.long) != len(h.mem) {
			s.fail("host %d: %d arrived frames and %d others are not given back", h.n, h.rxHeld, len(h.mem)-len(h.free)-len(h.long))
		}
		if h.e.pool.spare != h.e.cfg.frames {
			s.fail("host %d: credit for %d frames is lost", h.n, h.e.cfg.frames-h.e.pool.spare)
		}
		if len(h.e.peers)+len(h.e.remote)+len(h.e.timers) != 0 {
			s.fail("host %d remembers %d peers, %d ids, %d timers", h.n, len(h.e.peers), len(h.e.remote), len(h.e.timers))
		}
	}
}
