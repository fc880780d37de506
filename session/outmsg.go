package session

import (
	"errors"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// outMsg is an outgoing message of the small track: queued, or posted to the driver.
type outMsg struct {
	p        driver.Packet
	iov      [2][]byte
	buf      []byte    // header, and data that was copied behind it
	req      *Request  // completes when the message has left; nil: none
	out      *outgoing // of an RTS
	frag     *outgoing // of a fragment
	sync     uint64    // id of a synchronous message
	id       uint64    // id of the operation that it requests; of an RTS: id of out
	next     *outMsg
	room     [128]byte
	big      []byte
	prepared Prepared
	urgent   bool  // queued before messages that are not urgent
	counted  bool  // counted in Op.inDriver
	paid     bool  // has taken credit
	charged  *Gate // the gate whose heldBytes includes cost; nil: none
	cost     int32
}

// copyMax is up to how many bytes of a message are copied behind the header, so that the send is done for the caller
// even while the driver still uses the message.
const copyMax = 256

// queues are a gate's messages that wait to leave, in the order in which push sends them; see there.
type queues struct {
	replay      outQueue // copies that are sent again over another rail
	firstAnswer *outMsg  // the first answer, for which the driver had no room
	answers     answers
	control     outQueue // of messages under way: requests for chunks, fragments
	backlog     outQueue // for the connection that is established or being made
	later       outQueue // for the connection after it
	listed      bool     // the gate is in Session.busy
}

// outQueue is a queue of outgoing messages.
type outQueue struct {
	first, last *outMsg
	n           int
}

func (q *outQueue) push(msg *outMsg) {
	msg.next = nil
	if q.last != nil {
		q.last.next = msg
	} else {
		q.first = msg
	}
	q.last = msg
	q.n++
}

func (q *outQueue) pushFront(msg *outMsg) {
	if msg.next = q.first; q.first == nil {
		q.last = msg
	}
	q.first = msg
	q.n++
}

func (q *outQueue) pop() *outMsg {
	msg := q.first
	if msg == nil {
		return nil
	}
	if q.first = msg.next; q.first == nil {
		q.last = nil
	}
	msg.next = nil
	q.n--
	return msg
}

// needsReply reports whether the message, a synchronous message or an RTS, is over only when the peer has answered.
func (msg *outMsg) needsReply() bool { return msg.out != nil || msg.sync != 0 }

// insert appends a message; an urgent one goes before the messages that are not.
func (q *outQueue) insert(msg *outMsg) {
	if !msg.urgent || q.n == 0 || q.last.urgent {
		q.push(msg)
		return
	}
	if !q.first.urgent {
		q.pushFront(msg)
		return
	}
	before := q.first
	for before.next.urgent {
		before = before.next
	}
	msg.next, before.next = before.next, msg
	q.n++
}

// prepend moves the messages of another queue to the front.
func (q *outQueue) prepend(other *outQueue) {
	if other.n == 0 {
		return
	}
	if other.last.next = q.first; q.first == nil {
		q.last = other.last
	}
	q.first = other.first
	q.n += other.n
	*other = outQueue{}
}

// remove takes out the first message for which f holds.
func (q *outQueue) remove(f func(*outMsg) bool) *outMsg {
	var before *outMsg
	for msg := q.first; msg != nil; before, msg = msg, msg.next {
		if !f(msg) {
			continue
		}
		if before != nil {
			before.next = msg.next
		} else {
			q.first = msg.next
		}
		if q.last == msg {
			q.last = before
		}
		msg.next = nil
		q.n--
		return msg
	}
	return nil
}

// newOutMsg returns a message from the pool with room for n bytes of header and body.
func (s *Session) newOutMsg(n int) *outMsg {
	msg := s.spare.msgs
	if msg == nil {
		msg = new(outMsg)
	} else {
		s.spare.msgs = msg.next
		msg.next = nil
	}
	switch {
	case n <= len(msg.room):
		msg.buf = msg.room[:n]
	default:
		if n > cap(msg.big) {
			s.spare.msgBytes += 2*n - cap(msg.big)
			msg.big = make([]byte, 2*n)
		}
		msg.buf = msg.big[:n]
	}
	return msg
}

// maxBigBytes is how much memory beyond outMsg.room, in bytes, stays in the pool when no message is queued any more.
const maxBigBytes = 4 << 20

// trim frees memory of messages in the pool, down to maxBigBytes.
func (s *Session) trim() {
	for msg := s.spare.msgs; msg != nil && s.spare.msgBytes > maxBigBytes; msg = msg.next {
		s.spare.msgBytes -= cap(msg.big)
		msg.big = nil
	}
}

func (s *Session) recycle(msg *outMsg) {
	if g := msg.charged; g != nil {
		msg.charged = nil
		g.charge(-int(msg.cost))
	}
	msg.req, msg.out, msg.frag, msg.sync, msg.id, msg.urgent, msg.counted, msg.paid = nil, nil, nil, 0, 0, false, false, false
	msg.iov[1] = nil
	msg.p.IOV = nil
	msg.next = s.spare.msgs
	s.spare.msgs = msg
}

// control makes an outgoing control message with room for its body, and data.
func (s *Session) control(h header.Header, data []byte) (msg *outMsg, body []byte) {
	n := header.Size + header.BodySize(h.Kind)
	h.Length = uint32(len(data))
	msg = s.newOutMsg(n + len(data))
	h.Put(msg.buf)
	copy(msg.buf[n:], data)
	return msg, msg.buf[header.Size:n]
}

// maxBuffered is how many messages may be queued at a gate whose sends have already completed.
const maxBuffered = 256

// dispatch sends a message, or queues it behind those that wait.
func (g *Gate) dispatch(msg *outMsg) {
	switch {
	case g.clear && g.queued() == 0:
		if _, taken := g.lead.post(msg); taken {
			return
		}
	case g.state == gateIdle:
		g.connect()
	case g.state == gateBroken:
		g.s.msgFailed(msg, g.err)
		return
	}
	g.queues.backlog.insert(msg)
	g.markWaiting()
}

// markWaiting is markBusy after a message was queued in the backlog. A grant lists a gate that waits for credit.
func (g *Gate) markWaiting() {
	if !g.waitsForCredit() {
		g.markBusy()
	}
}

// post gives a message to the driver. taken is false if there is no room or no credit, if the rail is lost and another
// carries messages now, or if too many such messages wait for the peer's answer.
func (l *link) post(msg *outMsg) (left, taken bool) {
	if msg.needsReply() && !l.g.mayLeave(msg) {
		return false, false
	}
	cost := 0 // in credit
	if msg.needsCredit() {
		if cost = msg.creditCost(); !l.g.credit.send.Allows(cost) {
			return false, false
		}
	}
	many := l.g.relay.many && header.Kind(msg.buf[0]).Numbered()
	if many && l.g.relay.full() {
		return false, false
	}
	if msg.out != nil {
		msg.out.offer(l, msg)
	}
	msg.iov[0] = msg.buf
	if msg.iov[1] == nil {
		msg.p.IOV = msg.iov[:1]
	} else {
		msg.p.IOV = msg.iov[:2]
	}
	err := l.small.SendPost(&msg.p)
	posted := err == nil
	if posted {
		if cost > 0 {
			msg.paid = true
			l.g.credit.send.Sent(cost)
		}
		if many {
			l.g.relay.keep(l.g.s, msg)
		}
		if msg.sync|msg.id != 0 {
			l.g.s.noteTaken(msg)
		}
		var done bool
		if done, err = l.small.SendPoll(&msg.p); !done {
			l.sending.push(msg)
			l.g.markBusy()
			return false, true
		}
	}
	if err == driver.ErrBusy {
		return false, false
	}
	if err != nil {
		return l.refused(msg, err, posted)
	}
	l.g.s.msgSent(msg)
	return true, true
}

// refused handles a message that the driver has not taken, or has not sent. If the rail works and the loss is reported
// to the program, only the message fails. Otherwise, and where the peer has counted the message, the rail is lost.
func (l *link) refused(msg *outMsg, err error, posted bool) (left, taken bool) {
	g, s := l.g, l.g.s
	many := g.relay.many && header.Kind(msg.buf[0]).Numbered()
	switch {
	case !isGone(err) && msg.reportsLoss() && !(many && posted):
		g.refund(msg)
		s.msgFailed(msg, g.fault("send", err))
		return true, true
	case !g.relay.many:
		s.msgFailed(msg, g.fault("send", err))
		l.down(err)
		return true, true
	case !many || posted: // Gate.relay holds a copy
		s.msgSent(msg)
		l.down(err)
		return true, true
	}
	if l.down(err); g.lead != nil {
		return false, false
	}
	s.msgFailed(msg, g.fault("send", err))
	return true, true
}

// reportsLoss reports whether the loss of the message is reported to the program.
func (msg *outMsg) reportsLoss() bool { return msg.req != nil || msg.needsReply() }

// msgSent ends a message that the driver has sent.
func (s *Session) msgSent(msg *outMsg) {
	if msg.req != nil {
		s.complete(msg.req, nil)
	}
	if o := msg.frag; o != nil {
		o.frags--
		s.settleOut(o)
	}
	if msg.sync|msg.id != 0 {
		s.noteReturned(msg)
	}
	s.recycle(msg)
}

// msgFailed ends a message that will not be sent.
func (s *Session) msgFailed(msg *outMsg, err error) {
	if msg.req != nil {
		s.complete(msg.req, err)
	}
	if o := msg.frag; o != nil {
		o.frags--
		s.settleOut(o)
	}
	if o, ok := s.transfers.outs.get(msg.id); ok && o == msg.out {
		o.fail(cause(err))
		s.settleOut(o)
	}
	if r, ok := s.transfers.syncs.get(msg.sync); ok {
		s.endSync(r, err)
	}
	if o, ok := s.oneSided.ops.get(msg.id); ok && msg.out == nil && msg.counted {
		if o.inDriver--; o.inDriver == 0 && o.dropped {
			o.end(s, o.err)
		}
	}
	s.recycle(msg)
}

// cause returns the error that an error of the session wraps.
func cause(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// markBusy puts the gate on the list of those with something to send.
func (g *Gate) markBusy() {
	if !g.queues.listed {
		g.queues.listed = true
		g.s.busy = append(g.s.busy, g)
		g.s.kickMover()
	}
}

// push sends queued messages and polls posted ones. It reports whether any moved, and whether any is left.
func (g *Gate) push() (moved, more bool) {
	for _, l := range g.links {
		if l.broken != nil && !l.dead {
			l.down(l.broken)
			return true, g.lead != nil
		}
		for l.sending.n > 0 {
			msg := l.sending.first
			done, err := l.small.SendPoll(&msg.p)
			if !done {
				break
			}
			moved = true
			l.sending.pop()
			if err == nil || l.dead { // or Gate.relay holds a copy
				g.s.msgSent(msg)
			} else {
				l.refused(msg, err, true)
			}
			if g.lead == nil {
				return moved, false
			}
		}
		if l.dead && l.sending.n == 0 && !l.released {
			g.s.releaseLink(l)
		}
	}
	if g.lead == nil {
		return moved, false // the next established connection lists the gate again
	}
	if !g.clear || g.relay.due || g.credit.grantDue {
		moved = g.sendPreamble() || moved
	}
	moved = g.pushQueues() || moved
	for _, l := range g.links {
		more = more || l.sending.n > 0
	}
	waits := g.queued() // not for credit, whose grant lists the gate again
	if waits == g.queues.backlog.n && g.waitsForCredit() {
		waits = 0
	}
	return moved, more || waits > 0 || g.hasPreamble()
}

// pushQueues sends queued messages in the order that keeps control from waiting behind data: first copies that go
// again over another rail, because they are the oldest; then answers, which end something; then control messages of
// transfers in progress; then messages, which begin something. It reports whether anything left.
func (g *Gate) pushQueues() bool {
	first, room := g.pushQueue(&g.queues.replay)
	second, third, fourth := false, false, false
	if room {
		second, room = g.pushAnswers()
	}
	if room {
		third, room = g.pushQueue(&g.queues.control)
	}
	if room {
		fourth, _ = g.pushQueue(&g.queues.backlog)
	}
	return first || second || third || fourth
}

// isGone reports whether an error means the end of a connection.
func isGone(err error) bool { return errors.Is(err, ErrBroken) || errors.Is(err, ErrClosed) }
