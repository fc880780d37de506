package session

import (
	"errors"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// parcel is a message of the small track on its way out: waiting for room, or
// in the driver's hands.
type parcel struct {
	p        driver.Packet
	iov      [2][]byte
	buf      []byte    // header, and what was copied behind it
	req      *Request  // completes when the parcel has left; nil: nobody waits
	out      *outgoing // of an RTS
	frag     *outgoing // of a fragment
	sync     uint64    // id of a synchronous message
	id       uint64    // of the operation that it asks for; of an RTS: of out
	next     *parcel
	room     [128]byte
	big      []byte
	prepared Prepared
	urgent   bool  // before those that wait and are not
	away     bool  // counted in Op.held
	debtor   *Gate // whose debt it is part of; nil: none
	cost     int32
}

// copyMax is up to how many bytes of a message are copied behind the header, so that the
// send is done for the caller whatever the driver says.
const copyMax = 256

// parcelQueue is a queue of parcels.
type parcelQueue struct {
	first, last *parcel
	n           int
}

func (q *parcelQueue) push(pc *parcel) {
	pc.next = nil
	if q.last != nil {
		q.last.next = pc
	} else {
		q.first = pc
	}
	q.last = pc
	q.n++
}

func (q *parcelQueue) pushFront(pc *parcel) {
	if pc.next = q.first; q.first == nil {
		q.last = pc
	}
	q.first = pc
	q.n++
}

func (q *parcelQueue) pop() *parcel {
	pc := q.first
	if pc == nil {
		return nil
	}
	if q.first = pc.next; q.first == nil {
		q.last = nil
	}
	pc.next = nil
	q.n--
	return pc
}

// lasts reports whether a message is not over when its parcel has left.
func (pc *parcel) lasts() bool { return pc.out != nil || pc.sync != 0 }

// lasting is how many such parcels a queue has.
func (q *parcelQueue) lasting() (n int) {
	for pc := q.first; pc != nil; pc = pc.next {
		if pc.lasts() {
			n++
		}
	}
	return n
}

// line puts a parcel where it belongs: at the end, or behind the urgent ones.
func (q *parcelQueue) line(pc *parcel) {
	if !pc.urgent || q.n == 0 || q.last.urgent {
		q.push(pc)
		return
	}
	if !q.first.urgent {
		q.pushFront(pc)
		return
	}
	before := q.first
	for before.next.urgent {
		before = before.next
	}
	pc.next, before.next = before.next, pc
	q.n++
}

// prepend moves the parcels of another queue to the front.
func (q *parcelQueue) prepend(other *parcelQueue) {
	if other.n == 0 {
		return
	}
	if other.last.next = q.first; q.first == nil {
		q.last = other.last
	}
	q.first = other.first
	q.n += other.n
	*other = parcelQueue{}
}

// append moves the parcels of another queue to the end.
func (q *parcelQueue) append(other *parcelQueue) {
	for pc := other.pop(); pc != nil; pc = other.pop() {
		q.push(pc)
	}
}

// remove takes out the first parcel for which f holds.
func (q *parcelQueue) remove(f func(*parcel) bool) *parcel {
	var before *parcel
	for pc := q.first; pc != nil; before, pc = pc, pc.next {
		if !f(pc) {
			continue
		}
		if before != nil {
			before.next = pc.next
		} else {
			q.first = pc.next
		}
		if q.last == pc {
			q.last = before
		}
		pc.next = nil
		q.n--
		return pc
	}
	return nil
}

// parcel takes a free parcel with room for n bytes of header and body.
func (s *Session) parcel(n int) *parcel {
	pc := s.parcels
	if pc == nil {
		pc = new(parcel)
	} else {
		s.parcels = pc.next
		pc.next = nil
	}
	switch {
	case n <= len(pc.room):
		pc.buf = pc.room[:n]
	default:
		if n > cap(pc.big) {
			s.bigBytes += 2*n - cap(pc.big)
			pc.big = make([]byte, 2*n)
		}
		pc.buf = pc.big[:n]
	}
	return pc
}

// maxBigBytes is how many bytes of parcels' memory are kept when nothing waits any more at a gate.
const maxBigBytes = 4 << 20

// trim frees memory of parcels that are not in use, down to maxBigBytes.
func (s *Session) trim() {
	for pc := s.parcels; pc != nil && s.bigBytes > maxBigBytes; pc = pc.next {
		s.bigBytes -= cap(pc.big)
		pc.big = nil
	}
}

func (s *Session) recycle(pc *parcel) {
	if g := pc.debtor; g != nil {
		pc.debtor = nil
		g.owe(-int(pc.cost))
	}
	pc.req, pc.out, pc.frag, pc.sync, pc.id, pc.urgent, pc.away = nil, nil, nil, 0, 0, false, false
	pc.iov[1] = nil
	pc.p.IOV = nil
	pc.next = s.parcels
	s.parcels = pc
}

// control makes a parcel of a control message with its body and data.
func (s *Session) control(h header.Header, data []byte) (pc *parcel, body []byte) {
	n := header.Size + header.BodySize(h.Kind)
	h.Length = uint32(len(data))
	pc = s.parcel(n + len(data))
	h.Put(pc.buf)
	copy(pc.buf[n:], data)
	return pc, pc.buf[header.Size:n]
}

// maxBuffered is how many parcels may wait at a gate whose senders have been
// told that they are done.
const maxBuffered = 256

// dispatch sends a parcel, or queues it behind those that wait. It tells
// whether the parcel has left.
func (g *Gate) dispatch(pc *parcel) bool {
	switch {
	case g.clear && g.queued() == 0:
		if left, taken := g.lead.post(pc); taken {
			return left
		}
	case g.state == gateIdle:
		g.connect()
	case g.state == gateBroken:
		g.s.lost(pc, g.err)
		return true
	}
	g.backlog.line(pc)
	g.work()
	return false
}

// post gives a parcel to the driver. Not taken: there is no room, the rail is
// lost and another carries messages now, or too many such messages wait for the peer's answer.
func (l *link) post(pc *parcel) (left, taken bool) {
	if pc.lasts() && !l.g.mayLeave(pc) {
		return false, false
	}
	many := l.g.relay.many && header.Kind(pc.buf[0]).Numbered()
	if many && l.g.relay.full() {
		return false, false
	}
	if pc.out != nil {
		pc.out.offer(l, pc)
	}
	pc.iov[0] = pc.buf
	if pc.iov[1] == nil {
		pc.p.IOV = pc.iov[:1]
	} else {
		pc.p.IOV = pc.iov[:2]
	}
	err := l.small.SendPost(&pc.p)
	posted := err == nil
	if posted {
		if many {
			l.g.relay.keep(l.g.s, pc)
		}
		if pc.sync|pc.id != 0 {
			l.g.s.away(pc)
		}
		var done bool
		if done, err = l.small.SendPoll(&pc.p); !done {
			l.sending.push(pc)
			l.g.work()
			return false, true
		}
	}
	if err == driver.ErrBusy {
		return false, false
	}
	if err != nil {
		return l.refused(pc, err, posted)
	}
	l.g.s.left(pc)
	return true, true
}

// refused deals with a parcel that a rail has not taken, or not sent. Unless the rail is broken it is only the
// message's end, if somebody is told of that: else, as where the peer counts on a message, the rail is lost.
func (l *link) refused(pc *parcel, err error, posted bool) (left, taken bool) {
	g, s := l.g, l.g.s
	many := g.relay.many && header.Kind(pc.buf[0]).Numbered()
	switch {
	case !isGone(err) && pc.owned() && !(many && posted):
		s.lost(pc, g.fault("send", err))
		return true, true
	case !g.relay.many:
		s.lost(pc, g.fault("send", err))
		l.down(err)
		return true, true
	case !many || posted: // a copy is kept
		s.left(pc)
		l.down(err)
		return true, true
	}
	if l.down(err); g.lead != nil {
		return false, false
	}
	s.lost(pc, g.fault("send", err))
	return true, true
}

// owned reports whether somebody is told when a parcel is lost.
func (pc *parcel) owned() bool { return pc.req != nil || pc.lasts() }

// left ends a parcel that the driver has sent.
func (s *Session) left(pc *parcel) {
	if pc.req != nil {
		s.complete(pc.req, nil)
	}
	if o := pc.frag; o != nil {
		o.frags--
		s.settleOut(o)
	}
	if pc.sync|pc.id != 0 {
		s.returned(pc)
	}
	s.recycle(pc)
}

// lost ends a parcel that will not be sent.
func (s *Session) lost(pc *parcel, err error) {
	if pc.req != nil {
		s.complete(pc.req, err)
	}
	if o := pc.frag; o != nil {
		o.frags--
		s.settleOut(o)
	}
	if o, ok := s.outs.get(pc.id); ok && o == pc.out {
		o.fail(cause(err))
		s.settleOut(o)
	}
	if r, ok := s.syncs.get(pc.sync); ok && pc.sync != 0 {
		s.dropSync(pc.sync, r)
		r.g.ended()
		s.complete(r, err)
	}
	if o, ok := s.ops.get(pc.id); ok && pc.out == nil && pc.away {
		if o.held--; o.held == 0 && o.dropped {
			o.end(s, o.err)
		}
	}
	s.recycle(pc)
}

// cause is what an error of the session wraps.
func cause(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// work puts the gate on the list of those with something to send.
func (g *Gate) work() {
	if !g.listed {
		g.listed = true
		g.s.busy = append(g.s.busy, g)
		g.s.kickMover()
	}
}

// push moves on messages that wait to leave. It reports whether anything did, and whether something is left.
func (g *Gate) push() (moved, more bool) {
	for _, l := range g.links {
		for l.sending.n > 0 {
			pc := l.sending.first
			done, err := l.small.SendPoll(&pc.p)
			if !done {
				break
			}
			moved = true
			l.sending.pop()
			switch {
			case err == nil || l.dead: // or a copy is kept
				g.s.left(pc)
			case !isGone(err) && pc.owned() && !g.relay.many:
				g.s.lost(pc, g.fault("send", err))
			case g.relay.many:
				g.s.left(pc)
				l.down(err)
			default:
				g.s.lost(pc, g.fault("send", err))
				l.down(err)
			}
			if g.lead == nil {
				return moved, false
			}
		}
		if l.dead && l.sending.n == 0 && !l.buried {
			g.s.bury(l)
		}
	}
	if g.lead == nil {
		return moved, false // a connection that stands lists the gate again
	}
	if !g.clear || g.relay.due {
		moved = g.hail() || moved
	}
	moved = g.pushQueues() || moved
	for _, l := range g.links {
		more = more || l.sending.n > 0
	}
	return moved, more || g.queued() > 0 || g.owes()
}

// pushQueues sends what waits, in the order that keeps control from waiting behind data: first what goes again over
// another rail, as all the rest is younger; then answers, which end something; then control messages of what is under
// way; then messages, which begin something. It reports whether anything left.
func (g *Gate) pushQueues() bool {
	first, room := g.pushQueue(&g.replay)
	second, third, fourth := false, false, false
	if room {
		second, room = g.pushAnswers()
	}
	if room {
		third, room = g.pushQueue(&g.control)
	}
	if room {
		fourth, _ = g.pushQueue(&g.backlog)
	}
	return first || second || third || fourth
}

// isGone reports whether an error means the end of a connection.
func isGone(err error) bool { return errors.Is(err, ErrBroken) || errors.Is(err, ErrClosed) }
