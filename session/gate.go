package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/header"
	"github.com/bywash/bywash/session/match"
	"github.com/bywash/bywash/session/rdv"
)

// gateState is where a gate is in its life.
type gateState uint8

const (
	gateIdle       gateState = iota // not connected
	gateConnecting                  // messages wait in the backlog
	gateUp
	gateClosing // one side has asked to close; what is pending is still finished
	gateBroken  // nothing is left; Disconnect makes it idle
)

var gateStates = [...]string{"idle", "connecting", "up", "closing", "broken"}

// Gate is the way to one peer. Its methods may be called from any goroutine.
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
	relay      trail
	pausing    pauseState
	pauseHeard bool
	postponed  []postponed
	probed     []*kept // long messages that Improbe has given, and nobody has received
	giveUp     func()  // ends the attempt to connect
	abandoned  bool    // by giveUp
	forgotten  bool    // by Forget
	awaited    int     // callers of ConnectWait
	stood      uint64  // connections that came about
	peerEra    uint32
	dials      uint64 // connections that were begun here
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
	answers    int    // to the peer's, that have not left
	live       int    // long messages, acknowledgements and operations under way
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
	last    bool // the peer is gone: what lies in the driver is all that comes
	beyond  bool // some of that was kept beyond the budget
	now     Active
	dead    bool
	end     error // of what was still in the driver's hands; nil: copies are kept
	lingers bool  // dead, and in Session.dying
	buried  bool
}

// Rank is the peer's rank; -1 for one of another session.
func (g *Gate) Rank() int { return g.rank }

// Session is the session that the gate is of.
func (g *Gate) Session() *Session { return g.s }

// Connect makes the connection, without waiting for it, so that the first
// message finds it. The peer need do nothing.
func (g *Gate) Connect() {
	g.s.mu.lock()
	defer g.s.leave()
	if g.state == gateIdle && !g.s.closed {
		g.connect()
	}
}

// ConnectWait makes the connection and blocks until it stands, has failed, or
// ctx ends. One to a process that has closed, or died, fails with ErrClosed or ErrBroken, and the gate is then broken.
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

// Disconnect closes the gate in order and never blocks: pending sends are
// finished first, the peer's as well, in the background or in Progress. Long and synchronous
// messages are waited for until the receiver has matched them, or closes as well: what nobody has begun to receive by then
// fails with ErrClosed, on both sides. A synchronous one that had arrived can still be received.
// Receives that name the peer, and were posted before it had closed as well, fail
// with ErrClosed.
// Messages sent meanwhile go over a new connection. A gate that is broken can be
// used again after it.
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
		g.s.kickDoorman()
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

// others tells whether the gate has a rail besides.
func (g *Gate) others(l *link) bool {
	for _, x := range g.links {
		if x != l && !x.dead {
			return true
		}
	}
	return false
}

// lost takes a rail out while there are others: what is on it comes over those.
func (l *link) lost(err error) {
	g, s := l.g, l.g.s
	l.dead = true
	if !errors.Is(err, ErrClosed) {
		g.broke = err
	}
	s.ins.each(func(_ uint64, in *incoming) {
		if in.g == g && in.mode != rdv.Null {
			in.Lost(l.rail)
		}
	})
	// The peer, which gives the rail up as well, will send nothing there.
	for _, pc := range s.pieces {
		if pc.l == l && pc.kind == pieceRecv && pc.posted {
			_ = l.large.RecvCancel(&pc.p)
		}
	}
	s.bury(l)
	g.passOn(l)
	if f := s.cfg.OnError; f != nil && !errors.Is(err, ErrClosed) {
		e := &Error{Peer: g.rank, Op: "rail " + l.nic.Driver, Err: err, NonFatal: true}
		s.calls = append(s.calls, func() { f(e) })
	}
}

// fail ends a gate whose connection is lost, or did not come about.
func (g *Gate) fail(err error) {
	s := g.s
	if g.state == gateBroken {
		return
	}
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
	queues := []*parcelQueue{&g.backlog, &g.later, &g.actives}
	if o := g.longOut; o != nil && o.parked {
		queues = queues[:2]
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
			s.syncs.remove(id)
			s.complete(r, err)
		}
	})
	s.dropOps(g, err)
	s.dropKept(g)
	g.live, g.asked, g.answers = g.held(), 0, 0
	for _, l := range links {
		s.bury(l)
	}
}

// failReceives lets the receives fail that name this peer.
func (g *Gate) failReceives(err error) {
	s := g.s
	s.table.CancelFrom(g.index, func(r *match.Receive) { s.complete(r.User.(*Request), err) })
}

// farewell forgets how far a connection that is no more was closed.
func (g *Gate) farewell() {
	g.leaveSent, g.leaveSeen, g.byeSent, g.byeSeen, g.leaving = false, false, false, false, false
	g.soonSent, g.soonSeen = false, false
}

// closing tells whether a connection is to end, for good or for a pause.
func (g *Gate) closing() bool { return g.leaving || g.leaveSeen || g.pausing == pausing }

// tryClose takes the next step of closing that is possible now. Both sides say Leave: upon that of the other, what it
// has not matched fails. When what it has matched is done, both say Bye, and let go.
func (g *Gate) tryClose() {
	if g.state != gateUp && g.state != gateClosing || !g.closing() {
		return
	}
	if g.pausing == notPaused && !g.leave() {
		return
	}
	if !g.byeSent {
		if g.pausing == pausing && !g.drained() || g.pausing == notPaused && (g.backlog.n > 0 || g.engaged()) {
			return
		}
		g.state, g.byeSent = gateClosing, true
		pc, _ := g.s.control(header.Header{Kind: header.Bye}, nil)
		g.dispatch(pc)
		if g.pausing != notPaused {
			g.unfetchAll()
		}
	}
	if !g.byeSeen || g.backlog.n > 0 || !g.relay.settled() {
		return
	}
	for _, l := range g.links {
		if l.sending.n > 0 || l.pieces > 0 {
			return
		}
	}
	g.finish()
}

// flagSoon, in a Leave, says that its sender will leave once its messages are matched. A peer that wants to leave, too,
// then does: else each might wait for the other.
const flagSoon = 1 << 0

// leave says Leave once everything that is to go over this connection has left, and was matched unless the peer leaves as well. It
// tells whether the peer has said it, too.
func (g *Gate) leave() bool {
	if g.leaveSeen {
		g.state = gateClosing // what is sent from now on goes over the next connection
		g.refuse()
	}
	if !g.leaveSent {
		if g.backlog.n > 0 || !g.leaveSeen && (g.longOut != nil || g.actives.n > 0) || !g.answered() {
			return false
		}
		if !g.leaveSeen && !g.soonSeen && g.unmatched() {
			if !g.soonSent {
				g.soonSent = true
				pc, _ := g.s.control(header.Header{Kind: header.Leave, Flags: flagSoon}, nil)
				g.dispatch(pc)
			}
			return false
		}
		g.state, g.leaveSent = gateClosing, true
		pc, _ := g.s.control(header.Header{Kind: header.Leave}, nil)
		g.dispatch(pc)
		g.s.refuseKept(g)
	}
	return g.leaveSeen
}

// answered tells whether the peer knows of all its messages that are being received that they are: in mode Get it learns
// it in the end.
func (g *Gate) answered() bool {
	all := true
	g.s.ins.each(func(_ uint64, in *incoming) { all = all && (in.g != g || in.asked > 0 && in.mode != rdv.Get) })
	return all
}

// unmatched tells whether something has left that the peer has still to match.
func (g *Gate) unmatched() bool {
	some := false
	g.s.outs.each(func(_ uint64, o *outgoing) { some = some || o.g == g && !o.parked && o.err == nil && !o.Matched() })
	g.s.syncs.each(func(_ uint64, r *Request) { some = some || r.g == g && !r.parked })
	return some
}

// engaged tells whether something has begun that this connection has to finish.
func (g *Gate) engaged() bool {
	begun := g.ops > 0
	g.s.outs.each(func(_ uint64, o *outgoing) { begun = begun || o.g == g && (o.Matched() || o.releasing) })
	g.s.ins.each(func(_ uint64, in *incoming) { begun = begun || in.g == g })
	return begun
}

// refuse takes the end of what the peer, which has said Leave, has not matched and never will: that fails. What has not
// left goes over the next connection, with all messages behind it, as their order holds.
func (g *Gate) refuse() {
	s := g.s
	for pc := g.backlog.first; pc != nil; pc = pc.next {
		if pc.lasts() {
			g.holdBack()
			break
		}
	}
	g.park(true)
	g.parkPosted(true)
	s.syncs.each(func(id uint64, r *Request) {
		if r.g == g && !r.parked {
			s.syncs.remove(id)
			g.ended()
			s.complete(r, g.fault("send", ErrClosed))
		}
	})
	s.refuseLong(g)
	g.parkPosted(false)
	g.park(false)
}

// holdBack has messages of the backlog wait for the next connection, from the first one that lasts.
func (g *Gate) holdBack() {
	var rest parcelQueue
	behind := false
	for pc := g.backlog.pop(); pc != nil; pc = g.backlog.pop() {
		behind = behind || pc.lasts()
		kind := header.Kind(pc.buf[0])
		switch { // a copy, for another rail, of what lasts is this connection's
		case !behind, !pc.lasts() && kind != header.Eager && kind != header.AM:
			rest.push(pc)
			continue
		case pc.lasts():
			g.live--
		}
		if pc.out != nil {
			pc.out.letGo() // of what is this connection's
		}
		g.later.push(pc)
	}
	g.backlog = rest
	g.leaveNext = g.leaveNext || g.leaving // they were sent before Disconnect
}

// park marks the messages that wait for the next connection, or for a long active one.
func (g *Gate) park(on bool) {
	g.s.park(g.later.first, on)
	g.s.park(g.actives.first, on)
}

// parkPosted marks those that the driver has not sent: their memory is its own until it has.
func (g *Gate) parkPosted(on bool) {
	for _, l := range g.links {
		for pc := l.sending.first; pc != nil; pc = pc.next {
			if r, ok := g.s.syncs.get(pc.sync); ok && pc.sync != 0 {
				r.parked = on
			}
			if pc.out == nil {
				continue
			}
			// By its number, as the message may be over and its memory another one's.
			if o, ok := g.s.outs.get(header.Uint64(pc.buf[header.Size:])); ok && o == pc.out {
				o.parked = on
			}
		}
	}
}

// finish ends a connection that both sides have closed.
func (g *Gate) finish() {
	s := g.s
	if g.pausing == pausing {
		g.rest()
		return
	}
	later, leave := g.later, g.leaveNext
	g.later, g.leaveNext = parcelQueue{}, false
	s.park(later.first, true)
	s.park(g.actives.first, true)
	g.drop(g.fault("disconnected", ErrClosed))
	if f := s.cfg.OnClosed; f != nil {
		s.calls = append(s.calls, func() { f(g) })
	}
	s.kickDoorman()
	s.park(later.first, false)
	s.park(g.actives.first, false)
	if g.forgotten {
		g.later = later
		g.remove()
		return
	}
	if later.n > 0 {
		g.backlog = later
		g.live += g.backlog.lasting()
		g.connect()
		g.leaving = leave
		g.work()
	}
}

// park marks the messages of parcels that wait for the next connection: the end of this one is not theirs.
func (s *Session) park(pc *parcel, on bool) {
	for ; pc != nil; pc = pc.next {
		if pc.out != nil {
			pc.out.parked = on
		}
		if r, ok := s.syncs.get(pc.sync); ok && pc.sync != 0 {
			r.parked = on
		}
	}
}

// enqueue sends a parcel of a program's message: behind a connection that is
// being closed, over the next one.
func (g *Gate) enqueue(pc *parcel) bool {
	if g.state == gateClosing {
		g.later.push(pc)
		return false
	}
	if pc.lasts() {
		g.live++
	}
	return g.dispatch(pc)
}

// ready tells whether something can be sent.
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

// Path says what carries messages to the peer: driver, device and path of each
// rail, or that there is no connection.
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
		out += fmt.Sprintf("%s:%s ", l.nic.Driver, l.nic.Device)
		if l.dead {
			out += l.small.Path() + " (lost)"
			continue
		}
		out += l.path()
	}
	return out
}

// Explain tells which rails the connection takes, and why others are left out. It is
// empty before the first connection.
func (g *Gate) Explain() []Choice {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return append([]Choice(nil), g.why...)
}
