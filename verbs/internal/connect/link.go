//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// stream carries the bytes of a link. One goroutine writes and one reads.
type stream interface {
	io.ReadWriter
	SetDeadline(time.Time) error
	// CloseWrite is called after the last Write. The peer reads all bytes and then the end.
	CloseWrite() error
	// Close ends both directions at once. It may be called more than once.
	Close() error
}

// link is an authenticated connection to a peer.
type link struct {
	stream  stream
	conn    *handshake.Conn
	dialed  bool // this side dialed
	attempt uint32
	queue   [][]byte      // to be sent; guarded by hub.mu
	posted  chan struct{} // signals that queue or closing has changed
	closing bool          // guarded by hub.mu
}

const (
	maxQueue   = 4096        // messages that a peer has not read; beyond that the link is cut
	finishTime = time.Second // for a link to end in order
)

// post sends a message. The caller holds hub.mu.
func (l *link) post(m *message) {
	if l.closing {
		return
	}
	if len(l.queue) == maxQueue {
		_ = l.stream.Close() // ends the reader, too
		return
	}
	l.queue = append(l.queue, m.append(nil))
	l.wake()
}

func (l *link) wake() {
	select {
	case l.posted <- struct{}{}:
	default:
	}
}

// write sends posted messages until the link is closed.
func (h *hub) write(l *link) {
	for range l.posted {
		h.mu.Lock()
		queue, closing := l.queue, l.closing
		l.queue = nil
		h.mu.Unlock()
		for _, b := range queue {
			if l.conn.Send(b) != nil {
				_ = l.stream.Close() // ends the reader, too
				return
			}
		}
		if closing {
			_ = l.stream.CloseWrite()
			return
		}
	}
}

// read receives messages until the link ends.
func (h *hub) read(p *peer, l *link) {
	defer l.stream.Close()
	for {
		b, err := l.conn.Receive()
		var m message
		bad := errors.Is(err, handshake.ErrSecret) || errors.Is(err, handshake.ErrMalformed)
		if err == nil {
			err = m.parse(b)
		}
		h.mu.Lock()
		if err == nil && p.link == l { // messages of a link that was replaced are repeated over the new one
			err = h.receive(p, &m)
		}
		if bad || errors.Is(err, errMalformed) {
			h.stats.BadMessages++
		}
		if err != nil {
			h.unlink(p, l)
		}
		h.settle(p)
		h.unlock()
		if err != nil {
			return
		}
	}
}

// receive handles a message. The caller holds mu.
func (h *hub) receive(p *peer, m *message) error {
	if m.kind == msgBye {
		p.leave()
		return io.EOF
	}
	return p.receive(m, h.now())
}

// unlink closes a link in order: posted messages are still sent. The caller holds mu.
func (h *hub) unlink(p *peer, l *link) {
	if l.closing {
		return
	}
	l.closing = true
	l.wake()
	_ = l.stream.SetDeadline(time.Now().Add(finishTime))
	if p.link == l {
		p.link = nil
		p.linkDown(h.now())
	}
}

// newer reports whether a link with that attempt replaces the present one. Both sides decide alike: the higher attempt
// stays; between equal attempts the link that the lower incarnation dialed stays.
func (p *peer) newer(attempt uint32, dialed bool) bool {
	l := p.link
	return l == nil || attempt > l.attempt || attempt == l.attempt && dialed != l.dialed && dialed == p.asks()
}

// join makes a link of a connection, unless there is a newer link or the hub is closed.
func (h *hub) join(p *peer, l *link) error {
	l.posted = make(chan struct{}, 1)
	h.mu.Lock()
	defer h.unlock()
	if q := h.peers[p.peer]; q == nil {
		h.peers[p.peer] = p // p was forgotten meanwhile
	} else {
		p = q
	}
	switch {
	case h.closed:
		return refuseBusy.err()
	case !p.newer(l.attempt, l.dialed):
		return refuseSpare.err()
	}
	if p.link != nil {
		h.unlink(p, p.link)
	}
	p.link, p.attempt = l, max(p.attempt, l.attempt)
	h.stats.links++
	if !l.dialed {
		l.queue = append(l.queue, (&welcome{}).append(nil))
		l.wake()
	}
	h.tasks.Go(func() { h.write(l) })
	h.tasks.Go(func() { h.read(p, l) })
	p.linkUp(h.now())
	h.settle(p)
	return nil
}

// dial tries to make a link to a peer as long as one is needed.
func (h *hub) dial(ctx context.Context, p *peer, target string) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		h.mu.Lock()
		if p.link != nil || h.closed || !slices.Contains(p.targets(), target) {
			p.dialing[target]()
			delete(p.dialing, target)
			h.settle(p)
			h.unlock()
			return
		}
		p.attempt++
		c := claim{version: protocolVersion, attempt: p.attempt, from: h.env.incarnation, to: p.peer}
		h.unlock()
		err := h.try(ctx, p, target, &c)
		if err == nil {
			continue
		}
		// A peer that does not exist any more, or refuses for good, is not dialed again.
		final := errors.Is(err, driver.ErrBroken) || errors.Is(err, driver.ErrAuth) || errors.Is(err, driver.ErrVersion)
		h.mu.Lock()
		p.noLink(target, err, final && ctx.Err() == nil)
		h.settle(p)
		h.unlock()
		select {
		case <-ctx.Done(): // another endpoint may need the same target by now
			h.mu.Lock()
			ctx, p.dialing[target] = context.WithCancel(h.ctx)
			h.mu.Unlock()
		case <-time.After(pause):
		}
	}
}

// try dials once.
func (h *hub) try(ctx context.Context, p *peer, target string, c *claim) error {
	ctx, cancel := context.WithTimeout(ctx, 2*h.env.timeout/3) // shorter than an endpoint's time-out, so that its error has the cause
	defer cancel()
	return h.carrier.dial(ctx, p.peer, target, func(s stream) error {
		stop := context.AfterFunc(ctx, func() { s.Close() })
		l, err := h.introduce(s, p, c)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = h.join(p, l)
		}
		if err != nil {
			s.Close()
		}
		return err
	})
}

func (h *hub) config() *handshake.Config {
	return &handshake.Config{Protocol: "bywash connect " + h.name, Limit: maxPayload}
}

// introduce performs the dialer's part of the handshake and sends the claim.
func (h *hub) introduce(s stream, p *peer, c *claim) (*link, error) {
	_ = s.SetDeadline(time.Now().Add(h.env.timeout / 3))
	defer s.SetDeadline(time.Time{})
	conn, err := handshake.Dial(s, h.env.key, h.config(), c.append(nil))
	if err != nil {
		if errors.Is(err, handshake.ErrSecret) {
			h.count(&h.stats.Refused)
		}
		return nil, fmt.Errorf("handshake: %w", known(err))
	}
	b, err := conn.Receive()
	if err != nil {
		return nil, fmt.Errorf("await welcome: %w", known(err))
	}
	var w welcome
	if err := w.parse(b); err != nil {
		return nil, err
	}
	if w.code == refuseSpare {
		h.mu.Lock()
		p.attempt = max(p.attempt, w.attempt)
		h.mu.Unlock()
	}
	return &link{stream: s, conn: conn, dialed: true, attempt: c.attempt}, w.code.err()
}

// known wraps an error of a handshake in the corresponding sentinel of package driver.
func known(err error) error {
	for from, to := range map[error]error{handshake.ErrSecret: driver.ErrAuth, handshake.ErrVersion: driver.ErrVersion,
		handshake.ErrMalformed: errMalformed} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}

func (h *hub) count(n *uint64) {
	h.mu.Lock()
	*n++
	h.mu.Unlock()
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
	h.mu.Unlock()

	_ = s.SetDeadline(time.Now().Add(proofTime))
	conn, b, err := handshake.Accept(s, h.env.key.Find, h.config())
	err = known(err)
	var c claim
	if err == nil {
		err = c.parse(b)
	}
	h.mu.Lock()
	h.unauthenticated = slices.DeleteFunc(h.unauthenticated, func(x stream) bool { return x == s })
	h.mu.Unlock()
	if err == nil && (c.to != h.env.incarnation || c.from == c.to || c.from == 0) {
		err = refuseStale.err()
	}
	if err == nil {
		_ = s.SetDeadline(time.Time{})
		h.mu.Lock()
		p := h.peer(c.from)
		h.mu.Unlock()
		err = h.join(p, &link{stream: s, conn: conn, attempt: c.attempt})
	}
	if err != nil {
		h.refuse(s, conn, &c, err)
	}
}

// refuse sends a dialer that has proven the secret the reason for which it gets no link, and closes the connection.
func (h *hub) refuse(s stream, conn *handshake.Conn, c *claim, err error) {
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
		if p := h.peers[c.from]; p != nil && p.link != nil {
			w.code, w.attempt = refuseSpare, p.link.attempt
		}
	}
	h.mu.Unlock()
	_ = s.SetDeadline(time.Now().Add(finishTime))
	if conn != nil && w.code != 0 {
		_ = conn.Send(w.append(nil))
	}
	_ = s.CloseWrite() // the answer may still arrive
	s.Close()
}
