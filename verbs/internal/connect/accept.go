//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// request is a link by which a peer asks for an endpoint.
type request struct {
	link *link
	msg  *message       // nil until it has come
	met  chan *Endpoint // gets the endpoint that has taken it
}

// requester returns the link of the request that no endpoint has met, or nil.
func (p *peer) requester() *link {
	if p.request == nil {
		return nil
	}
	return p.request.link
}

// accept handles a connection from a dialer. It returns when the connection is a link or closed. If too many
// connections have not proven the secret, it closes the oldest of them.
func (h *hub) accept(s stream) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		s.Close()
		return
	}
	if len(h.unauthenticated) == maxUnauthenticated {
		h.unauthenticated[0].Close()
		h.unauthenticated = h.unauthenticated[1:]
		h.stats.Refused++
	}
	h.unauthenticated = append(h.unauthenticated, s)
	h.accepted++
	number := h.accepted
	h.mu.Unlock()

	_ = s.SetDeadline(time.Now().Add(proofTime))
	conn, b, err := handshake.Accept(s, h.key.Find, h.config())
	err = known(err)
	var c claim
	if err == nil {
		err = c.parse(b)
	}
	h.mu.Lock()
	h.unauthenticated = slices.DeleteFunc(h.unauthenticated, func(x stream) bool { return x == s })
	closed := h.closed
	h.mu.Unlock()
	switch {
	case err != nil:
	case c.to != h.incarnation || c.from == c.to || c.from == 0:
		err = refuseStale.err()
	case c.purpose == forEndpoint && c.from > c.to:
		err = fmt.Errorf("%w: a request of the side that answers", errMalformed)
	case closed:
		err = refuseBusy.err()
	default:
		err = conn.Send((&welcome{}).append(nil))
	}
	if err != nil {
		h.refuse(s, conn, err)
		return
	}
	_ = s.SetDeadline(time.Time{})
	l := h.newLink(c.from, number, s, conn)
	if c.purpose == forWatching {
		h.tasks.Go(func() { h.serveWatcher(c.from, l) })
	} else {
		h.tasks.Go(func() { h.serveRequest(c.from, l) })
	}
}

// refuse sends a dialer that has proven the secret the reason for which it gets no link, and closes the connection.
func (h *hub) refuse(s stream, conn *handshake.Conn, err error) {
	var w welcome
	h.mu.Lock()
	switch {
	case errors.Is(err, errMalformed):
		h.stats.BadMessages++
	case errors.Is(err, driver.ErrVersion):
		w.code = refuseVersion
		h.stats.Refused++
	case errors.Is(err, driver.ErrBroken):
		w.code = refuseStale
		h.stats.Refused++
	case errors.Is(err, driver.ErrAuth):
		h.stats.Refused++
	case errors.Is(err, errTryAgain):
		w.code = refuseBusy
	}
	h.mu.Unlock()
	_ = s.SetDeadline(time.Now().Add(finishTime))
	if conn != nil && w.code != 0 {
		_ = conn.Send(w.append(nil))
	}
	_ = s.CloseWrite() // the answer may still arrive
	s.Close()
}

// serveWatcher keeps the link by which a peer watches this process. The one that was accepted last stays.
func (h *hub) serveWatcher(inc uint64, l *link) {
	h.mu.Lock()
	p := h.peer(inc)
	older := p.watcher
	if older == nil || older.number < l.number {
		p.watcher = l
	} else {
		older = l
	}
	closed := h.closed
	h.mu.Unlock()
	if older != nil {
		older.finish(nil)
	}
	if closed {
		l.finish(&message{kind: msgBye})
	}
	for range l.received { // a watcher has nothing to say
		h.count(&h.stats.BadMessages)
		_ = l.stream.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.watcher == l {
		p.watcher = nil
		h.forget(p)
	}
}

// serveRequest waits for a peer's request and until an endpoint has taken it, and then serves that endpoint. One such
// link of each peer waits: a newer one takes its place, because the peer asks again only after it has given up.
func (h *hub) serveRequest(inc uint64, l *link) {
	r := &request{link: l, met: make(chan *Endpoint, 1)}
	h.mu.Lock()
	p := h.peer(inc)
	older := p.request
	if older == nil || older.link.number < l.number {
		p.request = r
	} else {
		older = r
	}
	closed := h.closed
	h.mu.Unlock()
	if older != nil {
		older.link.finish(nil)
	}
	if closed {
		l.finish(&message{kind: msgBye})
	}
	msg, err := h.next(l, msgRequest, nil)
	if err == nil {
		h.mu.Lock()
		if p.request == r {
			r.msg = &msg
			h.pair(p)
		}
		h.mu.Unlock()
		select {
		case e := <-r.met:
			e.run(e.answerer)
			return
		case <-l.received: // the peer has given up, or is gone
		}
	}
	l.finish(nil)
	h.mu.Lock()
	if p.request == r {
		p.request = nil
		h.forget(p)
	}
	h.mu.Unlock()
	select {
	case e := <-r.met: // an endpoint has taken it at the same moment
		e.run(func(*link) error { return errTakenBack })
	default:
	}
}

// pair lets the oldest endpoint that waits take the peer's request, and reports whether there are both. The caller
// holds mu.
func (h *hub) pair(p *peer) bool {
	if p.request == nil || p.request.msg == nil || len(p.waiting) == 0 {
		return false
	}
	e, r := p.waiting[0], p.request
	p.request = nil
	h.unwait(e)
	e.meet(r.link, r.msg)
	r.met <- e
	return true
}
