package session

import (
	"fmt"
	"slices"

	"github.com/bywash/bywash/session/internal/match"
)

// Forget removes a gate that Session.Connect has made, with all its messages that were not received. It never blocks:
// a connected gate is disconnected first, in the background; an attempt to connect is cancelled. Later calls on the
// gate fail with ErrClosed. The peer is not told if there is no connection, as after a pause: its messages go on waiting. For the gate to a rank, which exists as long as the session, Forget fails with ErrInvalid.
func (g *Gate) Forget() error {
	s := g.s
	s.mu.lock()
	defer s.leave()
	switch {
	case g.foreign == nil:
		return g.fault("forget", fmt.Errorf("%w: gates of ranks of this job cannot be removed", ErrInvalid))
	case g.close.forgotten:
		return g.fault("forget", ErrClosed)
	}
	g.close.forgotten = true
	switch g.state { // the end of the connection removes it
	case gateUp, gateClosing:
		g.close.asked = true
		g.markBusy()
		g.tryClose()
	case gateConnecting:
		g.dialing.cancel()
	default:
		g.remove()
	}
	return nil
}

// remove removes a gate after Forget, once it has no connection. Its source number can then be reused.
func (g *Gate) remove() {
	s := g.s
	err := g.fault("forgotten", ErrClosed)
	g.drop(err)
	g.failReceives(err)
	s.table.Each(g.index, func(a *match.Arrival) {
		s.table.Take(a)
		s.freeUnexpected(a.User.(*unexpected))
	})
	g.state, g.err = gateBroken, err
	s.gates[g.index] = nil
}

// place is the number of a new gate.
func (s *Session) place() int {
	if i := slices.Index(s.gates[s.size:], nil); i >= 0 {
		return s.size + i
	}
	s.gates = append(s.gates, nil)
	return len(s.gates) - 1
}
