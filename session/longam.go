package session

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
)

// A long active message goes by rendezvous, into memory of the receiving session, out of a budget of its own, so that
// messages that nobody has received cannot block handlers. Between two ranks one is in progress at a time, and later
// ones wait at the sender until its DONE. This keeps the order, and neither side has to store messages that arrive too
// early.

// flagActive, in an RTS, marks an active message; the low 8 bits of its tag are the handler.
const flagActive = 1 << 1

// maxLong is how many long active messages of a peer there can be: one under way, one whose handler runs, and some room.
// A peer that sends more violates the protocol. Those that it has withdrawn do not count: the budget bounds them.
const maxLong = 16

var errNoMemory = fmt.Errorf("%w: more than the peer takes; its Config.MaxMessage, or Config.Unexpected for active messages, allows less",
	driver.ErrTooLong)

// activeState are the active messages of a gate that are long, or wait for others.
type activeState struct {
	queue    outQueue    // those that wait for out
	out      *outgoing   // the long one that is being sent or is next
	in       int         // number of the peer's long ones that have memory here
	waiting  int         // number of the peer's long ones that wait for memory
	due      *unexpected // long ones that arrived while a handler ran
	handling bool        // a handler is running
	resuming bool        // the gate is in actives.resumed
	watch    handlerWatch
}

// enqueueActive sends an active message, or queues it behind a long one. Urgent short ones do not wait.
func (g *Gate) enqueueActive(msg *outMsg) {
	if (g.active.out != nil || g.active.queue.n > 0) && !(msg.urgent && msg.out == nil) {
		g.active.queue.insert(msg)
		return
	}
	if msg.out != nil {
		g.active.out = msg.out
	}
	g.enqueue(msg)
}

// activeSent sends the active messages that waited for o, if o is the long active message in progress.
func (g *Gate) activeSent(o *outgoing) {
	if g.active.out != o {
		return
	}
	g.active.out = nil
	g.close.askedNext = g.close.askedNext || g.close.asked && g.state == gateClosing // they were sent before Disconnect
	for g.active.out == nil {
		msg := g.active.queue.pop()
		if msg == nil {
			return
		}
		g.active.out = msg.out
		g.enqueue(msg)
	}
}

// arriveActive receives a long active message, as soon as there is memory. It is part of arrive.
func (l *link) arriveActive(h *header.Header, req *header.Request, b []byte) bool {
	g, s := l.g, l.g.s
	withdrawn := 0 // a driver has not given their memory back yet
	for in := g.in.first; in != nil; in = in.after {
		if in.req.active != nil && in.err != nil {
			withdrawn++
		}
	}
	if g.active.in+g.active.waiting-withdrawn >= maxLong {
		return l.failProtocol(fmt.Errorf("%w: %d long active messages at once", ErrBroken, maxLong))
	}
	switch cost := activeCost(h, req); {
	case cost > s.cfg.Unexpected:
		g.done(req.ID, statusTooLong, true)
		return true
	case cost > s.active.budget || g.pausing.state != notPaused || s.activesWait():
		s.active.waiting = append(s.active.waiting, waitingActive{g: g, h: *h, req: *req, b: bytes.Clone(b)})
		g.active.waiting++
		g.charge(waitingActiveCost + len(b))
		return true
	}
	return l.checked(g.beginActive(h, req, b))
}

// activeCost is the memory in bytes that a long active message takes.
func activeCost(h *header.Header, req *header.Request) int {
	return credit.Cost(int(req.Total) + int(h.Extra))
}

// beginActive begins to receive a long active message for which there is memory.
func (g *Gate) beginActive(h *header.Header, req *header.Request, b []byte) error {
	s := g.s
	extra, key := h.Data(b)
	n := int(req.Total)
	u := s.newUnexpected(n + len(extra))
	u.long = true
	s.active.budget -= u.cost
	g.active.in++
	u.g, u.h = g, *h
	copy(u.buf[n:], extra)
	u.now = Active{Data: u.buf[:n:n], Header: u.buf[n:]}
	if u.call == nil {
		u.call = func() { s.handleLong(u) }
	}
	r := s.request("active message")
	r.buf, r.active = u.buf[:n], u
	return s.receiveLong(r, g, h, req, nil, key)
}

// waitingActive is the RTS of a long active message for which there is no memory yet.
type waitingActive struct {
	g   *Gate
	h   header.Header
	req header.Request
	b   []byte // the whole packet
}

const waitingActiveCost = int(unsafe.Sizeof(waitingActive{}))

// activesWait reports whether a long active message waits for memory, and not only for the end of a pause.
func (s *Session) activesWait() bool {
	return slices.ContainsFunc(s.active.waiting, func(w waitingActive) bool { return w.g.pausing.state == notPaused })
}

// beginActives begins to receive the long active messages for which there is memory now, the oldest first. Those of gates
// that pause would keep it for as long.
func (s *Session) beginActives() {
	for i := 0; i < len(s.active.waiting); {
		w := s.active.waiting[i]
		if w.g.pausing.state != notPaused {
			i++
			continue
		}
		if activeCost(&w.h, &w.req) > s.active.budget {
			return
		}
		s.dropWaitingActive(i)
		if err := w.g.beginActive(&w.h, &w.req, w.b); err != nil && w.g.lead != nil {
			w.g.lead.failProtocol(err)
		}
	}
}

// dropWaitingActive removes a long active message that waits for memory.
func (s *Session) dropWaitingActive(i int) {
	w := &s.active.waiting[i]
	w.g.active.waiting--
	w.g.charge(-waitingActiveCost - len(w.b))
	s.active.waiting = slices.Delete(s.active.waiting, i, i+1)
}

// dropWaitingActives removes those of the peer's long active messages that wait for memory for which
// f holds; nil holds for all.
func (g *Gate) dropWaitingActives(f func(*waitingActive) bool) {
	for i := len(g.s.active.waiting) - 1; i >= 0 && g.active.waiting > 0; i-- {
		if w := &g.s.active.waiting[i]; w.g == g && (f == nil || f(w)) {
			g.s.dropWaitingActive(i)
		}
	}
}

// activeEnded ends the reception of a long active message: its handler is called, when the lock is given up, or its
// memory given back.
func (s *Session) activeEnded(u *unexpected, err error) {
	g := u.g
	switch {
	case err != nil || s.closed:
		g.active.in--
		s.freeUnexpected(u)
	case g.active.handling: // called when that handler has returned
		end := &g.active.due
		for *end != nil {
			end = &(*end).next
		}
		*end = u
	default:
		g.active.handling = true // nothing overtakes it
		s.calls, s.active.called = append(s.calls, u.call), true
	}
}

// handled ends the call of a handler.
func (g *Gate) handled() {
	s := g.s
	if u := g.active.due; u != nil {
		g.active.due, u.next = u.next, nil
		s.calls, s.active.called = append(s.calls, u.call), true
		return
	}
	g.active.handling = false
	// The driver may have reported an arrival while the handler ran, and reports it only once.
	g.resume()
}

// resume has the gate polled again.
func (g *Gate) resume() {
	if !g.active.resuming { // a flood of messages must not make the list grow
		g.active.resuming = true
		g.s.active.resumed = append(g.s.active.resumed, g)
	}
	g.s.kickMover()
}

// handleLong calls the handler of a long active message.
func (s *Session) handleLong(u *unexpected) {
	s.mu.lock()
	defer s.leave()
	g := u.g
	if f := s.active.handlers[uint8(u.h.Tag)]; f == nil {
		g.unhandled(uint8(u.h.Tag))
	} else if !s.closed {
		s.active.running++
		g.begins(uint8(u.h.Tag))
		s.unlock()
		f(g, &u.now)
		s.mu.lock()
		s.active.running--
	}
	g.handled()
	g.active.in--
	s.freeUnexpected(u)
}

// takeResumed takes what has arrived at the gates that resume was called for.
func (s *Session) takeResumed() (moved bool) {
	for n := len(s.active.resumed); n > 0 && len(s.active.resumed) > 0; n-- {
		g := s.active.resumed[0]
		s.active.resumed = append(s.active.resumed[:0], s.active.resumed[1:]...)
		g.active.resuming = false
		moved = g.takeArrived() || moved
	}
	return moved
}
