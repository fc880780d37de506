package session

import (
	"context"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// Out is a message to be sent, with all its options.
type Out struct {
	Tag    uint64
	Header []byte        // travels with the message, at most MaxHeader bytes; copied
	Buf    []byte        // the data
	Layout driver.Layout // or, without Buf, the data in pieces
	Sync   bool          // done only once the receiver has matched it
	Urgent bool          // overtakes what still waits here for a connection or for room, and is not urgent
	// Then is called when the message is sent or has failed, instead of a request being waited for: the request that is
	// returned is nil. It runs without any lock and may call the session, e.g. to send more. It must not block: it
	// runs in a goroutine that makes progress for all, which may be the caller of any operation.
	Then func(Status, error)
}

var errTwoData = fmt.Errorf("%w: both Buf and Layout are given", ErrInvalid)

func (o *Out) len() int {
	if o.Layout != nil {
		return o.Layout.Len()
	}
	return len(o.Buf)
}

// Send sends buf with a tag and blocks until buf may be reused; the peer has not necessarily received the message then.
// Messages to one peer are matched in the order in which they were sent. Send fails with ErrBroken, ErrClosed, or the
// error of ctx if ctx ends while the message can still be taken back (see Request.Wait).
func (g *Gate) Send(ctx context.Context, tag uint64, buf []byte) error {
	if g.sendShort(tag, buf) {
		return nil
	}
	o := Out{Tag: tag, Buf: buf}
	return g.SendMsg(ctx, &o)
}

// Isend is Send without blocking. The request is nil if the message has left already and buf may be reused.
func (g *Gate) Isend(tag uint64, buf []byte) (*Request, error) {
	if g.sendShort(tag, buf) {
		return nil, nil
	}
	o := Out{Tag: tag, Buf: buf}
	return g.IsendMsg(&o)
}

// sendShort sends a message that is copied anyway, over an established connection.
func (g *Gate) sendShort(tag uint64, buf []byte) bool {
	s := g.s
	s.mu.lock()
	if g.state != gateUp || !g.clear || g.queued() > 0 || g.queues.later.n > 0 || len(buf) > copyMax || len(buf) > g.eagerMax() {
		s.leave()
		return false
	}
	s.stats.Sent++
	msg := s.newOutMsg(header.Size + len(buf))
	header.PutEager(msg.buf, len(buf), tag)
	copy(msg.buf[header.Size:], buf)
	if _, taken := g.lead.post(msg); !taken {
		g.queues.backlog.push(msg)
		g.markWaiting()
	}
	s.leave()
	return true
}

// SendMsg is Send with options. With Then it does not block.
func (g *Gate) SendMsg(ctx context.Context, o *Out) error {
	r, err := g.IsendMsg(o)
	if r == nil || err != nil {
		return err
	}
	_, err = r.Wait(ctx)
	return err
}

// IsendMsg is Isend with options. It does not keep o.
func (g *Gate) IsendMsg(o *Out) (*Request, error) {
	s := g.s
	s.mu.lock()
	if err := g.ready("send"); err != nil {
		s.leave()
		return nil, err
	}
	var err error
	switch {
	case len(o.Header) > MaxHeader:
		err = fmt.Errorf("%w: header of %d bytes, at most %d", ErrInvalid, len(o.Header), MaxHeader)
	case o.Buf != nil && o.Layout != nil:
		err = errTwoData
	}
	if err != nil {
		s.leave()
		return nil, g.fault("send", err)
	}
	s.stats.Sent++
	var r *Request
	if n := o.len(); n+len(o.Header) <= g.eagerMax() && !g.longInPlace(o, n) {
		r = g.sendEager(o, n)
	} else {
		var rts *outMsg
		rts, r = g.longMsg(o, n)
		g.enqueue(rts)
	}
	if o.Then != nil {
		if r == nil {
			f := o.Then
			s.calls = append(s.calls, func() { f(Status{}, nil) })
		}
		r = nil
	}
	s.leave()
	return r, nil
}

// eagerMax is the longest message, user's header included, that travels at
// once.
func (g *Gate) eagerMax() int {
	n := g.s.eager
	if g.lead != nil {
		n = g.lead.eager
	}
	if u := g.credit.unasked; u > 0 && u < n {
		n = u
	}
	n -= header.Size + 8 // Sync has a number
	if lim := g.s.cfg.Eager; lim > 0 && lim < n {
		return lim
	}
	return n
}

// longInPlace reports whether a message that could travel at once goes by the large track, which reads it in place and is
// faster.
func (g *Gate) longInPlace(o *Out, n int) bool {
	if g.lead == nil || n < g.lead.nic.longFrom || g.lead.nic.longFrom == 0 {
		return false
	}
	_, _, inArena := driver.ArenaOf(o.Buf)
	return inArena
}

// sendRequest makes the request of a send.
func (g *Gate) sendRequest(o *Out) *Request {
	r := g.s.request("send")
	r.g, r.then = g, o.Then
	return r
}

// sendEager sends a message of n bytes in one packet.
func (g *Gate) sendEager(o *Out, n int) *Request {
	s := g.s
	h := header.Header{Kind: header.Eager, Extra: uint16(len(o.Header)), Length: uint32(n), Tag: o.Tag}
	at := header.Size
	if o.Sync {
		h.Kind = header.Sync
		at += 8
	}
	copied := n <= copyMax || o.Layout != nil
	size := at + len(o.Header)
	if copied {
		size += n
	}
	msg := s.newOutMsg(size)
	msg.urgent = o.Urgent
	h.Put(msg.buf)
	var r *Request
	if o.Sync {
		r = g.sendRequest(o)
		r.sync = s.transfers.syncs.add(r)
		header.PutUint64(msg.buf[header.Size:], r.sync)
		msg.sync = r.sync
	}
	copy(msg.buf[at:], o.Header)
	at += len(o.Header)
	switch {
	case o.Layout != nil:
		p := driver.Packet{Data: o.Layout}
		c := p.Cursor()
		c.Gather(msg.buf[at:])
	case copied:
		copy(msg.buf[at:], o.Buf)
	default:
		msg.iov[1] = o.Buf
	}
	if r != nil {
		g.enqueue(msg)
		return r
	}
	if copied && g.queues.backlog.n+g.queues.later.n < maxBuffered {
		g.enqueue(msg) // no request waits for it
		return nil
	}
	r = g.sendRequest(o)
	msg.req = r
	g.enqueue(msg)
	if r.then == nil && r.done && r.err == nil {
		s.free(r)
		return nil
	}
	return r
}
