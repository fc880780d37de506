package session

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/match"
)

// kept is a message that came before its receive, or a long active message. The memory of short ones is of the next
// power of two, and used again.
type kept struct {
	match.Arrival
	g      *Gate
	h      header.Header
	buf    []byte // the whole packet
	class  int
	cost   int    // bytes, with everything
	ours   bool   // counted in Gate.keptN and Session.keptN
	from   *int   // the budget that its memory is of; nil: none
	number uint64 // of a request to send, as the peer counts them
	gone   error  // why a message by rendezvous that was probed does not come any more
	next   *kept
	now    Active // of a long active message
	call   func() // calls its handler
}

// keptClasses is for memory that is used again, of up to 64 KiB. Larger memory is left to the garbage collector, except
// the kept itself: otherwise the peak of each size would be kept for ever.
const keptClasses = 17

// keptSize is how much memory a message of n bytes takes, and of which class it is.
func keptSize(n int) (size, class int) {
	if class = max(6, bits.Len(uint(max(n, 1)-1))); class < keptClasses {
		return 1 << class, class
	}
	return n, keptClasses
}

// keptCost is what a kept message costs in bytes beside its memory: itself, and its place in the table of messages.
const keptCost = int(unsafe.Sizeof(kept{})) + match.ArrivalCost

// How many unexpected messages of one peer, and of all, are kept at most. Receives with a wildcard search all of them.
const (
	maxKeptOfPeer = 1 << 16
	maxKept       = 1 << 18
)

// mayKeep reports whether one more unexpected message of a peer, of n bytes, is within the limits of the peer: the
// number, and half of the budget where there are other peers, which need the rest.
func (g *Gate) mayKeep(n int) bool {
	s := g.s
	share := s.cfg.Unexpected
	if len(s.gates) > 2 { // this process and one peer
		share /= 2
	}
	size, _ := keptSize(n)
	return g.keptN == 0 || g.keptN < maxKeptOfPeer && s.keptN < maxKept && g.keptBytes+size+keptCost <= share
}

// newKept takes memory for a message of n bytes out of a budget; nil if that is used up.
func (s *Session) newKept(n int, budget *int) *kept {
	size, class := keptSize(n)
	if size+keptCost > *budget {
		return nil
	}
	k := s.kept[class]
	if k == nil {
		k = &kept{class: class}
		k.User = k
	} else {
		s.kept[class] = k.next
		k.next = nil
		s.spareKept -= k.spareCost()
	}
	if k.buf == nil {
		k.buf = make([]byte, size)
	}
	k.buf, k.from, k.cost = k.buf[:n], budget, size+keptCost
	*budget -= k.cost
	return k
}

// spareCost is what a message that is not in use costs.
func (k *kept) spareCost() int { return keptCost + cap(k.buf) }

func (s *Session) freeKept(k *kept) {
	if k.from == nil {
		return // postponed, beside the budget
	}
	*k.from += k.cost
	if k.h.Kind == header.RTS && k.g.rts[k.number] == k {
		delete(k.g.rts, k.number)
	}
	if k.ours {
		k.ours = false
		k.g.keptN--
		k.g.keptBytes -= k.cost
		s.keptN--
	}
	k.buf = k.buf[:cap(k.buf)]
	k.g, k.h, k.gone, k.now, k.from = nil, header.Header{}, nil, Active{}, nil
	if k.class == keptClasses {
		k.buf = nil
	}
	if n := k.spareCost(); s.spareKept+n <= s.cfg.Unexpected/spareShare {
		s.spareKept += n
		k.next = s.kept[k.class]
		s.kept[k.class] = k
	}
	if len(s.stalled) > 0 {
		s.unstall()
	}
}

// spareShare is the part of the budget up to which memory of messages is kept for the next ones.
const spareShare = 8

// keep stores a message that nobody waits for. Beyond the budget it stays in the driver,
// and nothing more is taken from that peer.
func (l *link) keep(h *header.Header, b []byte) bool {
	s := l.g.s
	var k *kept
	if l.g.mayKeep(len(b)) {
		k = s.newKept(len(b), &s.budget)
	}
	switch {
	case k != nil:
	case !l.last:
		l.stall()
		return false
	case l.g.beyond < 0 && !l.beyond:
		return true // lost: there is as much already from a connection before
	default: // as much as the driver has memory for
		k = &kept{class: keptClasses, buf: make([]byte, len(b)), from: &l.g.beyond, cost: len(b) + keptCost}
		k.User = k
		l.g.beyond -= k.cost
		l.beyond = true
	}
	k.ours = true
	l.g.keptN++
	l.g.keptBytes += k.cost
	s.keptN++
	copy(k.buf, b)
	k.g, k.h, k.From, k.Tag = l.g, *h, l.g.index, h.Tag
	if h.Kind == header.RTS {
		l.g.keepRTS(k)
	}
	s.stats.Unexpected++
	s.table.Keep(&k.Arrival)
	return true
}

// keepRTS makes a kept request to send known by its number.
func (g *Gate) keepRTS(k *kept) {
	var req header.Request
	if k.parse(&req) != nil {
		return // changed by the peer while it was copied: to receive it fails
	}
	if k.number = req.ID; g.rts == nil {
		g.rts = make(map[uint64]*kept)
	}
	g.rts[req.ID] = k
}

// stall leaves a message that is beyond the budget in the driver.
func (l *link) stall() {
	if s := l.g.s; !l.held {
		l.held = true
		l.stalls.times++
		l.g.relay.Untaken()
		s.stalled = append(s.stalled, l)
		s.stats.Stalls++
		s.kickMover()
	}
}

// stallLook is how often the background looks whether a peer that is held up is still there: no driver tells
// it while its buffer is out.
const stallLook = 50 * time.Millisecond

// lookAtStalled takes what has come from peers that are held up and have ended, whatever the budget, so that their end
// is seen, which comes behind it. It reports whether there were any.
func (s *Session) lookAtStalled() (any bool) {
	for i := 0; i < len(s.stalled); i++ {
		l := s.stalled[i]
		e, ok := l.small.(driver.Ender)
		if !ok || l.last || l.dead || l.g.handling {
			continue
		}
		err := e.Err()
		if err == nil {
			continue
		}
		any, l.last = true, true
		if l.g.others(l) { // the peer sends it again, over another rail
			l.down(err)
			i = -1 // the list has changed
		}
	}
	if any {
		s.unstall()
	}
	return any
}

// unstall looks again at the messages that were beyond the budget.
func (s *Session) unstall() {
	list := s.stalled
	s.stalled = nil
	for _, l := range list {
		if l.dead {
			continue
		}
		if l.g.handling { // its end calls again
			s.stalled = append(s.stalled, l)
			continue
		}
		l.held = false
		if l.g.relay.Taken(int(l.rail)) != nil {
			continue // the peer sends it again, elsewhere
		}
		if l.handle(l.rp.Buf) && !l.dead {
			_ = l.small.RecvBufRelease(&l.rp)
		}
	}
}

// receiveKept gives a kept message to a receive.
func (s *Session) receiveKept(r *Request, k *kept) {
	extra, data := k.h.Data(k.buf)
	g := k.g
	switch {
	case k.gone != nil:
		r.status.From, r.status.Tag = g, k.h.Tag
		s.complete(r, g.fault("receive", k.gone))
	case k.h.Kind == header.RTS && s.postpones(r, g, k.buf, &k.h):
	case k.h.Kind == header.RTS:
		var req header.Request
		if err := k.parse(&req); err != nil {
			s.complete(r, g.fault("receive", err)) // checked on arrival
			break
		}
		if err := s.receiveLong(r, g, &k.h, &req, extra, data); err != nil && g.lead != nil {
			g.lead.bad(err)
		} else if g.lead != nil {
			g.lead.within()
		}
	default:
		s.stats.Received++
		s.deliver(r, g, k.h.Tag, extra, data)
		if k.h.Kind == header.Sync {
			g.ack(header.Uint64(k.h.Body(k.buf)))
		}
	}
	s.freeKept(k)
}

// dropKept forgets long messages of a gate whose connection has ended: nobody
// will send them. Short ones are here, and can still be received.
func (s *Session) dropKept(g *Gate) {
	s.table.Each(g.index, func(a *match.Arrival) {
		if k := a.User.(*kept); k.h.Kind == header.RTS {
			s.table.Take(a)
			s.freeKept(k)
		}
	})
	for _, k := range g.probed {
		k.gone = ErrClosed
	}
	clear(g.rts)
	g.probed = nil
}

// refuseKept is the same on the side that closes: the sender hears it by Bye.
func (s *Session) refuseKept(g *Gate) { s.dropKept(g) }

// withdrawKept forgets one that its sender has withdrawn.
func (g *Gate) withdrawKept(k *kept) {
	delete(g.rts, k.number)
	if i := slices.Index(g.probed, k); i >= 0 {
		k.gone = errWithdrawn
		g.probed = slices.Delete(g.probed, i, i+1)
		return
	}
	g.s.table.Take(&k.Arrival)
	g.s.freeKept(k)
}

// parse reads the RTS. It was checked on arrival, but then copied from memory that the peer may write.
func (k *kept) parse(req *header.Request) error {
	err := req.Parse(k.h.Body(k.buf))
	if err == nil && req.Total > uint64(k.g.s.cfg.MaxMessage) {
		err = header.ErrMalformed
	}
	return err
}

// length is how long a kept message is.
func (k *kept) length() int {
	if k.h.Kind == header.RTS {
		var req header.Request
		if k.parse(&req) != nil {
			return 0 // changed by the peer while it was copied: to receive it fails
		}
		return int(req.Total)
	}
	return int(k.h.Length)
}

func (k *kept) status() Status {
	return Status{From: k.g, Tag: k.h.Tag, Len: k.length(), Header: int(k.h.Extra)}
}

// Iprobe makes progress and reports whether a matching message has arrived, with its status, without receiving it. It
// never blocks.
func (s *Session) Iprobe(m Match) (Status, bool) {
	s.Progress()
	s.mu.lock()
	defer s.leave()
	p := m.pattern()
	if a := s.table.Peek(&p); a != nil {
		return a.User.(*kept).status(), true
	}
	return Status{}, false
}

// Probe blocks until a matching message has arrived or ctx ends, and does not receive it. Another goroutine may receive
// the message first: see Improbe.
func (s *Session) Probe(ctx context.Context, m Match) (Status, error) {
	var st Status
	var gone, broken error
	s.mu.lock()
	p := m.pattern()
	s.mu.unlock()
	err := s.await(ctx, func() bool {
		if a := s.table.Peek(&p); a != nil {
			st = a.User.(*kept).status()
			return true
		}
		if m.From != nil && m.From.stranded() {
			m.From.strand()
		}
		if m.From == nil && len(s.ends) > 0 {
			gone = s.deserted()
		}
		switch {
		case m.From == nil:
		case m.From.forgotten:
			broken = m.From.fault("probe", ErrClosed)
		case m.From.state == gateBroken:
			broken = m.From.err
		default:
			return s.closed
		}
		return s.closed || gone != nil || m.From != nil
	})
	if err == nil && st.From == nil {
		if err = ErrClosed; gone != nil {
			return st, gone
		}
		if broken != nil {
			return st, broken
		}
	}
	if err != nil {
		return st, &Error{Peer: -1, Op: "probe", Err: err}
	}
	return st, nil
}

// Message is a message that Improbe has found. Only its holder can receive it, and must do so once: until then its
// memory counts against the budget of unexpected messages.
type Message struct {
	s  *Session
	k  *kept
	st Status
}

// Status returns the length and the source of the message.
func (m *Message) Status() Status { return m.st }

// Improbe makes progress and takes the oldest matching message out of matching, if there is one, so that the caller can
// allocate memory before receiving it. It never blocks.
func (s *Session) Improbe(mt Match) (*Message, bool) {
	s.Progress()
	s.mu.lock()
	defer s.leave()
	p := mt.pattern()
	a := s.table.Peek(&p)
	if a == nil {
		return nil, false
	}
	k := a.User.(*kept)
	s.table.Take(a)
	if k.h.Kind == header.RTS {
		k.g.probed = append(k.g.probed, k)
	}
	return &Message{s: s, k: k, st: k.status()}, true
}

// Irecv starts to receive the message. A second call fails with ErrInvalid. A long message can end between Improbe and
// its reception: the request then fails with ErrCanceled if the sender has taken the message back, and with ErrClosed
// if the connection on which it came has ended.
func (m *Message) Irecv(buf []byte) (*Request, error) {
	s := m.s
	s.mu.lock()
	defer s.leave()
	if m.k == nil {
		return nil, &Error{Peer: -1, Op: "receive", Err: ErrInvalid}
	}
	r := s.request("receive")
	r.buf = buf
	k := m.k
	m.k = nil
	if i := slices.Index(k.g.probed, k); i >= 0 {
		k.g.probed = slices.Delete(k.g.probed, i, i+1)
	}
	s.receiveProbed(r, k)
	return r, nil
}

// receiveProbed gives a message that was taken out of matching to a receive.
func (s *Session) receiveProbed(r *Request, k *kept) {
	r.probed = true
	if k.h.Kind == header.RTS && k.g.state != gateUp && k.g.pausing == notPaused {
		k.gone = cmp.Or(k.gone, ErrClosed)
	}
	s.receiveKept(r, k)
}

// Drop makes progress and throws away the messages that match, have arrived and were not received, and returns how many
// there were. To their senders they are received. It never blocks.
func (s *Session) Drop(m Match) (n int) {
	s.Progress()
	s.mu.lock()
	defer s.leave()
	p := m.pattern()
	for most := s.keptN; n < most; n++ { // not those that come meanwhile
		a := s.table.Peek(&p)
		if a == nil {
			break
		}
		s.table.Take(a)
		r := s.request("receive")
		r.then = func(Status, error) {}
		s.receiveProbed(r, a.User.(*kept))
	}
	return n
}

// Recv receives the message and blocks until it has arrived completely or ctx ends.
func (m *Message) Recv(ctx context.Context, buf []byte) (Status, error) {
	r, err := m.Irecv(buf)
	if err != nil {
		return Status{}, err
	}
	return r.Wait(ctx)
}
