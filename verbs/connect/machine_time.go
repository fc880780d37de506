package connect

import (
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

// tick does what is due.
func (m *machine) tick(now time.Duration) {
	for _, e := range m.ends {
		m.tickEnd(e, now)
	}
	if len(m.queue) > 0 && !m.up && now >= m.downAt+m.timeout {
		m.lastID = m.queue[0].from - 1 // should the peer come back, they are new
		m.queue = nil
	}
	m.graves = slices.DeleteFunc(m.graves, func(g grave) bool { return now >= g.until })
	for k := range m.graves {
		if g := &m.graves[k]; !g.known && now >= g.again {
			m.repeated++
			g.pause = min(2*g.pause, m.timeout/repeats)
			g.again = now + g.pause
			m.send(g.msg)
		}
	}
}

func (m *machine) tickEnd(e *end, now time.Duration) {
	switch {
	case e.limit != 0 && now >= e.limit:
		m.fail(e, fmt.Errorf("%w: not done after %v", driver.ErrBroken, stretch*e.timeout), rejectTime, 0, now)
	case m.listens(e) && now >= e.heard+e.timeout:
		err := fmt.Errorf("%w: the peer does not answer for %v", driver.ErrBroken, e.timeout)
		if why := m.trouble[e.target]; why != nil && !m.up {
			err = fmt.Errorf("%w: %w", err, why)
		}
		if e.state == stClear {
			m.end(e, stLost, err)
			return
		}
		m.fail(e, err, rejectTime, 0, now)
	case m.cutOff(e) && now >= m.downAt+e.timeout:
		err := fmt.Errorf("%w: the peer cannot be reached for %v", driver.ErrBroken, e.timeout)
		if why := m.trouble[e.target]; why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		m.end(e, stLost, err)
	case e.again != 0 && now >= e.again:
		m.repeated++
		m.repeat(e, now, 2*e.pause)
	}
}

// listens: the peer is expected to say something.
func (m *machine) listens(e *end) bool {
	switch e.state {
	case stCall, stRequest, stReply, stConfirm, stClear:
		return m.self != m.peer
	}
	return false
}

// cutOff: the end is ready and the link is down.
func (m *machine) cutOff(e *end) bool { return e.state == stReady && !m.up && m.self != m.peer }

// next is when tick is due; false if never.
func (m *machine) next() (at time.Duration, ok bool) {
	sooner := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, e := range m.ends {
		if e.limit != 0 {
			sooner(e.limit)
		}
		if e.again != 0 {
			sooner(e.again)
		}
		if m.listens(e) {
			sooner(e.heard + e.timeout)
		}
		if m.cutOff(e) {
			sooner(m.downAt + e.timeout)
		}
	}
	if len(m.queue) > 0 && !m.up {
		sooner(m.downAt + m.timeout)
	}
	for k := range m.graves {
		sooner(m.graves[k].until)
		if !m.graves[k].known {
			sooner(m.graves[k].again)
		}
	}
	return at, ok
}

// linkUp tells that messages can pass, possibly over another link than before.
func (m *machine) linkUp(now time.Duration) {
	m.up = true
	clear(m.trouble)
	for _, e := range m.ends {
		if e.again != 0 {
			m.repeat(e, now, firstPause)
		}
		if e.state.standing() && m.wasUp {
			m.send(message{kind: msgCheck, from: e.id, to: e.peerID})
		}
	}
	for k := range m.graves {
		if g := &m.graves[k]; !g.known {
			g.pause, g.again = firstPause, now+firstPause
			m.send(g.msg)
		}
	}
	m.wasUp = true
}

// linkDown tells that no link is left.
func (m *machine) linkDown(now time.Duration) {
	m.up, m.downAt = false, now
}

// noLink tells why a target could not be reached; final, that it never will.
func (m *machine) noLink(target string, err error, final bool) {
	if m.up {
		return
	}
	if m.trouble == nil {
		m.trouble = make(map[string]error)
	}
	m.trouble[target] = err
	if !final {
		return
	}
	for _, e := range m.ends {
		if e.target == target && m.self != m.peer {
			m.drop(e, err)
		}
	}
}

// leave tells that the peer has gone in order.
func (m *machine) leave() {
	for _, e := range m.ends {
		m.gone(e, fmt.Errorf("%w: the peer has closed", driver.ErrClosed))
	}
	m.queue, m.graves = nil, nil
}

// targets are where a link is wanted.
func (m *machine) targets() []string {
	var list []string
	for _, e := range m.ends {
		if (e.state.connecting() || e.state.standing()) && m.self != m.peer && !slices.Contains(list, e.target) {
			list = append(list, e.target)
		}
	}
	return list
}

// idle: there is nothing to be said to the peer.
func (m *machine) idle() bool {
	for k := range m.graves {
		if !m.graves[k].known {
			return false
		}
	}
	return len(m.queue) == 0 && len(m.targets()) == 0
}
