package session

import (
	"context"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/match"
)

// Match selects the messages that a receive or a probe takes.
type Match struct {
	From   *Gate // nil: any source
	Tag    uint64
	Ignore uint64 // bits of the tag that do not count; AnyTag: all of them
}

// AnyTag, as Match.Ignore, selects messages whatever their tag is: Match{Ignore: AnyTag} takes every message.
const AnyTag = ^uint64(0)

// Tag returns the Match for messages with this tag from any source, so that the two calls read alike:
//
//	n, err := gate.Recv(ctx, 7, buf)
//	st, err := session.Recv(ctx, Tag(7), buf)
func Tag(tag uint64) Match { return Match{Tag: tag} }

var errForeignGate = fmt.Errorf("%w: a gate of another session", ErrInvalid)

// noSource matches no message: no gate has this source number.
const noSource = match.Any - 1

// pattern is for the session's table. A gate that was forgotten, or is another session's, matches nothing.
func (m *Match) pattern(s *Session) match.Pattern {
	p := match.Pattern{From: match.Any, Tag: m.Tag, Mask: ^m.Ignore}
	if m.From != nil {
		if p.From = noSource; m.From.s == s && !m.From.close.forgotten {
			p.From = m.From.index
		}
	}
	return p
}

// In is a receive with all its options.
type In struct {
	Match
	Buf    []byte
	Layout driver.Layout       // or, without Buf, memory in pieces
	Header []byte              // takes the user's header; a longer one is cut
	Then   func(Status, error) // as for Out
}

// Recv receives a message from this peer with that tag and returns its length in bytes. It blocks until the message has
// arrived or ctx ends. It fails with ErrTruncated, after filling buf, if the message is longer than buf; with ErrBroken
// or ErrClosed; and with the error of ctx.
func (g *Gate) Recv(ctx context.Context, tag uint64, buf []byte) (int, error) {
	// Without In and Status: copying them takes longer than all that a short
	// message needs.
	s := g.s
	s.mu.lock()
	r, err := s.receive(g)
	if err != nil {
		s.leave()
		return 0, err
	}
	r.buf = buf
	r.recv.From, r.recv.Tag, r.recv.Mask = g.index, tag, match.Exact
	s.pair(r, g, s.table.Post(&r.recv))
	if err := r.block(ctx); err != nil {
		return 0, err
	}
	n, err := r.status.Len, r.err
	s.free(r)
	s.leave()
	return n, err
}

// Irecv is Recv without blocking.
func (g *Gate) Irecv(tag uint64, buf []byte) (*Request, error) {
	return g.s.Irecv(Match{From: g, Tag: tag}, buf)
}

// Recv receives a message that matches m: Tag(7) means tag 7 from any source, Match{} for tag 0. It blocks until the
// message has arrived or ctx ends. Receives that match the same message are served in the order in which they were
// posted. Errors are those of Gate.Recv.
func (s *Session) Recv(ctx context.Context, m Match, buf []byte) (Status, error) {
	in := In{Match: m, Buf: buf}
	return s.RecvMsg(ctx, &in)
}

// Irecv is Recv without blocking.
func (s *Session) Irecv(m Match, buf []byte) (*Request, error) {
	in := In{Match: m, Buf: buf}
	return s.IrecvMsg(&in)
}

// RecvMsg is Recv with options. With Then it does not block.
func (s *Session) RecvMsg(ctx context.Context, in *In) (Status, error) {
	s.mu.lock()
	r, err := s.post(in)
	if r == nil || in.Then != nil {
		s.leave()
		return Status{}, err
	}
	return r.wait(ctx)
}

// IrecvMsg is Irecv with options. It does not keep in. The request is nil only with Then.
func (s *Session) IrecvMsg(in *In) (*Request, error) {
	s.mu.lock()
	r, err := s.post(in)
	s.leave()
	if in.Then != nil {
		r = nil
	}
	return r, err
}

func (s *Session) post(in *In) (*Request, error) {
	if in.Buf != nil && in.Layout != nil {
		return nil, &Error{Peer: -1, Op: "receive", Err: errTwoData}
	}
	r, err := s.receive(in.From)
	if err != nil {
		return nil, err
	}
	r.buf, r.layout, r.head, r.then = in.Buf, in.Layout, in.Header, in.Then
	r.recv.Pattern = in.pattern(s)
	s.pair(r, in.From, s.table.Post(&r.recv))
	return r, nil
}

// receive makes the request of a receive from a gate, or from any.
func (s *Session) receive(from *Gate) (*Request, error) {
	if s.closed {
		return nil, &Error{Peer: -1, Op: "receive", Err: ErrClosed}
	}
	if from != nil && from.s != s {
		return nil, &Error{Peer: -1, Op: "receive", Err: errForeignGate}
	}
	if from != nil && from.close.forgotten {
		return nil, from.fault("receive", ErrClosed)
	}
	return s.request("receive"), nil
}

// pair gives a receive the oldest unexpected message that matches, if there is one; otherwise the receive was posted.
func (s *Session) pair(r *Request, from *Gate, a *match.Arrival) {
	if a != nil {
		s.receiveUnexpected(r, a.User.(*unexpected))
	} else if from != nil && from.state == gateUp {
		if l := from.lead; l != nil && l.fetcher != nil {
			r.prefetch(from)
		}
	} else if from != nil && from.unconnectable() {
		from.failUnconnectable()
	} else if from != nil && from.state == gateBroken {
		s.table.Cancel(&r.recv)
		s.complete(r, from.err)
	} else if from == nil && len(s.launcher.ends) > 0 {
		s.failNoSenders()
	}
}

// room is how many bytes a receive takes.
func (r *Request) room() int {
	if r.layout != nil {
		return r.layout.Len()
	}
	return len(r.buf)
}

// deliver copies a message into a receive and completes it.
func (s *Session) deliver(r *Request, g *Gate, tag uint64, extra, data []byte) {
	r.status.From, r.status.Tag = g, tag
	if len(extra) > 0 {
		r.status.Header = copy(r.head, extra)
	}
	var n int
	if r.layout == nil {
		if len(data) == 8 && len(r.buf) >= 8 {
			*(*[8]byte)(r.buf) = [8]byte(data)
			n = 8
		} else {
			n = copy(r.buf, data)
		}
	} else {
		p := driver.Packet{Data: r.layout}
		c := p.Cursor()
		n = c.Scatter(data)
	}
	r.status.Len = n
	if n < len(data) {
		s.complete(r, g.fault("receive", &driver.TruncatedError{Message: len(data), Buffer: n}))
		return
	}
	s.complete(r, nil)
}

// take takes one message from a link, if there is one.
func (l *link) take() bool {
	if l.dead || l.g.active.handling {
		return false
	}
	done, err := l.small.RecvPoll(&l.rp)
	if !done {
		return false
	}
	if err != nil {
		l.down(err)
		return true
	}
	s := l.g.s
	s.progress.preferred = l
	if l.g.relay.many && l.helloReceived {
		if err := l.taken(l.rp.Buf); err != nil {
			l.failProtocol(err)
			return true
		}
	}
	if !l.handle(l.rp.Buf) {
		return true // the link is dead: releaseLink gives the buffer back
	}
	if l.rp.Driver.Phase == driver.BufferOut {
		_ = l.small.RecvBufRelease(&l.rp)
	}
	return true
}

// handle handles a received message. It returns false if the link is dead.
func (l *link) handle(b []byte) bool {
	if tag, ok := header.IsEager(b); ok && l.helloReceived {
		g, s := l.g, l.g.s
		if !g.credit.receive.Arrived(&s.credit.pool, credit.Cost(len(b))) {
			if r := s.table.Arrive(g.index, tag); r != nil {
				s.stats.Received++
				s.deliver(r.User.(*Request), g, tag, nil, b[header.Size:])
				if len(s.credit.short) > 0 { // the memory is free for them
					s.renewShort()
				}
				return true
			}
		}
		return l.arriveEager(tag, nil, b[header.Size:], b)
	}
	var h header.Header
	if err := h.Parse(b); err != nil {
		return l.failProtocol(err)
	}
	if !l.helloReceived {
		if err := l.checkHello(&h, b); err != nil {
			return l.failProtocol(err)
		}
		return !l.dead
	}
	if h.Kind == header.Eager {
		extra, data := h.Data(b)
		l.g.credit.receive.Arrived(&l.g.s.credit.pool, credit.Cost(len(b)))
		return l.arriveEager(h.Tag, extra, data, b)
	}
	return l.handleOther(&h, b)
}

// arriveEager handles a message that came with its data, and was counted as arrived: b is all of it.
func (l *link) arriveEager(tag uint64, extra, data, b []byte) bool {
	g, s := l.g, l.g.s
	if !l.hadCredit() {
		return false
	}
	if r := s.table.Arrive(g.index, tag); r != nil {
		s.stats.Received++
		s.deliver(r.User.(*Request), g, tag, extra, data)
	} else {
		h := header.Header{Kind: header.Eager, Extra: uint16(len(extra)), Length: uint32(len(data)), Tag: tag}
		l.keep(&h, b)
	}
	g.renew()
	return true
}

func (l *link) handleOther(h *header.Header, b []byte) bool {
	g := l.g
	body := h.Body(b)
	extra, data := h.Data(b)
	switch h.Kind {
	case header.Sync, header.RTS:
		return l.arrive(h, b) && l.withinQuota()
	case header.Ack:
		return l.checked(l.acked(h.Tag))
	case header.RTR:
		return l.checked(l.ready(h, body, data))
	case header.Cookie:
		return l.checked(l.cookie(h, body, data))
	case header.Done:
		return l.checked(l.done(h, body))
	case header.Frag:
		return l.checked(l.fragment(h, body, data))
	case header.AM:
		return l.active(h, extra, data) // costs nothing beyond its handler
	case header.Op:
		return l.checked(l.operation(body, data))
	case header.Reply:
		return l.checked(l.reply(h, body, data))
	case header.Grant:
		var grant header.Credit
		if err := grant.Parse(body); err != nil {
			return l.failProtocol(err)
		}
		g.granted(&grant)
	case header.Pause:
		g.receivePause()
	case header.Seen:
		return l.checked(l.seen(h.Tag))
	case header.Resume:
		return l.checked(l.resume(h.Tag, h.Flags))
	case header.Leave:
		if h.Flags&flagSoon != 0 {
			g.close.seen.soon = true
		} else {
			g.pausing.state, g.close.seen.leave = notPaused, true
		}
		g.markBusy()
		g.tryClose()
	case header.Bye:
		g.close.seen.bye = true
		g.close.peerLeft = h.Flags&flagLast != 0
		if g.pausing.state == pauseBegun && g.pausing.received {
			g.markBusy()
			g.tryClose()
			return true
		}
		g.pausing.state, g.close.seen.leave = notPaused, true // the peer closes the gate
		g.failReceives(g.fault("receive", ErrClosed))         // receives that are posted from now on belong to the next connection
		g.markBusy()
		g.tryClose()
	default:
		return l.failProtocol(fmt.Errorf("%w: %v in the middle of a connection", header.ErrMalformed, h.Kind))
	}
	return true
}

// checked breaks the connection after an invalid message.
func (l *link) checked(err error) bool {
	if err != nil {
		return l.failProtocol(err)
	}
	return l.withinQuota()
}

func (l *link) failProtocol(err error) bool {
	l.g.s.stats.Bad++
	if !isGone(err) {
		err = fmt.Errorf("%w: the peer violated the protocol: %w", ErrBroken, err)
	}
	if !l.dead {
		l.g.fail(l.g.fault("connection", err))
	}
	return !l.dead
}

// arrive handles a message that has to be matched and answered.
func (l *link) arrive(h *header.Header, b []byte) bool {
	g, s := l.g, l.g.s
	active := h.Kind == header.RTS && h.Flags&flagActive != 0
	if !active {
		cost := rtsCost
		if h.Kind == header.Sync {
			cost = credit.Cost(len(b))
		}
		if g.credit.receive.Arrived(&s.credit.pool, cost); !l.hadCredit() {
			return false
		}
		defer g.renew()
	}
	var req header.Request // read once: b may be memory that the peer can write
	if h.Kind == header.RTS {
		if err := req.Parse(h.Body(b)); err != nil {
			return l.failProtocol(err)
		}
		if h.Length > driver.MaxRemoteKey || h.Extra > MaxHeader {
			return l.failProtocol(header.ErrMalformed)
		}
		if g.close.sent.leave {
			return true // the sender fails it when it sees our Leave
		}
	}
	if active {
		return l.arriveActive(h, &req, b)
	}
	if h.Kind == header.RTS && req.Total > uint64(s.cfg.MaxMessage) {
		g.done(req.ID, statusTooLong, true)
		return true
	}
	r := s.table.Arrive(g.index, h.Tag)
	if r == nil {
		l.keep(h, b)
		return true
	}
	extra, data := h.Data(b)
	if h.Kind == header.Sync {
		id := header.Uint64(h.Body(b))
		s.stats.Received++
		s.deliver(r.User.(*Request), g, h.Tag, extra, data)
		g.ack(id)
		return true
	}
	if s.postpones(r.User.(*Request), g, b, h, s.table.NextOrder()) {
		return true
	}
	return l.checked(s.receiveLong(r.User.(*Request), g, h, &req, extra, data))
}

// ack sends Ack: a synchronous message was matched.
func (g *Gate) ack(id uint64) {
	if g.close.sent.leave {
		return // the sender has failed it, or does when it receives our Leave
	}
	g.answer(answer{kind: header.Ack, to: id})
}

// sendControl sends a control message over the established connection; without one, the message is dropped. It
// overtakes queued messages, because these may wait for the transfer that it belongs to.
func (g *Gate) sendControl(msg *outMsg) {
	if !g.admitControl(msg) {
		return
	}
	g.chargeMsg(msg)
	if g.clear && g.queues.replay.n == 0 && g.queues.firstAnswer == nil && g.queues.answers.n == 0 && g.queues.control.n == 0 {
		if _, taken := g.lead.post(msg); taken {
			return
		}
	} else if g.state == gateIdle {
		g.connect()
	}
	g.queues.control.push(msg)
	g.markBusy()
}

// sendControlInOrder is sendControl for messages that must not overtake others.
func (g *Gate) sendControlInOrder(msg *outMsg) {
	if g.admitControl(msg) {
		g.dispatch(msg)
	}
}

// admitControl handles a control message that cannot go over this connection, and returns false for it.
func (g *Gate) admitControl(msg *outMsg) bool {
	switch {
	case g.pausing.state == paused: // the peer still waits for it
	case g.pausing.state == pauseBegun && g.close.sent.bye && header.Kind(msg.buf[0]) != header.Cookie:
		g.queues.later.push(msg)
		return false
	case g.state != gateUp && g.state != gateClosing:
		g.s.msgFailed(msg, nil)
		return false
	}
	return true
}
