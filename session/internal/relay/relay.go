// Package relay keeps the short messages of a gate in order, each delivered
// once, when the rail that carries them breaks and another takes over. It is a
// state machine without any I/O: its test explores every order of events.
//
// # How it works
//
// Short messages go over one rail, the lead: the first in the gate's order that is not lost. A rail keeps order and
// loses nothing until it breaks, so messages need no numbers on the wire: both ends count those that are numbered,
// which is all but the ones that only serve a connection itself. The sender keeps a copy of each until the peer has
// acknowledged it: now and then the peer sends how many messages it has seen.
//
// An end whose lead breaks takes nothing more from it, and sends Resume on the next one: how many messages it has
// taken, and which rails it has lost. The other end marks those as lost as well, if it has not noticed yet, and
// answers with its own Resume. An end that has sent and received Resume on the lead drops the copies that have
// arrived, sends the others again, and goes on. Because an end takes nothing from a lost rail, its count stays
// correct, and nothing arrives twice.
package relay

import (
	"errors"
	"math/bits"
)

// ErrProtocol means that the peer violated the protocol.
var ErrProtocol = errors.New("relay: violation of the protocol")

// End is one end of a gate's short messages. The zero value has no rails.
type End struct {
	rails          uint8
	lost           uint8 // rails, a bit each
	lead           uint8
	resumeSent     bool // Resume was sent on the lead; not needed on the first rail
	resumeReceived bool
	sent           uint64 // numbered messages given to the lead, or to those before
	seen           uint64 // of the messages sent, how many the peer has acknowledged
	got            uint64 // messages taken
	reported       uint64 // of the messages taken, how many were reported to the peer
}

// Begin starts with so many rails, 1 to 8, none of them lost.
func (e *End) Begin(rails int) {
	*e = End{rails: uint8(rails), resumeSent: true, resumeReceived: true}
}

// Lead is the number of the rail that carries messages; -1 if none is left.
func (e *End) Lead() int {
	if e.lead >= e.rails {
		return -1
	}
	return int(e.lead)
}

// Open reports whether messages may be sent on the lead.
func (e *End) Open() bool { return e.resumeSent && e.resumeReceived }

// Lost marks a rail as lost. It reports whether that was the lead.
func (e *End) Lost(rail int) bool {
	e.lost |= 1 << rail
	return e.choose()
}

func (e *End) choose() (changed bool) {
	if lead := uint8(bits.TrailingZeros8(^e.lost)); lead != e.lead {
		e.lead, e.resumeSent, e.resumeReceived = lead, false, false
		return true
	}
	return false
}

// Sent counts a numbered message that the lead has taken.
func (e *End) Sent() { e.sent++ }

// Taken counts a numbered message that came over a rail. It returns ErrProtocol if none may arrive there.
func (e *End) Taken(rail int) error {
	if rail != int(e.lead) || !e.resumeReceived {
		return ErrProtocol
	}
	e.got++
	return nil
}

// Unreported returns how many messages were taken and not reported to the peer.
func (e *End) Unreported() int { return int(e.got - e.reported) }

// Report returns how many messages were taken, to be sent to the peer now.
func (e *End) Report() uint64 {
	e.reported = e.got
	return e.got
}

// Seen takes the peer's count of messages. The caller can drop its first n copies.
func (e *End) Seen(got uint64) (n int, err error) {
	if got < e.seen || got > e.sent {
		return 0, ErrProtocol
	}
	n = int(got - e.seen)
	e.seen = got
	return n, nil
}

// Resume returns the content of the Resume that must be sent on the lead. ok is false if none must be sent.
func (e *End) Resume() (got uint64, lost uint8, ok bool) {
	if e.resumeSent || e.Lead() < 0 {
		return 0, 0, false
	}
	return e.got, e.lost, true
}

// ResumeSent records that Resume was sent.
func (e *End) ResumeSent() { e.resumeSent, e.reported = true, e.got }

// ResumeReceived takes the peer's Resume, which came over a rail that this end has not lost. Rails that the peer has
// lost, and this end has not, are then lost here. Of the copies the first n have arrived; the others have to be sent,
// and counted, again. If it returns ErrProtocol, nothing has changed.
func (e *End) ResumeReceived(rail int, got uint64, lost uint8) (n int, err error) {
	below := uint8(1)<<rail - 1
	switch {
	case rail >= int(e.rails) || e.lost>>rail&1 != 0 || lost>>rail&1 != 0 || lost&below != below || lost == 0:
		return 0, ErrProtocol // the peer uses the first rail that it has not lost
	case got < e.seen || got > e.sent, rail == int(e.lead) && e.resumeReceived:
		return 0, ErrProtocol
	}
	e.lost |= lost
	e.choose()
	e.resumeReceived = true
	n = int(got - e.seen)
	e.seen, e.sent = got, got
	return n, nil
}
