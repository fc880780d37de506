package rdv

import "errors"

// ErrProtocol means that the other half violated the protocol.
var ErrProtocol = errors.New("rendezvous: violation of the protocol")

// maxActive bounds the chunks in this side's driver. They can be more than the receiver's window, because it may learn
// first that one is done.
const maxActive = 4096

// Sender is the sending half.
type Sender struct {
	total   int
	want    int // bytes that the receiver wants; -1: not known yet
	sent    int
	next    uint32 // number of the next chunk
	active  int    // chunks in the driver's hands
	confirm bool
	done    bool // the receiver has everything
	failed  bool
}

// Begin starts a message of total bytes.
func (s *Sender) Begin(total int) { *s = Sender{total: total, want: -1} }

// Confirm sets, before the RTS has left, when the message is complete: with confirm when the receiver has sent DONE, else
// when all bytes that the receiver wants have left.
func (s *Sender) Confirm(confirm bool) { s.confirm = confirm }

// Confirmable reports whether it does.
func (s *Sender) Confirmable() bool { return s.confirm }

// Asked takes an RTR. Start reports whether the chunk is to be sent: not if its number was used before. It returns
// ErrProtocol, and changes nothing, if the RTR is invalid.
func (s *Sender) Asked(c Chunk, want int) (start bool, err error) {
	switch {
	case c.Off < 0 || c.Len < 0 || want < 0 || want > s.total || c.Off > want || c.Len > want-c.Off:
		return false, ErrProtocol
	case s.want >= 0 && want != s.want:
		return false, ErrProtocol
	case c.ID < s.next:
		return false, nil // once more
	case c.ID != s.next || s.active == maxActive:
		return false, ErrProtocol
	}
	s.want = want
	s.next++
	if s.failed || s.done {
		return false, nil
	}
	s.active++
	return true, nil
}

// Left reports to the sender that the driver has given back a chunk of n bytes. With ok, as far as this side can know,
// it was delivered.
func (s *Sender) Left(n int, ok bool) {
	s.active--
	if ok {
		s.sent += n
	} else if !s.confirm {
		s.failed = true // the receiver will not request it again
	}
}

// Confirmed takes DONE for the whole message. False if it comes twice.
func (s *Sender) Confirmed() bool {
	if s.done {
		return false
	}
	s.done = true
	return true
}

// Fail ends the message.
func (s *Sender) Fail() { s.failed = true }

// Hold is how many chunks are in the driver's hands.
func (s *Sender) Hold() int { return s.active }

// Complete reports whether the message is sent and its memory free.
func (s *Sender) Complete() bool {
	if s.active > 0 || s.failed && !s.done {
		return false
	}
	return s.done || !s.confirm && s.want >= 0 && s.sent >= s.want
}

// Over reports whether the message has failed and its memory is free.
func (s *Sender) Over() bool { return s.failed && !s.done && s.active == 0 }

// Matched reports whether the receiver has asked for anything yet.
func (s *Sender) Matched() bool { return s.want >= 0 || s.done }
