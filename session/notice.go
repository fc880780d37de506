package session

import (
	"fmt"
	"log/slog"
	"time"
)

// A program that leaves messages unreceived, or whose handler of active messages does not return, can wait forever for
// a later message of the same peer. The session reports that after noticeTime, once for each connection.

// noticeTime is how long messages wait, or a handler runs, before the session reports it. Tests shorten it.
var noticeTime = time.Second

// notice reports a fault of the program to Config.OnError, or to package log/slog. The caller holds the session's lock.
func (s *Session) notice(g *Gate, op string, err error) {
	e := &Error{Peer: g.rank, Gate: g, Op: op, Err: err, NonFatal: true}
	f := s.cfg.OnError
	if f == nil {
		f = func(e *Error) { slog.Warn(e.Error()) }
	}
	s.calls = append(s.calls, func() { f(e) })
}

// stallWatch counts how often the session has left a message of a link in the driver because the budget for unexpected
// messages was used up. If the count stays the same, the program has received nothing that would have freed memory.
type stallWatch struct {
	times    uint64
	seen     uint64    // times, when noticeStalled last found it changed
	since    time.Time // when that was
	reported bool
}

// noticeStalled reports each link whose next message has waited in the driver for noticeTime without a message being
// received that would have made room for it. The caller holds the session's lock.
func (s *Session) noticeStalled() {
	now := time.Now()
	for _, l := range s.stalled {
		w := &l.stalls
		switch {
		case w.reported || l.dead || l.g.handling:
		case w.seen != w.times:
			w.seen, w.since = w.times, now
		case now.Sub(w.since) >= noticeTime:
			w.reported = true
			s.notice(l.g, "receive", fmt.Errorf("%w: %d, of which this peer has sent %d, and none of its later messages is taken: "+
				"receive them, Session.Drop them, or raise Config.Unexpected (%d bytes)", ErrUnreceived, s.unexpectedN, l.g.unexpectedN, s.cfg.Unexpected))
		}
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

// begins counts the call of a handler, and has noticeHandlers look after noticeTime. The caller holds the session's
// lock.
func (g *Gate) begins(number uint8) {
	g.handler.number = number
	g.handler.calls++
	switch s := g.s; {
	case s.handlersWatched || g.handler.reported:
	case s.handlerTimer == nil:
		s.handlersWatched, s.handlerTimer = true, time.AfterFunc(noticeTime, s.noticeHandlers)
	default:
		s.handlersWatched = true
		s.handlerTimer.Reset(noticeTime)
	}
}

// noticeHandlers reports each handler that has run since the last look, and looks again after noticeTime if other
// handlers run.
func (s *Session) noticeHandlers() {
	s.mu.lock()
	defer s.leave()
	s.handlersWatched = false
	if s.closed {
		return
	}
	for _, g := range s.gates {
		if g == nil || !g.handling || g.handler.reported {
			continue
		}
		if w := &g.handler; w.seen != w.calls {
			w.seen, s.handlersWatched = w.calls, true
		} else {
			w.reported = true
			s.notice(g, "active message", fmt.Errorf("%w: that of number %d has run for %v or longer, and nothing is taken from this peer meanwhile: "+
				"a handler must not block; have it start a goroutine", ErrHandlerBlocks, w.number, noticeTime))
		}
	}
	if s.handlersWatched {
		s.handlerTimer.Reset(noticeTime)
	}
}
