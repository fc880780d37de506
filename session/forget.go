package session

import (
	"fmt"

	"github.com/bywash/bywash/session/internal/match"
)

// Forget gives up the gate to a process of another session, which Session.Connect has made: nothing of it stays, messages
// that came from there and were not received included. It never blocks: a connection that stands is closed first, as
// Disconnect does, one that is still being made is given up. Calls on the gate fail with ErrClosed from then on. ErrInvalid for
// the gate to a rank, which there is as long as the session.
func (g *Gate) Forget() error {
	s := g.s
	s.mu.lock()
	defer s.leave()
	switch {
	case g.foreign == nil:
		return g.fault("forget", fmt.Errorf("%w: the gate to a rank of this job", ErrInvalid))
	case g.forgotten:
		return g.fault("forget", ErrClosed)
	}
	g.forgotten = true
	switch g.state { // the end of the connection removes it
	case gateUp, gateClosing:
		g.leaving = true
		g.work()
		g.tryClose()
	case gateConnecting:
		g.giveUp()
	default:
		g.remove()
	}
	return nil
}

// remove takes a gate that is forgotten, and has no connection, out of the session. Its number is another one's then.
func (g *Gate) remove() {
	s := g.s
	err := g.fault("forgotten", ErrClosed)
	g.drop(err)
	g.failReceives(err)
	s.table.Each(g.index, func(a *match.Arrival) {
		s.table.Take(a)
		s.freeKept(a.User.(*kept))
	})
	g.state, g.err = gateBroken, err
	s.gates[g.index] = nil
}

// place is the number of a new gate.
func (s *Session) place() int {
	for i := s.size; i < len(s.gates); i++ {
		if s.gates[i] == nil {
			return i
		}
	}
	s.gates = append(s.gates, nil)
	return len(s.gates) - 1
}
