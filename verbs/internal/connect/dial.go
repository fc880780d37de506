//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// watchAfter is how long an endpoint of the answerer waits for a request before it watches whether the peer lives.
const watchAfter = 100 * time.Millisecond

// reach makes a link to a peer. It dials again until the peer has been silent for the time-out.
func (h *hub) reach(ctx context.Context, inc uint64, target []byte, p purpose) (*link, error) {
	end := time.Now().Add(h.timeout)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		l, err := h.try(ctx, inc, target, p)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, driver.ErrBroken), errors.Is(err, driver.ErrAuth), errors.Is(err, driver.ErrVersion), ctx.Err() != nil:
			return nil, err
		case errors.Is(err, errTryAgain):
			end = time.Now().Add(h.timeout) // the peer has answered
		case time.Now().Add(pause).After(end):
			return nil, fmt.Errorf("%w for %v: %w", errSilent, h.timeout, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// try dials once.
func (h *hub) try(ctx context.Context, inc uint64, target []byte, p purpose) (l *link, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*h.timeout/3) // shorter than the time-out, so that its error has the cause
	defer cancel()
	c := claim{version: protocolVersion, purpose: p, from: h.incarnation, to: inc}
	err = h.carrier.dial(ctx, inc, target, func(s stream) error {
		stop := context.AfterFunc(ctx, func() { s.Close() })
		conn, err := h.introduce(s, &c)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			s.Close()
			return err
		}
		l = h.newLink(inc, 0, s, conn)
		return nil
	})
	return l, err
}

func (h *hub) config() *handshake.Config {
	return &handshake.Config{Protocol: "bywash connect " + h.name, Limit: maxPayload}
}

// introduce performs the dialer's part of the handshake, sends the claim and awaits the welcome.
func (h *hub) introduce(s stream, c *claim) (*handshake.Conn, error) {
	_ = s.SetDeadline(time.Now().Add(h.timeout / 3))
	defer s.SetDeadline(time.Time{})
	conn, err := handshake.Dial(s, h.key, h.config(), c.append(nil))
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
	return conn, w.code.err()
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

// ask pairs the endpoints that wait for a peer that answers, one after the other, so that the nth meets the peer's nth.
func (h *hub) ask(p *peer) {
	for {
		h.mu.Lock()
		if len(p.waiting) == 0 {
			p.asking = false
			h.forget(p)
			h.mu.Unlock()
			return
		}
		e := p.waiting[0]
		h.mu.Unlock()
		l, err := h.reach(e.waits, p.inc, e.target, forEndpoint)
		if err == nil {
			err = h.askFor(e, l)
		}
		if err != nil && e.waits.Err() == nil {
			h.lost(p.inc, e.target, err)
		}
	}
}

// askFor sends the request of one endpoint. Its error means that the peer's process is gone.
func (h *hub) askFor(e *Endpoint, l *link) error {
	h.mu.Lock()
	e.link = l // tells the peer if the endpoint fails or is finalized
	given := e.waits.Err() != nil
	h.mu.Unlock()
	if given {
		l.finish(&message{kind: msgGone})
		return nil
	}
	if addrs, err := h.carrier.addresses(e.target); err == nil {
		e.offer.renew(h.latest.Load(), addrs...)
	}
	_ = l.send(&message{kind: msgRequest, offer: e.offer}) // an error shows at the reader
	reply, err := h.next(l, msgReply, e.waits.Done())
	h.mu.Lock()
	defer h.unlock()
	switch {
	case e.waits.Err() != nil: // finalized
		return nil
	case errors.Is(err, errSilent):
		return err
	case err != nil:
		e.fail(err)
		return nil
	}
	h.unwait(e)
	e.meet(l, &reply)
	h.tasks.Go(func() { e.run(e.asker) })
	return nil
}

// startWatch watches whether a peer's process lives. The caller holds mu.
func (h *hub) startWatch(p *peer) {
	if !p.watching {
		p.watching = true
		h.tasks.Go(func() { h.watch(p) })
	}
}

// watch holds a link to a peer as long as endpoints wait for its requests, or are connected to it and have lost their
// own links. It ends them when the peer's process is gone.
func (h *hub) watch(p *peer) {
	for again := false; ; again = true {
		h.mu.Lock()
		e := h.watched(p)
		if e == nil {
			p.watching = false
			h.forget(p)
			h.mu.Unlock()
			return
		}
		ctx := e.waits
		h.mu.Unlock()
		if again || e.State() == Connecting { // most requests come at once
			select {
			case <-ctx.Done():
				continue
			case <-time.After(watchAfter):
			}
		}
		l, err := h.reach(ctx, p.inc, e.target, forWatching)
		gone := err != nil
		if err == nil {
			_, err = h.next(l, msgAlive, ctx.Done())
			gone = errors.Is(err, errSilent)
			l.finish(nil)
		}
		if gone && ctx.Err() == nil {
			h.lost(p.inc, e.target, err)
		}
	}
}

// watched returns an endpoint that needs the peer to be watched, or nil. The caller holds mu.
func (h *hub) watched(p *peer) *Endpoint {
	switch {
	case len(p.unlinked) > 0:
		return p.unlinked[0]
	case len(p.waiting) > 0 && !h.asks(p):
		return p.waiting[0]
	}
	return nil
}
