package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/session/internal/match"
	"github.com/bywash/bywash/session/launch"
)

// When a rank ends, drivers notice it on established connections. Without a connection only the launcher can report it
// (launch.Client.WatchEnds). Operations with that rank then fail once no connection to it is left. Messages that it has
// delivered can still be received.

// endedTimeout is how long a connection that is being made has when its peer has ended: the peer may have made it
// before, and have sent on it.
const endedTimeout = time.Second

// watchEnds lets the launcher report ends.
func (s *Session) watchEnds() {
	if w, ok := s.launcher.job.(interface {
		WatchEnds(f func(launch.End)) error
	}); ok && s.size > 1 {
		_ = w.WatchEnds(s.rankEnded) // fails if the launcher cannot, or is gone, which watchLauncher reports
	}
}

// rankEnded records that a rank has ended.
func (s *Session) rankEnded(e launch.End) {
	s.mu.lock()
	defer s.leave()
	if s.closed || e.Rank == s.rank || e.Rank >= s.size || s.launcher.ends[e.Rank] != nil {
		return
	}
	if s.launcher.ends == nil {
		s.launcher.ends = make(map[int]error)
	}
	kind := ErrBroken
	if e.How == launch.Left {
		kind = ErrClosed
	}
	s.launcher.ends[e.Rank] = fmt.Errorf("%w: %w", kind, e.Err())
	if g := s.gates[e.Rank]; g != nil {
		if g.state == gateConnecting {
			g.cancelDialAfter(endedTimeout, func() bool { return true })
		}
		if !g.failEnded() {
			s.callers.awaiters = append(s.callers.awaiters, &awaiter{ok: g.failEnded, wake: make(chan struct{}, 1)})
		}
	}
	if len(s.launcher.ends) == s.size-1 && !s.failNoSenders() {
		s.callers.awaiters = append(s.callers.awaiters, &awaiter{ok: s.failNoSenders, wake: make(chan struct{}, 1)})
	}
}

// failEnded ends what waits for a peer that has ended, if there is no connection to it any more. It returns false while
// there is one.
func (g *Gate) failEnded() bool {
	s := g.s
	switch {
	case s.closed:
	case g.state == gateIdle:
		if s.table.Awaits(g.index) {
			g.failUnconnectable()
		}
	case g.state == gateBroken:
		g.err = g.addEnd(g.err)
	default:
		return false
	}
	return true
}

// addEnd adds the peer's end, if the launcher has reported it, to the error of a broken connection. If the peer had
// closed its session before, the end replaces the error.
func (g *Gate) addEnd(err error) error {
	if len(g.s.launcher.ends) == 0 || g.rank < 0 || !errors.Is(err, ErrBroken) && !g.close.peerLeft {
		return err
	}
	end := g.s.launcher.ends[g.rank]
	var e *Error
	if end == nil || errors.Is(err, end) || !errors.As(err, &e) {
		return err
	}
	if g.close.peerLeft {
		return g.fault(e.Op, end)
	}
	return g.fault(e.Op, fmt.Errorf("%w (%w)", e.Err, end))
}

// noSenders returns an error if no message can come any more: all other ranks have ended, and no connection is left,
// not even one to this process itself or to another session.
func (s *Session) noSenders() error {
	if s.size == 1 || len(s.launcher.ends) < s.size-1 {
		return nil
	}
	for _, g := range s.gates {
		if g != nil && (g.rank < 0 || g.state != gateIdle && g.state != gateBroken) {
			return nil
		}
	}
	var why error
	for rank := range s.size { // a rank that did not leave in order comes first
		if end := s.launcher.ends[rank]; end != nil && (why == nil || !errors.Is(why, ErrBroken) && errors.Is(end, ErrBroken)) {
			why = end
		}
	}
	return &Error{Peer: -1, Op: "receive", Err: fmt.Errorf("all other ranks have ended: %w", why)}
}

// failNoSenders has receives from any source fail when no message can come any more. It returns false until then.
func (s *Session) failNoSenders() bool {
	if s.closed {
		return true
	}
	err := s.noSenders()
	if err == nil {
		return false
	}
	s.table.CancelFrom(match.Any, func(r *match.Receive) { s.complete(r.User.(*Request), err) })
	return true
}
