package session

import (
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// closeState is where a gate is in the close protocol.
type closeState struct {
	asked      bool // Disconnect was called
	askedNext  bool // Disconnect was called for the connection after this one
	sent, seen closeSteps
	finishing  bool // a connection is ending in order
	peerLeft   bool // the peer closed the last connection because its session ended
	halfway    bool // the gate broke after Bye was sent: the peer may have ended the connection in order, and go on
	forgotten  bool // Forget was called
}

// closeSteps are the messages of the close protocol that one side has sent on a connection.
type closeSteps struct {
	soon  bool // Leave with flagSoon
	leave bool
	bye   bool
}

// reset is called when a connection has ended.
func (c *closeState) reset() {
	c.asked, c.askedNext, c.halfway, c.sent, c.seen = false, false, false, closeSteps{}, closeSteps{}
}

// closing reports whether a connection is to end, for good or for a pause.
func (g *Gate) closing() bool {
	return g.state != gateIdle && g.close.asked || g.close.seen.leave || g.pausing.state == pauseBegun
}

// stuck reports whether the backlog waits for answers or for credit of the peer.
func (g *Gate) stuck() bool { return g.blocked() || g.waitsForCredit() }

// tryClose takes the next step of closing that is possible now. Both sides send Leave. When a side receives Leave, its
// messages that the peer has not matched fail. When all matched messages are done, both sides send Bye and release the
// links.
func (g *Gate) tryClose() {
	if g.state != gateUp && g.state != gateClosing || !g.closing() {
		return
	}
	if g.pausing.state == notPaused && !g.leave() {
		return
	}
	if g.pausing.state == pauseBegun {
		if g.stuck() {
			g.holdBack()
		}
		if !g.sendPause() {
			return
		}
	}
	if !g.close.sent.bye {
		if g.queued() > 0 || g.engaged() || g.pausing.state == pauseBegun && !g.pausing.received {
			return
		}
		g.state, g.close.sent.bye, g.credit.grantDue = gateClosing, true, false
		bye := header.Header{Kind: header.Bye}
		if g.s.closing {
			bye.Flags = flagLast
		}
		msg, _ := g.s.control(bye, nil)
		g.dispatch(msg)
		g.unfetchAll()
	}
	if !g.close.seen.bye || g.queued() > 0 || !g.relay.settled() {
		return
	}
	for _, l := range g.links {
		if l.sending.n > 0 || l.pieces > 0 {
			return
		}
	}
	g.finish()
}

// flagSoon, in a Leave, announces that its sender will leave once its messages are matched, or, when its session closes,
// once it has credit for them. A peer that also wants to leave then sends its own Leave at once, because otherwise each side might wait for the
// other.
const flagSoon = 1 << 0

// flagLast, in a Bye, means that the whole session of its sender closes: there will be no other connection.
const flagLast = 1 << 0

// flagKept, in a Hello, means that its sender has kept what a pause keeps. See Gate.loseKept.
const flagKept = 1 << 0

// leave sends Leave once every message of this connection has left and, unless the peer leaves as well, was matched.
// It reports whether both sides have sent Leave.
func (g *Gate) leave() bool {
	if g.close.seen.leave {
		g.state = gateClosing // later messages go over the next connection
		g.refuse()
	}
	if !g.close.sent.leave {
		if g.close.seen.soon && g.stuck() {
			g.holdBack() // the peer answers and grants no more on this connection
		}
		// Without credit the messages leave once the peer's program receives. Nobody waits for that when the session closes:
		// the peer's may close as well.
		stuck := g.blocked() || g.s.closing && g.waitsForCredit()
		waits := g.active.out != nil || g.active.queue.n > 0 || g.opsWait()
		if g.queued() > 0 && !stuck || !g.close.seen.leave && waits || !g.answered() {
			return false
		}
		if !g.close.seen.leave && !g.close.seen.soon && (stuck || g.unmatched()) {
			if !g.close.sent.soon {
				g.close.sent.soon = true
				msg, _ := g.s.control(header.Header{Kind: header.Leave, Flags: flagSoon}, nil)
				g.sendControl(msg)
			}
			return false
		}
		g.state, g.close.sent.leave = gateClosing, true
		msg, _ := g.s.control(header.Header{Kind: header.Leave}, nil)
		g.dispatch(msg)
		g.s.dropUnexpected(g) // the sender is notified by Leave
		g.dropWaitingActives(nil)
	}
	return g.close.seen.leave
}

// answered reports whether the peer has received an RTR for each message that is arriving from it. In mode Get there
// is none: the peer is notified when the transfer ends.
func (g *Gate) answered() bool {
	for in := g.in.first; in != nil; in = in.after {
		if in.asked == 0 || in.mode == rdv.Get {
			return false
		}
	}
	return true
}

// unmatched reports whether something has left that the peer has still to match.
func (g *Gate) unmatched() bool {
	some := false
	g.s.transfers.outs.each(func(_ uint64, o *outgoing) { some = some || o.g == g && !o.parked && o.err == nil && !o.Matched() })
	g.s.transfers.syncs.each(func(_ uint64, r *Request) { some = some || r.g == g && !r.parked })
	return some
}

// opsWait reports whether one-sided operations of this gate have not begun yet.
func (g *Gate) opsWait() bool {
	return g.s.oneSided.any(func(o *Op) bool { return o.g == g && !o.started })
}

// engaged reports whether a transfer or an operation has begun that this connection has to finish.
func (g *Gate) engaged() bool {
	begun := g.in.first != nil || g.s.oneSided.any(func(o *Op) bool { return o.g == g && o.started })
	g.s.transfers.outs.each(func(_ uint64, o *outgoing) { begun = begun || o.g == g && (o.Matched() || o.releasing) })
	return begun
}

// refuse fails the messages that the peer, which has sent Leave, has not matched and never will. A message that has
// not left, and needs an answer or credit, goes over the next connection with all messages behind it, which keeps their
// order.
func (g *Gate) refuse() {
	s := g.s
	hold := g.waitsForCredit() // a peer that leaves may grant no more
	for msg := g.queues.backlog.first; msg != nil && !hold; msg = msg.next {
		hold = msg.needsReply()
	}
	if hold {
		g.holdBack()
	}
	g.park(true)
	s.failSyncs(g, ErrClosed)
	s.failOuts(g, func(o *outgoing) bool { return !o.Matched() }, ErrClosed) // which the peer has not begun to receive
	g.park(false)
}

// holdBack moves messages of the backlog to the next connection, from the first one that needs a reply, or that waits
// for credit. They are older than those that wait for it already.
func (g *Gate) holdBack() {
	var rest, held outQueue
	behind := g.waitsForCredit()
	for msg := g.queues.backlog.pop(); msg != nil; msg = g.queues.backlog.pop() {
		behind = behind || msg.needsReply()
		kind := header.Kind(msg.buf[0])
		if !behind || !msg.needsReply() && kind != header.Eager && kind != header.AM {
			rest.push(msg) // a copy, for another rail, of a message that needs a reply belongs to this connection
			continue
		}
		if msg.out != nil {
			msg.out.releaseMemory() // its memory is registered with this connection's rails
		}
		held.push(msg)
	}
	g.queues.later.prepend(&held)
	g.queues.backlog = rest
	g.close.askedNext = g.close.askedNext || g.close.asked // they were sent before Disconnect
}

// park marks the messages that wait for the next connection, or behind a long active message, or that the driver, which
// uses their memory, has not sent yet: they do not fail with this connection.
func (g *Gate) park(on bool) {
	g.s.park(g.queues.later.first, on)
	g.s.park(g.active.queue.first, on)
	for _, l := range g.links {
		g.s.park(l.sending.first, on)
	}
}

// finish ends a connection that both sides have closed.
func (g *Gate) finish() {
	s := g.s
	if g.pausing.state == pauseBegun {
		g.finishPause()
		return
	}
	later, leave := g.queues.later, g.close.askedNext
	if g.close.peerLeft { // it receives nothing any more: what waits for the next connection fails
		later = outQueue{}
	} else {
		g.queues.later = outQueue{}
		s.park(later.first, true)
		s.park(g.active.queue.first, true)
	}
	g.close.finishing = !g.close.forgotten
	g.drop(g.fault("disconnected", ErrClosed))
	g.close.finishing = false
	if f := s.cfg.OnClosed; f != nil {
		s.report(func() { f(g) })
	}
	s.kickAnswerer()
	s.park(later.first, false)
	s.park(g.active.queue.first, false)
	if g.close.forgotten {
		g.queues.later = later
		g.remove()
		return
	}
	if later.n > 0 || g.wanted() {
		g.queues.backlog = later
		g.connect()
		g.close.asked = leave || s.closing
		g.markBusy()
	}
}

// park marks the requests of queued messages that wait for the next connection: they do not fail when this one ends.
func (s *Session) park(msg *outMsg, on bool) {
	for ; msg != nil; msg = msg.next {
		if o, ok := s.transfers.outs.get(msg.id); ok && o == msg.out { // else it is over, and its record reused
			o.parked = on
		}
		if r, ok := s.transfers.syncs.get(msg.sync); ok {
			r.parked = on
		}
	}
}
