package session

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/bywash/bywash/session/internal/credit"
)

// A program that leaves messages unreceived, or whose handler of active messages does not return, can wait forever for
// a later message of the same peer. The session reports that after noticeTime, once for each connection. It reports
// active messages without a handler at once, the first one of each number.

// noticeTime is how long messages wait, or a handler runs, before the session reports it. Tests shorten it.
var noticeTime = time.Second

// notice reports a fault of the program to Config.OnError, or to package log/slog. The caller holds the session's lock.
func (s *Session) notice(g *Gate, op string, err error) {
	e := &Error{Peer: g.rank, Gate: g, Op: op, Err: err, NonFatal: true}
	if s.cfg.OnError != nil {
		s.reportError(e)
		return
	}
	s.calls = append(s.calls, func() { slog.Warn(e.Error()) })
}

// blockedWatch is what noticeBlocked has last seen of a peer that may have no credit. If nothing has changed since, the
// program has received nothing that would have given the peer credit.
type blockedWatch struct {
	on       bool // the peer may have no credit
	kept     int
	grant    credit.Amount
	reported bool
}

// noticeBlocked reports that a peer, which may wait for credit, has got none since the last look. It returns whether it
// has to look again.
func (g *Gate) noticeBlocked() (again bool) {
	s, w := g.s, &g.credit.blockage
	kept, grant := g.credit.receive.Kept(), g.credit.receive.Grant()
	switch {
	case w.reported || !w.on || !g.credit.receive.Blocked():
		w.kept = 0
		return false
	case g.active.handling || w.kept != kept || w.grant != grant:
		w.kept, w.grant = kept, grant
		return true
	}
	w.reported = true
	remedy := fmt.Sprintf("receive them, Session.Drop them, or raise Config.Unexpected (%d bytes)", s.cfg.Unexpected)
	if g.credit.receive.Full() {
		remedy = fmt.Sprintf("receive them or Session.Drop them (one peer can have %d)", maxUnexpectedOfPeer)
	}
	s.notice(g, "receive", fmt.Errorf("%w: %d, of which this peer has sent %d, and it can send no more: %s",
		ErrUnreceived, s.table.Waiting(), kept, remedy))
	return false
}

// unhandled counts an active message for which there is no handler.
func (g *Gate) unhandled(number uint8) {
	s := g.s
	s.stats.Bad++
	if w, bit := &s.active.unhandled[number/64], uint64(1)<<(number%64); *w&bit == 0 {
		*w |= bit
		s.notice(g, "active message", fmt.Errorf("%w: number %d, which is dropped: register it with Session.Handle before the peer sends",
			ErrNoHandler, number))
	}
}

// handlerWatch counts the calls of handlers for a gate's active messages. If a handler runs and the count is the same
// as noticeTime ago, that call has lasted all the time.
type handlerWatch struct {
	number   uint8 // of the active message that is being handled
	calls    uint64
	seen     uint64 // calls, when noticeHandlers last looked
	reported bool
}

// begins counts the call of a handler, and has the program watched. The caller holds the session's lock.
func (g *Gate) begins(number uint8) {
	g.active.watch.number = number
	g.active.watch.calls++
	if !g.active.watch.reported {
		g.s.watchProgram()
	}
}

// programWatch is the timer of lookAtProgram.
type programWatch struct {
	on    bool // it runs
	timer *time.Timer
}

// watchProgram has lookAtProgram look after noticeTime.
func (s *Session) watchProgram() {
	switch {
	case s.watch.on:
	case s.watch.timer == nil:
		s.watch.on, s.watch.timer = true, time.AfterFunc(noticeTime, s.lookAtProgram)
	default:
		s.watch.on = true
		s.watch.timer.Reset(noticeTime)
	}
}

// lookAtProgram reports what has lasted since it looked before, and looks again if anything else goes on.
func (s *Session) lookAtProgram() {
	s.mu.lock()
	defer s.leave()
	s.watch.on = false
	if s.closed {
		return
	}
	for _, g := range s.gates {
		if g != nil {
			s.watch.on = g.noticeHandler() || s.watch.on
			s.watch.on = g.noticeBlocked() || s.watch.on
		}
	}
	if s.watch.on {
		s.watch.timer.Reset(noticeTime)
	}
}

// noticeHandler reports a handler that has run since the last look. It returns whether another one runs.
func (g *Gate) noticeHandler() (again bool) {
	w := &g.active.watch
	switch {
	case !g.active.handling || w.reported:
		return false
	case w.seen != w.calls:
		w.seen = w.calls
		return true
	}
	w.reported = true
	g.s.notice(g, "active message", fmt.Errorf("%w: that of number %d has run for %v or longer, and nothing is taken from this peer meanwhile: "+
		"a handler must not block; have it start a goroutine", ErrHandlerBlocks, w.number, noticeTime))
	return false
}
