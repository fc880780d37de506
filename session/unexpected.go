package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/match"
)

// unexpected is a message that arrived before its receive, or a long active message. Memory of short ones has the size
// of the next power of two, and is pooled.
type unexpected struct {
	match.Arrival
	g      *Gate
	h      header.Header
	buf    []byte // the whole packet
	class  int
	cost   int    // bytes, with all overhead
	stored bool   // cost is part of Gate.credit
	long   bool   // a long active message: cost is taken from the budget of active messages
	number uint64 // the peer's id of an RTS
	gone   error  // why a long message that Improbe has returned will not arrive any more
	next   *unexpected
	now    Active // argument of the handler of a long active message
	call   func() // calls that handler
}

// arriving are a gate's long messages that are arriving, or were announced before their receive.
type arriving struct {
	first          *incoming              // those under way
	rts            map[uint64]*unexpected // RTS without a receive, by the peer's ids
	probed         []*unexpected          // those that Improbe has returned and that were not received
	prefetchMissed bool                   // the last prefetch of a receive was of no use
}

// unexpectedClasses is the number of size classes of pooled memory, up to 64 KiB. Larger memory is left to the garbage
// collector, because otherwise the peak of each size would be held for ever; only the record itself is pooled.
const unexpectedClasses = 17

// unexpectedCost is the overhead in bytes of an unexpected message: its record, and its entry in the match table.
const unexpectedCost = int(unsafe.Sizeof(unexpected{})) + match.ArrivalCost

// The compiler refuses this if a stored message takes more memory than its sender pays credit for.
const _ = uint(credit.Overhead - unexpectedCost)

// The most unexpected messages that are stored of one peer, and of all. Receives with a wildcard search all of them.
const (
	maxUnexpectedOfPeer = 1 << 16
	maxUnexpected       = 1 << 18
)

// newUnexpected returns a record with memory for a message of n bytes.
func (s *Session) newUnexpected(n int) *unexpected {
	class, rounded := credit.Class(n)
	size := 1 << class
	if !rounded {
		class, size = unexpectedClasses, n
	}
	u := s.spare.unexpected[class]
	if u == nil {
		u = &unexpected{class: class}
	} else {
		s.spare.unexpected[class] = u.next
		u.next = nil
		s.spare.unexpectedBytes -= u.poolCost()
	}
	if u.buf == nil {
		u.buf = make([]byte, size)
	}
	u.buf, u.cost = u.buf[:n], credit.Cost(n)
	return u
}

// poolCost returns how many bytes a message costs while it is pooled.
func (u *unexpected) poolCost() int { return unexpectedCost + cap(u.buf) }

func (s *Session) freeUnexpected(u *unexpected) {
	g, cost, stored, long := u.g, u.cost, u.stored, u.long
	if !stored && !long {
		return // a postponed message: its memory is charged to Gate.held
	}
	if u.h.Kind == header.RTS && g.in.rts[u.number] == u {
		delete(g.in.rts, u.number)
	}
	u.buf = u.buf[:cap(u.buf)]
	u.g, u.h, u.gone, u.now, u.stored, u.long = nil, header.Header{}, nil, Active{}, false, false
	if u.class == unexpectedClasses {
		u.buf = nil
	}
	if n := u.poolCost(); s.spare.unexpectedBytes+n <= s.cfg.Unexpected/poolShare {
		s.spare.unexpectedBytes += n
		u.next = s.spare.unexpected[u.class]
		s.spare.unexpected[u.class] = u
	}
	if long {
		s.active.budget += cost
		s.beginActives()
		return
	}
	g.credit.receive.Release(&s.credit.pool, cost)
	g.renew()
}

// poolShare limits the pooled memory: one part in poolShare of the budget.
const poolShare = 8

// keep stores an unexpected message.
func (l *link) keep(h *header.Header, b []byte) {
	g, s := l.g, l.g.s
	u := s.newUnexpected(len(b))
	copy(u.buf, b)
	u.h = *h
	g.store(u)
	s.stats.Unexpected++
	s.table.Keep(&u.Arrival)
}

// store prepares a message for the match table.
func (g *Gate) store(u *unexpected) {
	u.stored = true
	g.credit.receive.Keep(&g.s.credit.pool, u.cost)
	u.g, u.From, u.Tag, u.User = g, g.index, u.h.Tag, u
	if u.h.Kind == header.RTS {
		g.keepRTS(u)
	}
}

// keepRTS makes an unexpected RTS known by its id.
func (g *Gate) keepRTS(u *unexpected) {
	var req header.Request
	if u.parse(&req) != nil {
		return // the peer changed it while it was copied: its receive fails
	}
	if u.number = req.ID; g.in.rts == nil {
		g.in.rts = make(map[uint64]*unexpected)
	}
	g.in.rts[req.ID] = u
}

// receiveUnexpected gives an unexpected message to a receive.
func (s *Session) receiveUnexpected(r *Request, u *unexpected) {
	extra, data := u.h.Data(u.buf)
	g := u.g
	switch {
	case u.gone != nil:
		r.status.From, r.status.Tag = g, u.h.Tag
		s.complete(r, g.fault("receive", u.gone))
	case u.h.Kind == header.RTS && s.postpones(r, g, u.buf, &u.h, u.Order):
	case u.h.Kind == header.RTS:
		var req header.Request
		if err := u.parse(&req); err != nil {
			s.complete(r, g.fault("receive", err)) // checked on arrival
			break
		}
		if err := s.receiveLong(r, g, &u.h, &req, extra, data); err != nil && g.lead != nil {
			g.lead.failProtocol(err)
		} else if g.lead != nil {
			g.lead.withinQuota()
		}
	default:
		s.stats.Received++
		s.deliver(r, g, u.h.Tag, extra, data)
		if u.h.Kind == header.Sync {
			g.ack(header.Uint64(u.h.Body(u.buf)))
		}
	}
	s.freeUnexpected(u)
}

// dropUnexpected drops the unexpected long messages of a gate whose connection has ended: their data will not be sent.
// Short ones have arrived, and can still be received.
func (s *Session) dropUnexpected(g *Gate) {
	s.table.Each(g.index, func(a *match.Arrival) {
		if u := a.User.(*unexpected); u.h.Kind == header.RTS {
			s.table.Take(a)
			s.freeUnexpected(u)
		}
	})
	for _, u := range g.in.probed {
		u.gone = ErrClosed
	}
	clear(g.in.rts)
	g.in.probed = nil
}

// withdrawUnexpected drops an unexpected long message that its sender has cancelled.
func (g *Gate) withdrawUnexpected(u *unexpected) {
	delete(g.in.rts, u.number)
	if i := slices.Index(g.in.probed, u); i >= 0 {
		u.gone = errWithdrawn
		g.in.probed = slices.Delete(g.in.probed, i, i+1)
		return
	}
	g.s.table.Take(&u.Arrival)
	g.s.freeUnexpected(u)
}

// parse reads the RTS. It was checked on arrival, but then copied from memory that the peer may write.
func (u *unexpected) parse(req *header.Request) error {
	err := req.Parse(u.h.Body(u.buf))
	if err == nil && u.h.Flags&flagActive == 0 && req.Total > uint64(u.g.s.cfg.MaxMessage) {
		err = header.ErrMalformed
	}
	return err
}

// length returns the length of the message in bytes.
func (u *unexpected) length() int {
	if u.h.Kind == header.RTS {
		var req header.Request
		if u.parse(&req) != nil {
			return 0 // the peer changed it while it was copied: its receive fails
		}
		return int(req.Total)
	}
	return int(u.h.Length)
}

func (u *unexpected) status() Status {
	return Status{From: u.g, Tag: u.h.Tag, Len: u.length(), Header: int(u.h.Extra)}
}

// Iprobe makes progress and reports whether a matching message has arrived, with its status, without receiving it. It
// never blocks.
func (s *Session) Iprobe(m Match) (Status, bool) {
	s.Progress()
	s.mu.lock()
	defer s.leave()
	p := m.pattern(s)
	if a := s.table.Peek(&p); a != nil {
		return a.User.(*unexpected).status(), true
	}
	return Status{}, false
}

// Probe blocks until a matching message has arrived or ctx ends, and does not receive it. Another goroutine may receive
// the message first: see Improbe. It fails with the error of ctx, with ErrClosed when the session is closed or the source
// was forgotten, with ErrBroken or ErrClosed when the source, or every process that could send, has gone, and with
// ErrInvalid for a source of another session.
func (s *Session) Probe(ctx context.Context, m Match) (Status, error) {
	if m.From != nil && m.From.s != s {
		return Status{}, &Error{Peer: -1, Op: "probe", Err: errForeignGate}
	}
	var st Status
	var failed error // no message can come
	s.mu.lock()
	p := m.pattern(s)
	s.mu.unlock()
	err := s.await(ctx, func() bool {
		if a := s.table.Peek(&p); a != nil {
			st = a.User.(*unexpected).status()
			return true
		}
		if m.From != nil && m.From.unconnectable() {
			m.From.failUnconnectable()
		}
		switch {
		case m.From == nil && len(s.launcher.ends) > 0:
			failed = s.noSenders()
		case m.From != nil && m.From.close.forgotten:
			failed = m.From.fault("probe", ErrClosed)
		case m.From != nil && m.From.state == gateBroken:
			failed = m.From.err
		}
		if failed == nil && s.closed {
			failed = &Error{Peer: -1, Op: "probe", Err: ErrClosed}
		}
		return failed != nil
	})
	if err != nil {
		return st, &Error{Peer: -1, Op: "probe", Err: err}
	}
	return st, failed
}

// Message is a message that Improbe has found. Only its holder can receive it, and must do so once: until then its
// memory counts against the budget of unexpected messages.
type Message struct {
	s  *Session
	k  *unexpected
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
	p := mt.pattern(s)
	a := s.table.Peek(&p)
	if a == nil {
		return nil, false
	}
	u := a.User.(*unexpected)
	s.table.Take(a)
	if u.h.Kind == header.RTS {
		u.g.in.probed = append(u.g.in.probed, u)
	}
	return &Message{s: s, k: u, st: u.status()}, true
}

// Irecv starts to receive the message. A second call fails with ErrInvalid. A long message can end between Improbe and
// its reception: the request then fails with ErrCanceled if the sender has cancelled the message, and with ErrClosed
// if the connection on which it came has ended.
func (m *Message) Irecv(buf []byte) (*Request, error) {
	s := m.s
	s.mu.lock()
	defer s.leave()
	if m.k == nil {
		return nil, &Error{Peer: -1, Op: "receive", Err: fmt.Errorf("%w: the message of this Improbe was received before", ErrInvalid)}
	}
	r := s.request("receive")
	r.buf = buf
	u := m.k
	m.k = nil
	if i := slices.Index(u.g.in.probed, u); i >= 0 {
		u.g.in.probed = slices.Delete(u.g.in.probed, i, i+1)
	}
	s.receiveProbed(r, u)
	return r, nil
}

// receiveProbed gives a message that was taken out of matching to a receive.
func (s *Session) receiveProbed(r *Request, u *unexpected) {
	r.probed = true
	if u.h.Kind == header.RTS && u.g.state != gateUp && u.g.pausing.state == notPaused {
		u.gone = cmp.Or(u.gone, ErrClosed)
	}
	s.receiveUnexpected(r, u)
}

// Drop makes progress and throws away the messages that match, have arrived and were not received, and returns how
// many there were. To their senders they count as received. It never blocks.
func (s *Session) Drop(m Match) (n int) {
	s.Progress()
	s.mu.lock()
	defer s.leave()
	p := m.pattern(s)
	s.table.Each(match.Any, func(a *match.Arrival) {
		if !p.Matches(a.From, a.Tag) {
			return
		}
		n++
		s.table.Take(a)
		r := s.request("receive")
		r.then = func(Status, error) {}
		s.receiveProbed(r, a.User.(*unexpected))
	})
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
