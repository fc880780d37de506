// Package relay keeps the short messages of a gate in order, each delivered
// once, when the rail that carries them breaks and another takes over. It is a
// state machine without any I/O: its test explores every order of events.
//
// # How it works
//
// Short messages go over one rail, the lead: the first in the gate's order that is not
// lost. A rail keeps order and loses nothing until it breaks, so messages need no
// numbers on the wire: both ends count those that are numbered, which is all but
// the ones that only serve a connection itself. The sender keeps a copy of each
// until the peer has said, now and then, how many it has seen.
//
// An end whose lead breaks takes nothing more from it, and says Resume on the next one: how many messages it has taken,
// and which rails it has lost. The other end gives those up as well, if it has not noticed yet, and answers with its
// own Resume. An end that has said and heard Resume on the lead drops the copies that have arrived, sends the others
// again, and goes on. As an end takes nothing from a rail that it has given up, its count stays true, and nothing
// arrives twice.
package relay

import (
	"errors"
	"math/bits"
)

// MaxRails is how many rails there can be.
const MaxRails = 8

// ErrProtocol means that the peer said what makes no sense.
var ErrProtocol = errors.New("relay: violation of the protocol")

// End is one end of a gate's short messages. The zero value has no rails.
type End struct {
	rails          uint8
	lost           uint8 // rails, a bit each
	lead           uint8
	resumeSent     bool // Resume, on the lead; not needed on the first rail
	resumeReceived bool
	sent           uint64 // numbered messages given to the lead, or to those before
	seen           uint64 // of them, by the peer
	got            uint64 // messages taken
	reported       uint64 // of them the peer knows
}

// Begin starts with so many rails, 1 to MaxRails, none of them lost.
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

// Lost gives a rail up. It reports whether that was the lead.
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

// Unacknowledged is how many of them the peer has not said that it has seen.
func (e *End) Unacknowledged() int { return int(e.sent - e.seen) }

// Taken counts a numbered message that came over a rail. ErrProtocol if none may come
// there.
func (e *End) Taken(rail int) error {
	if rail != int(e.lead) || !e.resumeReceived {
		return ErrProtocol
	}
	e.got++
	return nil
}

// UndoTaken is Taken undone: the message was left where it is, for later.
func (e *End) UndoTaken() { e.got-- }

// Unreported is how many messages were taken that the peer does not know of.
func (e *End) Unreported() int { return int(e.got - e.reported) }

// Report is how many were taken, to be told to the peer now.
func (e *End) Report() uint64 {
	e.reported = e.got
	return e.got
}

// Seen takes what the peer tells. Of the messages that are kept the first n need not be any
// longer.
func (e *End) Seen(got uint64) (n int, err error) {
	if got < e.seen || got > e.sent {
		return 0, ErrProtocol
	}
	n = int(got - e.seen)
	e.seen = got
	return n, nil
}

// Resume is what is to be said on the lead. False if nothing is.
func (e *End) Resume() (got uint64, lost uint8, ok bool) {
	if e.resumeSent || e.Lead() < 0 {
		return 0, 0, false
	}
	return e.got, e.lost, true
}

// ResumeSent tells that it was said.
func (e *End) ResumeSent() { e.resumeSent, e.reported = true, e.got }

// ResumeReceived takes the peer's Resume, which came over a rail that this end has not
// lost. Rails that the peer has lost, and this end has not, are then lost here. Of the
// messages that are kept the first n have arrived; the others have to be sent, and counted,
// again. ErrProtocol changes nothing.
func (e *End) ResumeReceived(rail int, got uint64, lost uint8) (n int, err error) {
	below := uint8(1)<<rail - 1
	switch {
	case rail >= int(e.rails) || e.lost>>rail&1 != 0 || lost>>rail&1 != 0 || lost&below != below || lost == 0:
		return 0, ErrProtocol // it takes the first that it has not lost
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
