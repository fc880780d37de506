package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/match"
	"github.com/bywash/bywash/session/internal/rdv"
)

// gateState is where a gate is in its life.
type gateState uint8

const (
	gateIdle       gateState = iota // not connected
	gateConnecting                  // messages wait in the backlog
	gateUp
	gateClosing // one side has asked to close; pending operations are still finished
	gateBroken  // nothing is left; Disconnect makes it idle
)

var gateStates = [...]string{"idle", "connecting", "up", "closing", "broken"}

// Gate is the way to one peer: see the package comment. Its methods may be called from any goroutine.
type Gate struct {
	s          *Session
	rank       int    // -1: of another session
	index      uint32 // as a source of messages
	foreign    *card
	card       *card // of the last connection that stood
	state      gateState
	err        error // why broken
	broke      error // of a rail of this connection that is lost
	links      []*link
	lead       *link // carries short messages
	clear      bool  // and takes them now
	handling   bool  // a handler of its active messages runs
	handler    handlerWatch
	relay      trail
	pausing    pauseState
	pauseHeard bool
	postponed  []postponed
	ins        *incoming        // long messages that arrive
	rts        map[uint64]*kept // requests to send long ones that nobody has received, by the peer's numbers
	probed     []*kept          // long messages that Improbe has given, and nobody has received
	giveUp     func()           // ends the attempt to connect
	abandoned  bool             // by giveUp
	finishing  bool             // a connection ends in order
	peerLeft   bool             // the peer's session has closed this connection because it ends; there was none since
	forgotten  bool             // by Forget
	awaited    int              // callers of ConnectWait
	stood      uint64           // connections that came about
	peerEra    uint32
	dials      uint64 // connections that were begun here
	lastDial   uint64 // Session.dials, as of the last of them
	dialed     uint64 // and by the peer, as of the last one that stood
	why        []Choice
	backlog    parcelQueue // for the connection that stands or is being made
	later      parcelQueue // for the one after it
	actives    parcelQueue // active messages that wait for longOut
	longOut    *outgoing   // the long active message that is under way, or is to leave
	longIn     int         // long active messages of the peer that have memory here
	due        *kept       // long active messages that have come while a handler ran
	beyond     int         // less than 0: bytes that were kept beyond the budget, of one connection
	listed     bool        // in Session.busy
	leaving    bool        // Disconnect was called
	leaveNext  bool        // and again, for the connection after this one
	leaveSent  bool
	leaveSeen  bool
	soonSent   bool // a Leave that only tells the wish
	soonSeen   bool
	byeSent    bool
	byeSeen    bool
	lingering  int    // links of connections before, which drivers have not let go of
	dialLater  bool   // when they have
	ops        int    // one-sided operations under way
	fences     []int  // of them, how many begin before each fence that is waited for, and after the last
	fence      uint64 // the number of the first of those
	asked      int    // operations by message that the peer has not answered
	live       int    // long messages, acknowledgements and operations under way

	// Queues that go before the backlog, in this order; see push.
	replay      parcelQueue // copies of messages that go again over another rail
	door        *parcel     // the first answer, for which the driver had no room
	answers     answers
	control     parcelQueue // of messages under way: requests for chunks, fragments
	nextAnswers answers     // for the connection after a pause

	// The costs of this gate; see debt.go and kept.go.
	debt      int // bytes
	syncs     int // synchronous messages that the peer has not acknowledged
	longs     int // long messages that it has not received
	keptN     int // messages that nobody has received
	keptBytes int
	resuming  bool // in Session.resumed
}

// link is one rail of a gate.
type link struct {
	g       *Gate
	nic     *nic
	card    *card // the peer's
	rail    uint8 // by number in the gate: the same at both ends
	peer    uint8 // the number of the peer's rail
	small   driver.BufferReceiver
	large   driver.Instance // nil: none
	one     driver.OneSided // nil: none
	rp      driver.Packet
	sending parcelQueue // in the driver's hands
	hailed  bool        // Hello was sent
	pieces  int         // on the large track, or one-sided
	eager   int         // longest packet
	greeted bool
	held    bool // the driver's buffer is out: a handler runs, or the message is beyond the budget
	stalls  stallWatch
	last    bool // the peer is gone: only messages that lie in the driver still come
	beyond  bool // some of that was kept beyond the budget
	now     Active
	dead    bool
	end     error // of what was still in the driver's hands; nil: copies are kept
	lingers bool  // dead, and in Session.dying
	buried  bool
}

// Rank returns the peer's rank, or -1 for a process of another session.
func (g *Gate) Rank() int { return g.rank }

// Session returns the session of the gate.
func (g *Gate) Session() *Session { return g.s }

// Err returns why the gate is broken, or nil if it is not. Disconnect makes a broken gate usable again, and Err nil; after
// Forget it is ErrClosed.
func (g *Gate) Err() error {
	g.s.mu.lock()
	defer g.s.leave()
	return g.err
}

// Connect starts to connect the gate and does not wait, so that the first message finds a connection. The peer need not
// call anything.
func (g *Gate) Connect() {
	g.s.mu.lock()
	defer g.s.leave()
	if g.state == gateIdle && !g.s.closed {
		g.connect()
	}
}

// ConnectWait connects the gate and blocks until it is connected, connecting has failed, or ctx ends. It fails with
// ErrClosed if the peer has closed its session and with ErrBroken if the peer has died; the gate is then broken.
func (g *Gate) ConnectWait(ctx context.Context) error {
	s := g.s
	s.mu.lock()
	before := g.stood
	if g.awaited++; g.state == gateIdle && !s.closed {
		g.connect()
	}
	s.leave()
	err := s.await(ctx, func() bool {
		switch {
		case g.stood != before, s.closed: // it may have been closed again
			return true
		case g.state == gateIdle:
			return !s.quiet // Disconnect was called meanwhile
		}
		return g.state == gateUp || g.state == gateBroken
	})
	s.mu.lock()
	defer s.leave()
	g.awaited--
	switch {
	case err != nil:
		return g.fault("connect", err)
	case g.stood != before || g.state == gateUp:
		return nil
	case g.state == gateBroken:
		return g.err
	}
	return g.fault("connect", ErrClosed)
}

// Disconnect closes the gate in order and never blocks. Pending sends of both sides are finished first, in the
// background or in Progress. Long and synchronous messages stay pending until the receiver has matched them or closes
// as well; messages that it has not begun to receive by then fail with ErrClosed on both sides. A synchronous message
// that had arrived can still be received. Receives from the peer that were posted before both sides had closed fail
// with ErrClosed. Messages that are sent meanwhile go over a new connection. Disconnect makes a broken gate usable
// again.
func (g *Gate) Disconnect() {
	g.s.mu.lock()
	defer g.s.leave()
	switch g.state {
	case gateConnecting, gateUp, gateClosing:
		if g.later.n > 0 {
			g.leaveNext = true
		}
		g.leaving = true
		g.work()
		g.tryClose()
	case gateBroken:
		if g.forgotten {
			return
		}
		g.state, g.err, g.leaving = gateIdle, nil, false
		g.s.kickAnswerer()
	}
}

// down ends a link that is broken or was closed by the peer.
func (l *link) down(err error) {
	if l.dead {
		return
	}
	g := l.g
	if g.byeSeen && g.byeSent && errors.Is(err, ErrClosed) {
		g.finish()
		return
	}
	if g.others(l) {
		l.lost(err)
		return
	}
	if g.broke != nil && errors.Is(err, ErrClosed) {
		err = g.broke // a process that dies may have closed a rail before
	}
	g.fail(g.fault("connection", err))
}

// others reports whether the gate has a rail besides.
func (g *Gate) others(l *link) bool {
	for _, x := range g.links {
		if x != l && !x.dead {
			return true
		}
	}
	return false
}

// lost removes a rail while there are others, which carry its messages from then on.
func (l *link) lost(err error) {
	g, s := l.g, l.g.s
	l.dead = true
	if !errors.Is(err, ErrClosed) {
		g.broke = err
	}
	// First, as the other rail may turn out to be lost when messages move there, and that is told, too.
	if f := s.cfg.OnError; f != nil && !errors.Is(err, ErrClosed) {
		e := &Error{Peer: g.rank, Gate: g, Op: "rail " + l.nic.Driver, Err: err, NonFatal: true}
		s.calls = append(s.calls, func() { f(e) })
	}
	for in := g.ins; in != nil; in = in.after {
		if in.mode != rdv.Null {
			in.Lost(l.rail)
		}
	}
	// The peer, which gives the rail up as well, will send nothing there.
	for _, pc := range s.pieces {
		if pc.l == l && pc.kind == pieceRecv && pc.posted {
			_ = l.large.RecvCancel(&pc.p)
		}
	}
	s.bury(l)
	g.passOn(l)
}

// fail ends a gate whose connection is lost, or did not come about.
func (g *Gate) fail(err error) {
	s := g.s
	if g.state == gateBroken {
		return
	}
	err = g.withEnd(err)
	wanted := g.state != gateConnecting || g.later.n > 0 || g.wanted() || !isGone(err)
	g.drop(err)
	if g.forgotten {
		g.remove()
		return
	}
	if !wanted {
		g.state = gateIdle // it was the peer's wish only
		return
	}
	g.failReceives(err)
	g.state, g.err = gateBroken, err
	if errors.Is(err, ErrClosed) {
		return
	}
	s.stats.Broken++
	if f := s.cfg.OnError; f != nil {
		var e *Error
		if errors.As(err, &e) {
			s.calls = append(s.calls, func() { f(e) })
		}
	}
}

// drop lets everything pending fail and lets go of the links.
func (g *Gate) drop(err error) {
	s := g.s
	links := g.links
	g.links, g.state = nil, gateIdle // from here on nobody is told anything
	g.lead, g.clear = nil, false
	g.relay.drop(s)
	g.dropPostponed(err)
	g.farewell()
	g.dropAnswers(err)
	queues := []*parcelQueue{&g.replay, &g.control, &g.backlog, &g.later, &g.actives}
	if o := g.longOut; o != nil && o.parked {
		queues = queues[:4]
	} else {
		g.longOut = nil
	}
	for _, q := range queues {
		for pc := q.pop(); pc != nil; pc = q.pop() {
			s.lost(pc, err)
		}
	}
	for _, l := range links {
		l.dead = true
		posted := l.sending
		l.sending = parcelQueue{}
		for pc := posted.pop(); pc != nil; pc = posted.pop() {
			s.orphan(l, pc, err)
		}
	}
	s.dropLong(g, err)
	s.syncs.each(func(id uint64, r *Request) {
		if r.g == g && !r.parked {
			s.dropSync(id, r)
			s.complete(r, err)
		}
	})
	s.dropOps(g, err)
	s.dropKept(g)
	g.live, g.asked = g.held(), 0
	for _, l := range links {
		s.bury(l)
	}
}

// failReceives lets the receives fail that name this peer.
func (g *Gate) failReceives(err error) {
	s := g.s
	s.table.CancelFrom(g.index, func(r *match.Receive) { s.complete(r.User.(*Request), err) })
}

// enqueue sends a parcel of a program's message: behind a connection that is
// being closed, over the next one.
func (g *Gate) enqueue(pc *parcel) bool {
	if g.state == gateClosing || g.later.n > 0 {
		g.later.push(pc)
		return false
	}
	if pc.lasts() {
		g.live++
	}
	return g.dispatch(pc)
}

// ready reports whether something can be sent.
func (g *Gate) ready(op string) error {
	switch {
	case g.s.closed, g.forgotten:
		return g.fault(op, ErrClosed)
	case g.state == gateBroken:
		return g.err
	case g.state == gateIdle && g.stranded(): // also a message that would be done before it has left
		g.strand()
		return g.err
	}
	return nil
}

// Path describes what carries messages to the peer: driver, device and path of each rail. Without a connection it is the
// gate's state: idle (never connected, or closed in order by either side), connecting, closing or broken.
func (g *Gate) Path() string {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	if len(g.links) == 0 {
		return gateStates[g.state]
	}
	var out string
	for i, l := range g.links {
		if i > 0 {
			out += " + "
		}
		out += fmt.Sprintf("%s:%s ", l.nic.name(), l.nic.Device)
		if l.dead {
			out += l.small.Path() + " (lost)"
			continue
		}
		out += l.path()
	}
	return out
}

// Explain returns the rails that the connection takes and those that it leaves out, with reasons. The result is empty
// before the first connection.
func (g *Gate) Explain() []Choice {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return append([]Choice(nil), g.why...)
}
