package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
)

// Quiescing removes all connections and registrations and keeps the session's state: requests, unexpected messages,
// matching. On each gate one side sends PAUSE and the other answers with its own; from then on neither begins
// anything. Operations that have begun are finished; then both send BYE, as when a gate is closed, and nothing fails.
// Messages that the receiver has not begun to receive keep their numbers on both sides, and go on over the next
// connection.

// pauseState is where a gate is on the way to a pause.
type pauseState uint8

const (
	notPaused  pauseState = iota
	pauseBegun            // by one side
	paused                // the connection was closed without losing anything
)

// pausing is the state of a gate's pause, and what waits for its end.
type pausing struct {
	state     pauseState
	sent      bool // PAUSE
	received  bool // the peer's PAUSE
	kept      bool // this connection is the first after a pause, and goes on with what there was before
	postponed []postponed
	answers   answers // for the connection after the pause
}

// postponed is a long message that was matched while nothing may begin.
type postponed struct {
	r *Request
	k *unexpected
}

// Quiesce finishes what is being transferred, closes all connections and takes registrations away, so that nothing of
// this process is known to a NIC, as before a checkpoint. Only messages with a forced mode, ModeGet, that the receiver
// has not matched stay registered. Requests stay as they are. Operations that begin meanwhile wait until Resume, and so
// do those of peers. Usually all ranks call Quiesce at the same time; a single rank may. It blocks until the session is
// quiet, making progress, or until ctx ends: then the session continues as before and the error is that of ctx. On a
// session that is already quiet, or that Close has begun to close, it fails with ErrInvalid, and with ErrCanceled if another goroutine calls Resume or Close
// meanwhile.
func (s *Session) Quiesce(ctx context.Context) error {
	s.mu.lock()
	if s.closing || s.closed || s.quiesced {
		s.leave()
		return &Error{Peer: -1, Op: "quiesce", Err: fmt.Errorf("%w: session is closed, closing or already quiesced", ErrInvalid)}
	}
	s.quiesced = true
	era := s.era
	for _, g := range s.gates {
		if g != nil {
			g.pause()
		}
	}
	s.leave()
	resumed := false
	err := s.await(ctx, func() bool {
		if resumed = s.era != era; resumed {
			return true
		}
		for _, g := range s.gates {
			if g != nil && g.state != gateIdle && g.state != gateBroken {
				return false
			}
		}
		for _, r := range s.oneSided.regions {
			if r.drop() != nil {
				return false // a peer still accesses the region
			}
		}
		for r := range s.oneSided.revoked {
			if r.drop() != nil {
				return false
			}
			delete(s.oneSided.revoked, r)
		}
		inDriver := func(o *Op) bool { return o.posted || o.inDriver > 0 }
		return len(s.links) == 0 && len(s.unreleased) == 0 && len(s.transfers.pieces) == 0 && !s.oneSided.any(inDriver)
	})
	if resumed {
		return &Error{Peer: -1, Op: "quiesce", Err: fmt.Errorf("%w: Resume or Close was called meanwhile", ErrCanceled)}
	}
	if err != nil {
		_ = s.Resume()
		return &Error{Peer: -1, Op: "quiesce", Err: err}
	}
	return nil
}

// Resume continues a quiet session: regions are registered again and connections made as they are needed. Keys from
// before stay valid, but messages instead of drivers carry out their operations.
func (s *Session) Resume() error {
	s.mu.lock()
	defer s.leave()
	if s.closed || !s.quiesced {
		return &Error{Peer: -1, Op: "resume", Err: fmt.Errorf("%w: session is closed or not quiesced", ErrInvalid)}
	}
	s.resume()
	return nil
}

func (s *Session) resume() {
	s.quiesced = false
	s.era++
	for _, r := range s.oneSided.regions {
		r.enroll()
	}
	for _, g := range s.gates {
		if g != nil && g.state == gateIdle && g.wanted() {
			g.connectAgain()
		}
	}
	s.kickAnswerer()
}

// wanted reports whether something waits for a connection, if only to learn that the peer is gone.
func (g *Gate) wanted() bool {
	if g.queued() > 0 || g.dialing.waiters > 0 || len(g.pausing.postponed) > 0 || g.active.waiting > 0 {
		return true
	}
	waits := false
	g.s.transfers.outs.each(func(_ uint64, o *outgoing) { waits = waits || o.g == g && o.err == nil })
	g.s.transfers.syncs.each(func(_ uint64, r *Request) { waits = waits || r.g == g })
	return waits || g.s.oneSided.any(func(o *Op) bool { return o.g == g && !o.dropped })
}

// pause begins the pause of a gate.
func (g *Gate) pause() {
	switch g.state {
	case gateConnecting:
		g.cancelDialForPause()
	case gateUp:
		if g.close.sent.leave || g.close.seen.leave {
			return // the gate is being closed in order
		}
		// A side that pauses matches nothing: a Leave that waits for matches would hold up the pause. See finishPause.
		g.state, g.pausing.state, g.pausing.sent = gateClosing, pauseBegun, false
		g.markBusy()
	}
}

// sendPause sends PAUSE once all RTRs have left: a peer that has both PAUSEs and nothing under way sends BYE, and nothing
// more on this connection. It reports whether PAUSE was sent.
func (g *Gate) sendPause() bool {
	if !g.pausing.sent && g.answered() {
		g.pausing.sent = true
		msg, _ := g.s.control(header.Header{Kind: header.Pause}, nil)
		g.dispatch(msg)
	}
	return g.pausing.sent && g.pausing.state == pauseBegun // else the gate has just broken
}

// pauseTimeout is how long an attempt to connect may go on during a pause before it is cancelled. The connection may
// already be established at the peer, which would see it break. If the peer is alive, it is soon established here as
// well, and is then paused in order.
const pauseTimeout = 2 * time.Second

// cancelDialForPause cancels an attempt to connect that does not succeed within pauseTimeout. Messages that wait for
// the connection stay.
func (g *Gate) cancelDialForPause() {
	g.cancelDialAfter(pauseTimeout, func() bool {
		g.dialing.cancelled = g.dialing.cancelled || g.s.quiesced
		return g.s.quiesced
	})
}

// receivePause takes the peer's PAUSE.
func (g *Gate) receivePause() {
	g.pause()
	g.pausing.received = true
	g.markBusy()
	g.tryClose()
}

// finishPause ends a paused connection without any loss.
func (g *Gate) finishPause() {
	s := g.s
	links := g.links
	g.links, g.state, g.pausing.state, g.pausing.received = nil, gateIdle, paused, false
	g.lead, g.clear = nil, false
	leave := g.close.asked || g.close.askedNext
	g.close.reset()
	g.relay.drop(s)
	g.endCredit()
	for _, l := range links {
		l.dead = true
		s.releaseLink(l)
	}
	if g.close.forgotten {
		g.remove()
		return
	}
	g.queues.later.prepend(&g.queues.backlog)
	g.queues.backlog, g.queues.later = g.queues.later, outQueue{}
	g.resumeAnswers()
	s.kickAnswerer()
	if g.wanted() {
		g.close.askedNext = leave // Disconnect closes the connection that carries what waits
		g.connectAgain()
	}
}

// connectAgain connects a gate for the messages that wait. After a pause it restores closeState.asked, which is stored in
// askedNext while the session is quiet, because a leaving gate is polled.
func (g *Gate) connectAgain() {
	if g.s.quiesced {
		return // Resume does
	}
	if g.pausing.state == paused {
		g.close.asked, g.close.askedNext = g.close.asked || g.close.askedNext, false
	}
	g.connect()
}

// postpones keeps a long message for the next connection if none may begin on this one. order is its place in the match
// table.
func (s *Session) postpones(r *Request, g *Gate, b []byte, h *header.Header, order uint64) bool {
	if g.pausing.state == notPaused {
		return false
	}
	u := &unexpected{class: unexpectedClasses, buf: bytes.Clone(b), g: g, h: *h}
	u.Order = order
	u.cost = unexpectedCost + cap(u.buf)
	r.status.From = g
	g.charge(u.cost)
	g.pausing.postponed = append(g.pausing.postponed, postponed{r, u})
	if g.state == gateIdle {
		g.connect()
	}
	return true
}

// resumePostponed begins the postponed messages, over a new connection.
func (g *Gate) resumePostponed() {
	s := g.s
	g.pausing.state = notPaused
	list := g.pausing.postponed
	g.pausing.postponed = nil
	for _, p := range list {
		g.charge(-p.k.cost)
		s.receiveUnexpected(p.r, p.k)
	}
	s.beginActives()
	if s.quiesced {
		g.pause()
	}
}

// keep is called when the first connection after a pause is established, before anything is sent over it.
func (g *Gate) keep() {
	g.pausing.kept = true
	g.s.transfers.outs.each(func(_ uint64, o *outgoing) { o.kept = o.kept || o.g == g && o.rtsTaken })
}

// loseKept fails what the pause has kept, because the peer has kept nothing: its last connection broke when this side had
// all that it waited for. The peer's HELLO says so, before which it has sent nothing over this connection.
func (g *Gate) loseKept() {
	s := g.s
	err := g.fault("connection", fmt.Errorf("%w: it broke at the peer during the pause", ErrBroken))
	g.pausing.kept = false
	s.transfers.syncs.each(func(_ uint64, r *Request) {
		if r.g == g && r.taken { // it left over the last connection: without credit none does
			s.endSync(r, err)
		}
	})
	s.failOuts(g, func(o *outgoing) bool { return o.kept }, err)
	s.dropUnexpected(g)
	g.failPostponed(err)
	g.dropWaitingActives(nil)
	s.failIns(g, err)
}

// returnPostponed takes its postponed message from a receive, for the next receive that matches, and reports whether it had
// one.
func (r *Request) returnPostponed() bool {
	s, g := r.s, r.status.From
	if g == nil {
		return false
	}
	i := slices.IndexFunc(g.pausing.postponed, func(p postponed) bool { return p.r == r })
	if i < 0 {
		return false
	}
	u := g.pausing.postponed[i].k
	for k := range g.pausing.postponed { // a receive that has got a later message should have got this one
		p := &g.pausing.postponed[k]
		if k != i && !p.r.probed && u.Order < p.k.Order && p.r.recv.Matches(g.index, u.h.Tag) {
			p.k, u = u, p.k
		}
	}
	g.pausing.postponed[i].k = u
	if next := s.table.Arrive(g.index, u.h.Tag); next != nil {
		g.pausing.postponed[i].r = next.User.(*Request)
		g.pausing.postponed[i].r.status.From = g
		return true
	}
	g.pausing.postponed = slices.Delete(g.pausing.postponed, i, i+1)
	g.charge(-u.cost)
	u.cost = credit.Cost(len(u.buf))
	g.store(u)
	s.table.KeepAgain(&u.Arrival)
	return true
}

// failPostponed fails the postponed messages.
func (g *Gate) failPostponed(err error) {
	list := g.pausing.postponed
	g.pausing.postponed = nil
	for _, p := range list {
		g.charge(-p.k.cost)
		g.s.complete(p.r, err)
	}
}

// dropPostponedRTS removes a postponed message that its sender has cancelled.
func (g *Gate) dropPostponedRTS(id uint64) {
	for i, p := range g.pausing.postponed {
		var req header.Request
		if req.Parse(p.k.h.Body(p.k.buf)) == nil && req.ID == id {
			g.pausing.postponed = append(g.pausing.postponed[:i], g.pausing.postponed[i+1:]...)
			g.charge(-p.k.cost)
			if p.r.probed {
				g.s.complete(p.r, g.fault("receive", errWithdrawn))
				return
			}
			g.s.repost(p.r, g)
			return
		}
	}
}
