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
	} else if r, ok := s.transfers.syncs.get(msg.sync); ok {
		r.inDriver = true
		if !r.taken {
			r.taken = true
			r.g.held.syncs++
		}
	} else if o, ok := s.oneSided.ops.get(msg.id); ok {
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
	if r, ok := s.transfers.syncs.get(msg.sync); ok {
		if r.inDriver = false; r.acked {
			s.endSync(r, nil)
		}
	} else if o, ok := s.oneSided.ops.get(msg.id); ok {
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
		s.endSync(r, nil)
	}
	return nil
}

// endSync completes a synchronous message.
func (s *Session) endSync(r *Request, err error) {
	s.dropSync(r)
	r.g.ended()
	s.complete(r, r.g.fault("send", cause(err)))
}

// failSyncs fails the gate's synchronous messages that are not parked.
func (s *Session) failSyncs(g *Gate, err error) {
	s.transfers.syncs.each(func(_ uint64, r *Request) {
		if r.g == g && !r.parked {
			s.endSync(r, err)
		}
	})
}

// dropSync removes a synchronous message that is over.
func (s *Session) dropSync(r *Request) {
	s.transfers.syncs.remove(r.sync)
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
