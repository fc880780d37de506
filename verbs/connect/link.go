package connect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

// link is an authenticated connection to a peer.
type link struct {
	conn    conn
	dialed  bool // by this side
	since   time.Duration
	out     chan []byte // messages to be sealed and sent; closed with the link
	closing bool
}

const (
	depth      = 256         // messages that wait for a link; more are lost, and come again
	finishTime = time.Second // that a link gets to end in order
)

// post sends a message. The caller holds hub.mu.
func (l *link) post(m *message) {
	if l.closing {
		return
	}
	select {
	case l.out <- m.append(make([]byte, 0, maxFrame)):
	default:
	}
}

// spare: both sides have dialed at the same time. The link of the lower
// incarnation stays.
func (l *link) spare(p *peer) bool {
	return p.self > p.peer && l.dialed && slices.ContainsFunc(p.links, func(x *link) bool { return !x.dialed })
}

// leave closes a link in order. The caller holds mu.
func (h *hub) leave(p *peer, l *link, flags uint8) {
	l.post(&message{kind: msgBye, flags: flags})
	h.unlink(p, l)
}

// unlink takes a link off its peer, once. What was posted is still sent. The caller holds mu.
func (h *hub) unlink(p *peer, l *link) {
	if l.closing {
		return
	}
	l.closing = true
	l.conn.expire(time.Now().Add(finishTime))
	close(l.out)
	p.links = slices.DeleteFunc(p.links, func(x *link) bool { return x == l })
	if len(p.links) == 0 {
		p.linkDown(h.now())
	}
}

// dial makes a link to a peer, as long as one is wanted.
func (h *hub) dial(ctx context.Context, p *peer, target string) {
	pause := 20 * time.Millisecond
	for {
		h.mu.Lock()
		if len(p.links) > 0 || h.closed || !slices.Contains(p.targets(), target) {
			p.dialing[target]()
			delete(p.dialing, target)
			h.settle(p)
			h.unlock()
			return
		}
		h.unlock()
		err := h.try(ctx, p, target)
		if err == nil {
			continue
		}
		// Who is not there any more, or refuses for good, is not asked again.
		final := errors.Is(err, driver.ErrBroken) || errors.Is(err, driver.ErrAuth) || errors.Is(err, driver.ErrVersion)
		h.mu.Lock()
		p.noLink(target, err, final && ctx.Err() == nil)
		h.settle(p)
		h.unlock()
		select {
		case <-ctx.Done():
			// Another endpoint may want the same target by now.
			h.mu.Lock()
			ctx, p.dialing[target] = context.WithCancel(h.ctx)
			h.unlock()
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// try dials once.
func (h *hub) try(ctx context.Context, p *peer, target string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*h.env.Timeout/3) // so that the cause is known when an endpoint fails
	defer cancel()
	return h.carrier.dial(ctx, p.peer, target, func(c conn) error {
		stop := context.AfterFunc(ctx, c.close)
		there, back, err := h.introduce(c, p.peer)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err == nil && !h.link(p, c, true, there, back) {
			err = driver.ErrClosed
		}
		if err != nil {
			c.close()
		}
		return err
	})
}

// introduce speaks the dialer's part.
func (h *hub) introduce(c conn, peer uint64) (there, back *seal, err error) {
	c.expire(time.Now().Add(h.env.Timeout / 3))
	defer c.expire(time.Time{})
	hs := handshake{secret: h.env.Secret, manager: h.name}
	if err := c.send(hs.dial(h.env.Incarnation, peer).append(nil)); err != nil {
		return nil, nil, fmt.Errorf("hello: %w", err)
	}
	var f frame
	if err := receiveFrame(c, &f); err != nil {
		return nil, nil, fmt.Errorf("await challenge: %w", err)
	}
	proof, err := hs.answer(&f)
	if err != nil {
		if proof != nil {
			_ = c.send(proof.append(nil))
			h.count(&h.stats.Refused)
		}
		return nil, nil, err
	}
	if err := c.send(proof.append(nil)); err != nil {
		return nil, nil, fmt.Errorf("proof: %w", err)
	}
	there, back = hs.seals()
	b, err := c.receive()
	if err != nil {
		return nil, nil, fmt.Errorf("await welcome: %w", err)
	}
	if f.parse(b) == nil && f.kind == frameRefuse {
		return nil, nil, refuseError(f.code)
	}
	var m message
	if b, err = back.open(b); err == nil {
		err = m.parse(b)
	}
	if err == nil && m.kind != msgWelcome {
		err = fmt.Errorf("%w: kind %d instead of welcome", errMalformed, m.kind)
	}
	return there, back, err
}

func receiveFrame(c conn, f *frame) error {
	b, err := c.receive()
	if err != nil {
		return err
	}
	return f.parse(b)
}

func (h *hub) count(n *uint64) {
	h.mu.Lock()
	*n++
	h.mu.Unlock()
}

// meet takes a connection that somebody has made to us, and returns when it is
// a link, or closed. When too many have not proven who they are, the oldest of
// them goes.
func (h *hub) meet(c conn) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		c.close()
		return
	}
	if len(h.strangers) == maxStrangers {
		h.strangers[0].close()
		h.strangers = h.strangers[1:]
		h.stats.Refused++
	}
	h.strangers = append(h.strangers, c)
	h.mu.Unlock()

	c.expire(time.Now().Add(strangerTime))
	hs := handshake{secret: h.env.Secret, manager: h.name}
	err := h.interview(c, &hs)
	h.mu.Lock()
	h.strangers = slices.DeleteFunc(h.strangers, func(x conn) bool { return x == c })
	switch {
	case errors.Is(err, errMalformed):
		h.stats.BadMessages++
	case errors.Is(err, driver.ErrAuth) || errors.Is(err, driver.ErrVersion) || errors.Is(err, driver.ErrBroken):
		h.stats.Refused++
	}
	h.mu.Unlock()
	if err != nil {
		c.finish() // what was answered may arrive
		c.close()
		return
	}
	there, back := hs.seals()
	welcome := message{kind: msgWelcome}
	if err := c.send(back.close(welcome.append(nil))); err != nil {
		c.close()
		return
	}
	c.expire(time.Time{})
	h.mu.Lock()
	p := h.peer(hs.hello.from)
	h.mu.Unlock()
	if !h.link(p, c, false, back, there) {
		c.close()
	}
}

// interview speaks the listener's part.
func (h *hub) interview(c conn, hs *handshake) error {
	var f frame
	if err := receiveFrame(c, &f); err != nil {
		if errors.Is(err, driver.ErrVersion) {
			_ = c.send((&frame{kind: frameRefuse, code: refuseVersion}).append(nil))
		}
		return err
	}
	answer, err := hs.listen(&f, h.env.Incarnation)
	if answer != nil {
		err = errors.Join(err, c.send(answer.append(nil)))
	}
	if err != nil {
		return err
	}
	if err := receiveFrame(c, &f); err != nil {
		return err
	}
	if answer, err = hs.check(&f); answer != nil {
		_ = c.send(answer.append(nil))
	}
	return err
}

// link makes a link of a connection. False if the hub is closed.
func (h *hub) link(p *peer, c conn, dialed bool, out, in *seal) bool {
	h.mu.Lock()
	defer h.unlock()
	if h.closed {
		return false
	}
	if q := h.peers[p.peer]; q == nil {
		h.peers[p.peer] = p // was forgotten meanwhile
	} else {
		p = q
	}
	l := &link{conn: c, dialed: dialed, since: h.now(), out: make(chan []byte, depth)}
	if len(p.links) == maxLinks {
		h.unlink(p, p.links[0])
	}
	p.links = append(p.links, l)
	h.stats.Links++
	h.tasks.Go(func() { l.write(out) })
	h.tasks.Go(func() { h.read(p, l, in) })
	p.linkUp(h.now())
	h.settle(p)
	return true
}

// write sends what is posted, until the link is closed.
func (l *link) write(s *seal) {
	for b := range l.out {
		if l.conn.send(s.close(b)) != nil {
			l.conn.close() // the reader notices
			for range l.out {
			}
			return
		}
	}
	l.conn.finish()
}

// read receives messages until the link ends.
func (h *hub) read(p *peer, l *link, s *seal) {
	var m message
	for {
		b, err := l.conn.receive()
		bad := false
		if err == nil {
			if b, err = s.open(b); err == nil {
				err = m.parse(b)
			}
			bad = err != nil
		}
		h.mu.Lock()
		if err == nil && !l.closing {
			err = h.receive(p, l, &m)
			bad = errors.Is(err, errMalformed)
		}
		if bad {
			h.stats.BadMessages++
		}
		if err != nil {
			h.unlink(p, l)
		}
		h.settle(p)
		h.unlock()
		if err != nil {
			l.conn.close()
			return
		}
	}
}

var errBye = errors.New("the peer has closed the link")

// receive takes a message. The caller holds mu.
func (h *hub) receive(p *peer, l *link, m *message) error {
	if m.kind != msgBye {
		return p.receive(m, h.now())
	}
	if m.flags&flagFinal != 0 {
		p.leave()
	}
	return errBye
}
