package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	s       *Session
	rank    int    // -1: of another session
	index   uint32 // as a source of messages
	foreign *card  // of a peer of another session
	state   gateState
	err     error // why broken
	links   []*link
	lead    *link    // carries short messages
	clear   bool     // lead takes messages now
	relay   failover // of a gate with several rails
	dialing dialing
	close   closeState
	pausing pausing
	queues  queues
	active  activeState
	in      arriving
	ops     gateOps
	held    charges
	credit  gateCredit
}

// link is one rail of a gate.
type link struct {
	g             *Gate
	nic           *nic
	card          *card // the peer's
	rail          uint8 // number in the gate; the same at both ends
	peer          uint8 // the number of the peer's rail
	small         driver.BufferReceiver
	large         driver.Instance   // nil: none
	fetcher       driver.Prefetcher // large, where it prefetches
	choices       *linkChoices      // of the modes of long messages; nil before the first
	lastLong      time.Time         // when the last message with a choice was complete
	early         []*Request        // receives that are prefetched
	one           driver.OneSided   // nil: none
	full          uint64            // oneSided.pass in which it took no operation
	rp            driver.Packet
	sending       outQueue // in the driver's hands
	preambleSent  bool     // Hello was sent
	pieces        int      // pieces in the large track's driver, and one-sided operations
	eager         int      // longest packet in bytes
	helloReceived bool
	now           Active
	dead          bool
	broken        error // of the last rail: see ends
	endErr        error // error for messages that the driver gives back; nil: Gate.relay holds copies
	inUnreleased  bool  // in Session.unreleased
	released      bool
}

// Rank returns the peer's rank, or -1 for a process of another session.
func (g *Gate) Rank() int { return g.rank }

// Session returns the session of the gate.
func (g *Gate) Session() *Session { return g.s }

// Err returns why the gate is broken, or nil if it is not. Disconnect makes a broken gate usable again, and Err nil;
// after Forget it is ErrClosed.
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
// ErrBroken if the peer has died, and with ErrClosed if the peer has closed its session; the gate is then broken. A peer
// that closed its session while there was no connection to it counts as dead unless the launcher reports ends.
func (g *Gate) ConnectWait(ctx context.Context) error {
	s := g.s
	s.mu.lock()
	before := g.dialing.established
	if g.dialing.waiters++; g.state == gateIdle && !s.closed {
		g.connect()
	}
	s.leave()
	err := s.await(ctx, func() bool {
		switch {
		case g.dialing.established != before, s.closed: // it may have been closed again
			return true
		case g.state == gateIdle:
			return !s.quiesced // a concurrent Disconnect closed it
		}
		return g.state == gateUp || g.state == gateBroken
	})
	s.mu.lock()
	defer s.leave()
	g.dialing.waiters--
	switch {
	case err != nil:
		return g.fault("connect", err)
	case g.dialing.established != before || g.state == gateUp:
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
// with ErrClosed. Messages that are sent during the close go over a new connection. Disconnect makes a broken gate
// usable again. A gate that broke at the end of a pause or of a close, when the peer may have gone on without an error,
// becomes usable when the peer connects again.
func (g *Gate) Disconnect() {
	g.s.mu.lock()
	defer g.s.leave()
	switch g.state {
	case gateConnecting, gateUp, gateClosing:
		if g.queues.later.n > 0 {
			g.close.askedNext = true
		}
		g.close.asked = true
		g.markBusy()
		g.tryClose()
	case gateBroken:
		if g.close.forgotten {
			return
		}
		g.state, g.err, g.close.asked = gateIdle, nil, false
		g.s.kickAnswerer()
	}
}

// down ends a link that is broken or that the peer has closed.
func (l *link) down(err error) {
	if l.dead {
		return
	}
	g := l.g
	if g.close.seen.bye && g.close.sent.bye && errors.Is(err, ErrClosed) {
		g.finish()
		return
	}
	if g.others(l) {
		l.lost(err)
		return
	}
	if g.relay.railErr != nil && errors.Is(err, ErrClosed) {
		err = g.relay.railErr // a process that crashes may have closed a rail before
	}
	g.fail(g.fault("connection", err))
}

// ends notes that an instance of the last rail is broken. The gate, which cannot do without, fails with it as soon as
// what met the error is done with.
func (l *link) ends(err error) {
	if errors.Is(err, ErrBroken) && !l.dead && l.broken == nil && !l.g.others(l) {
		l.broken = err
		l.g.markBusy()
	}
}

// others reports whether the gate has another rail that works.
func (g *Gate) others(l *link) bool {
	return slices.ContainsFunc(g.links, func(x *link) bool { return x != l && !x.dead })
}

// lost removes a rail while there are others, which carry its messages from then on.
func (l *link) lost(err error) {
	g, s := l.g, l.g.s
	l.dead = true
	// Report this first: the other rail may turn out to be lost when messages move there, and that is reported, too.
	if !errors.Is(err, ErrClosed) {
		g.relay.railErr = err
		s.reportError(&Error{Peer: g.rank, Gate: g, Op: "rail " + l.nic.Driver, Err: err, NonFatal: true})
	}
	for in := g.in.first; in != nil; in = in.after {
		if in.mode != rdv.Null {
			in.Lost(l.rail)
		}
	}
	// The peer, which marks the rail as lost as well, will send nothing there.
	for _, pc := range s.transfers.pieces {
		if pc.l == l && pc.kind == pieceRecv && pc.posted {
			_ = l.large.RecvCancel(&pc.p)
		}
	}
	s.releaseLink(l)
	g.useOtherRail(l)
}

// fail ends a gate whose connection is lost, or could not be established.
func (g *Gate) fail(err error) {
	s := g.s
	if g.state == gateBroken {
		return
	}
	err = g.addEnd(err)
	wanted := g.state != gateConnecting || g.queues.later.n > 0 || g.wanted() || !isGone(err)
	if !wanted && !g.close.forgotten { // only the peer had requested the connection
		g.state, g.close.asked = gateIdle, false
		if g.err != nil { // see closeState.halfway
			g.state = gateBroken
			g.failReceives(g.err)
		}
		s.kickAnswerer() // it may have requested another one meanwhile
		return
	}
	halfway := g.close.sent.bye
	g.drop(err)
	if g.close.forgotten {
		g.remove()
		return
	}
	g.failReceives(err)
	g.state, g.err, g.close.halfway = gateBroken, err, halfway
	s.kickAnswerer() // the peer may have requested a connection before
	if errors.Is(err, ErrClosed) {
		return
	}
	s.stats.Broken++
	var e *Error
	if errors.As(err, &e) {
		s.reportError(e)
	}
}

// drop fails everything pending and releases the links.
func (g *Gate) drop(err error) {
	s := g.s
	links := g.links
	g.links, g.state = nil, gateIdle // from here on no message is sent to the peer
	g.lead, g.clear = nil, false
	g.relay.drop(s)
	g.pausing.state, g.pausing.received = notPaused, false
	g.failPostponed(err)
	g.close.reset()
	g.dropAnswers(err)
	queues := []*outQueue{&g.queues.replay, &g.queues.control, &g.queues.backlog, &g.queues.later, &g.active.queue}
	if o := g.active.out; o != nil && o.parked {
		queues = queues[:4]
	} else {
		g.active.out = nil
	}
	for _, q := range queues {
		for msg := q.pop(); msg != nil; msg = q.pop() {
			s.msgFailed(msg, err)
		}
	}
	for _, l := range links {
		l.dead = true
		posted := l.sending
		l.sending = outQueue{}
		for msg := posted.pop(); msg != nil; msg = posted.pop() {
			s.takeBack(l, msg, err)
		}
	}
	s.dropLong(g, err)
	s.failSyncs(g, err)
	s.dropOps(g, err)
	s.dropUnexpected(g)
	g.dropWaitingActives(nil)
	g.endCredit()
	g.ops.unanswered = 0
	for _, l := range links {
		s.releaseLink(l)
	}
}

// failReceives fails the receives that name this peer.
func (g *Gate) failReceives(err error) {
	s := g.s
	s.table.CancelFrom(g.index, func(r *match.Receive) { s.complete(r.User.(*Request), err) })
}

// enqueue sends a message of the program. While the connection is being closed, it queues the message for the next
// one.
func (g *Gate) enqueue(msg *outMsg) {
	if g.state == gateClosing || g.queues.later.n > 0 {
		g.queues.later.insert(msg)
		return
	}
	g.dispatch(msg)
}

// ready reports whether something can be sent.
func (g *Gate) ready(op string) error {
	switch {
	case g.s.closed:
		return g.fault(op, errSessionClosed)
	case g.close.forgotten:
		return g.fault(op, ErrClosed)
	case g.state == gateBroken:
		return g.err
	case g.state == gateIdle && g.unconnectable(): // also a message that would be done before it has left
		g.failUnconnectable()
		return g.err
	}
	return nil
}

// Path describes what carries messages to the peer: driver, device and path of each rail. Without a connection it is
// the gate's state: idle (never connected, or closed in order by either side), connecting, closing or broken. A gate
// whose peer has left the job is broken once an operation has tried to connect it again.
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
	return append([]Choice(nil), g.dialing.why...)
}
