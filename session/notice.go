package session

import (
	"fmt"
	"log/slog"
	"time"
)

// A program that leaves messages unreceived, or whose handler does not return, can wait for ever for a message that is
// behind them. It is told after noticeTime, once for each connection.

// noticeTime is how long that has to last. Tests shorten it.
var noticeTime = time.Second

// notice tells the program what goes on although it should not. The caller holds the lock.
func (s *Session) notice(g *Gate, op string, err error) {
	e := &Error{Peer: g.rank, Gate: g, Op: op, Err: err, NonFatal: true}
	f := s.cfg.OnError
	if f == nil {
		f = func(e *Error) { slog.Warn(e.Error()) }
	}
	s.calls = append(s.calls, func() { f(e) })
}

// stallWatch tells whether messages of a link have been received since it was held up.
type stallWatch struct {
	times uint64 // that it was held up
	seen  uint64
	since time.Time
	told  bool
}

// noticeStalled tells of links that have been held up for long, with nothing of them received meanwhile. The caller holds
// the lock.
func (s *Session) noticeStalled() {
	now := time.Now()
	for _, l := range s.stalled {
		w := &l.stalls
		switch {
		case w.told || l.dead || l.g.handling:
		case w.seen != w.times:
			w.seen, w.since = w.times, now
		case now.Sub(w.since) >= noticeTime:
			w.told = true
			s.notice(l.g, "receive", fmt.Errorf("%w: %d, of which this peer has sent %d, and none of its later messages is taken: "+
				"receive them, Session.Drop them, or raise Config.Unexpected (%d bytes)", ErrUnreceived, s.keptN, l.g.keptN, s.cfg.Unexpected))
		}
	}
}

// handlerWatch tells whether the handler of a gate's active messages is still the one that ran a while ago.
type handlerWatch struct {
	number uint8
	calls  uint64
	seen   uint64
	told   bool
}

// begins takes note that a handler begins. The caller holds the lock.
func (g *Gate) begins(number uint8) {
	g.handler.number = number
	g.handler.calls++
	switch s := g.s; {
	case s.handlersWatched || g.handler.told:
	case s.handlerTimer == nil:
		s.handlersWatched, s.handlerTimer = true, time.AfterFunc(noticeTime, s.noticeHandlers)
	default:
		s.handlersWatched = true
		s.handlerTimer.Reset(noticeTime)
	}
}

// noticeHandlers tells of handlers that do not return, and looks again later if others run.
func (s *Session) noticeHandlers() {
	s.mu.lock()
	defer s.leave()
	s.handlersWatched = false
	if s.closed {
		return
	}
	for _, g := range s.gates {
		if g == nil || !g.handling || g.handler.told {
			continue
		}
		if w := &g.handler; w.seen != w.calls {
			w.seen, s.handlersWatched = w.calls, true
		} else {
			w.told = true
			s.notice(g, "active message", fmt.Errorf("%w: that of number %d has run for %v or longer, and nothing is taken from this peer meanwhile: "+
				"a handler must not block; have it start a goroutine", ErrHandlerBlocks, w.number, noticeTime))
		}
	}
	if s.handlersWatched {
		s.handlerTimer.Reset(noticeTime)
	}
}
