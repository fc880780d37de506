package session

import "errors"

// An answer of the peer (to a synchronous message, an RTS or an operation by message) must belong to a request that a
// driver has already taken: a peer could guess the number of one that has not left, so such an answer ends the
// connection. A message is not over before the driver has given its memory back, even if the answer arrives earlier.

var errUnrequested = errors.New("reply to an unknown request")

// noteTaken records that a driver has taken a message that the peer will answer.
func (s *Session) noteTaken(msg *outMsg) {
	if msg.out != nil {
		if o := msg.out; !o.rtsTaken {
			o.rtsTaken = true
			o.g.held.longs++
		}
	} else if r, ok := s.transfers.syncs.get(msg.sync); ok && msg.sync != 0 {
		r.inDriver = true
		if !r.taken {
			r.taken = true
			r.g.held.syncs++
		}
	} else if o, ok := s.oneSided.ops.get(msg.id); ok && msg.id != 0 {
		o.sent++
		o.inDriver++
		msg.counted = true
	}
}

// noteReturned records that the driver has given the message back. Its request may be over by then.
func (s *Session) noteReturned(msg *outMsg) {
	if msg.out != nil {
		return // the driver has used none of its memory
	}
	if r, ok := s.transfers.syncs.get(msg.sync); ok && msg.sync != 0 {
		if r.inDriver = false; r.acked {
			s.matched(r)
		}
	} else if o, ok := s.oneSided.ops.get(msg.id); ok && msg.id != 0 {
		if o.inDriver--; o.inDriver == 0 && (o.dropped || o.answered()) {
			o.end(s, o.err)
		}
	}
}

// acked handles an ACK.
func (l *link) acked(id uint64) error {
	s := l.g.s
	r, ok := s.transfers.syncs.get(id)
	if !ok || r.g != l.g {
		s.stats.Bad++
		return nil
	}
	if !r.taken || r.acked {
		return errUnrequested
	}
	if r.acked = true; !r.inDriver {
		s.matched(r)
	}
	return nil
}

// matched completes a synchronous message.
func (s *Session) matched(r *Request) {
	s.dropSync(r.sync, r)
	r.g.ended()
	s.complete(r, nil)
}

// dropSync removes a synchronous message that is over.
func (s *Session) dropSync(id uint64, r *Request) {
	s.transfers.syncs.remove(id)
	if r.taken {
		r.taken = false
		r.g.held.syncs--
		r.g.unblock()
	}
}

// dropOut removes a long message that is over.
func (s *Session) dropOut(o *outgoing) {
	s.transfers.outs.remove(o.id)
	if o.rtsTaken {
		o.g.held.longs--
		o.g.unblock()
	}
}

// unblock has the backlog pushed again: its head may have waited for an answer of the peer, or was taken back.
func (g *Gate) unblock() {
	if g.queues.backlog.n > 0 {
		g.markBusy()
	}
}

// answered reports whether all messages of an operation have their replies.
func (o *Op) answered() bool {
	return o.replies > 0 && o.flying == 0 && (o.err != nil || o.next == len(o.buf))
}
