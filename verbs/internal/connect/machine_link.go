//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

// receive handles a message of the peer. An error means that the peer violates the protocol.
func (m *machine) receive(msg *message, now time.Duration) error {
	fromAsker, fromAnswerer := msg.kind == msgRequest, msg.kind == msgCall || msg.kind == msgReply
	if m.alone() || fromAsker && m.asks() || fromAnswerer && !m.asks() {
		return fmt.Errorf("%w: unexpected message type %d", errMalformed, msg.kind)
	}
	m.received = now
	switch msg.kind {
	case msgCall:
		m.wanted = int(min(msg.count, 1<<20))
	case msgRequest:
		m.receiveRequest(msg, now)
	case msgReply:
		m.receiveReply(msg, now)
	case msgConfirm:
		m.receiveConfirm(msg, now)
	case msgReject:
		m.receiveEnd(msg, msg.rejectError(), now)
	case msgGone:
		m.receiveEnd(msg, fmt.Errorf("%w: the peer gave up or disconnected", driver.ErrClosed), now)
	case msgPing:
		m.send(message{kind: msgPong})
	case msgPong:
	default:
		return fmt.Errorf("%w: kind %d among messages about endpoints", errMalformed, msg.kind)
	}
	return nil
}

// receiveRequest pairs the request with the first end that waits. The asker sends its next request only after the
// reply, so at most one request waits here, and a newer one replaces it.
func (m *machine) receiveRequest(msg *message, now time.Duration) {
	met := func(e *end) bool { return e.peerID == msg.from && (e.state == stReply || e.reject != nil) }
	if e := m.find(met); e != nil {
		m.sendState(e) // the reply or reject was lost with a link
		return
	}
	if e := m.find(func(e *end) bool { return e.state == stIdle || e.state == stCall }); e != nil {
		m.match(e, msg, now)
		return
	}
	req := *msg
	m.waiting = &req
}

func (m *machine) receiveReply(msg *message, now time.Duration) {
	e := m.find(func(e *end) bool { return e.id == msg.to && e.state != stFailed && e.state != stLost })
	switch {
	case e == nil || e.peerID != 0 && e.peerID != msg.from:
		m.send(message{kind: msgGone, from: msg.to, to: msg.from})
	case e.state == stRequest:
		e.peerID, e.remote = msg.from, msg.offer
		e.useCTS = e.cts || msg.flags&flagCTS != 0
		if code := e.offer.fits(&e.remote); code != 0 {
			m.fail(e, (&message{code: code}).rejectError(), code, 0)
			return
		}
		m.work(e, stModify, stepInit, stepRTR, now)
	}
}

func (m *machine) receiveConfirm(msg *message, now time.Duration) {
	e := m.find(func(e *end) bool { return e.id == msg.to && e.peerID == msg.from })
	if e == nil || e.state == stFailed || e.state == stLost {
		m.send(message{kind: msgGone, from: msg.to, to: msg.from})
		return
	}
	e.peerClear = e.peerClear || msg.flags&flagClear != 0
	switch e.state {
	case stReply:
		m.work(e, stModify, stepInit, stepRTS, now)
	case stConfirm:
		m.work(e, stFinish, stepRTS, stepRTS, now)
	case stClear, stReady:
		m.cleared(e)
		if !m.asks() {
			m.sendState(e) // the asker may wait for this confirm: the first one was lost with a link
		}
	}
}

// receiveEnd handles the message that the peer's end has failed or was finalized.
func (m *machine) receiveEnd(msg *message, err error, now time.Duration) {
	if m.waiting != nil && m.waiting.from == msg.from {
		m.waiting = nil
	}
	e := m.find(func(e *end) bool {
		return msg.to == 0 && e.peerID == msg.from || msg.to != 0 && e.id == msg.to &&
			(e.peerID == msg.from || e.state == stRequest && msg.kind == msgReject)
	})
	switch {
	case e == nil:
	case e.state == stReply && (msg.kind == msgGone || msg.code == rejectTime):
		m.unmatch(e, now)
	case msg.kind == msgGone:
		m.gone(e, err)
	default:
		m.drop(e, err)
	}
}

// linkUp reports a new link. Messages of the old link may be lost, so each end repeats its state.
func (m *machine) linkUp(now time.Duration) {
	m.up, m.received, m.pinged = true, now, now
	m.asked, m.wanted, m.called, m.waiting = 0, 0, 0, nil
	clear(m.trouble)
	for _, e := range m.ends {
		if e.state != stRequest && !m.alone() { // sync asks for one after the other
			m.sendState(e)
		}
	}
}

// linkDown reports that no link is left.
func (m *machine) linkDown(now time.Duration) {
	m.up, m.downAt = false, now
	m.asked, m.wanted, m.called, m.waiting = 0, 0, 0, nil
}

// noLink reports why a target could not be reached. final means that further attempts cannot succeed.
func (m *machine) noLink(target string, err error, final bool) {
	if m.up {
		return
	}
	if m.trouble == nil {
		m.trouble = make(map[string]error)
	}
	m.trouble[target] = err
	for _, e := range m.ends {
		if final && e.target == target && !m.alone() {
			m.drop(e, err)
		}
	}
}

// tick does all that is due at now.
func (m *machine) tick(now time.Duration) {
	for _, e := range m.ends {
		m.tickEnd(e, now)
	}
	if at, ok := m.pingAt(); ok && now >= at {
		m.pinged = now
		m.send(message{kind: msgPing})
	}
}

func (m *machine) tickEnd(e *end, now time.Duration) {
	at, ok := m.silent(e)
	switch {
	case e.limit != 0 && now >= e.limit:
		m.fail(e, fmt.Errorf("%w: not done after %v", driver.ErrBroken, stretch*e.timeout), rejectTime, 0)
	case !ok || now < at:
	case e.state.established():
		m.end(e, stLost, m.because(e, "cannot be reached"))
	default:
		m.fail(e, m.because(e, "does not answer"), rejectTime, 0)
	}
}

func (m *machine) because(e *end, what string) error {
	err := fmt.Errorf("%w: the peer %s for %v", driver.ErrBroken, what, e.timeout)
	if why := m.trouble[e.target]; why != nil && !m.up {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// listens reports whether the end expects a message of the peer's process, if only an answer to a ping.
func (m *machine) listens(e *end) bool {
	switch e.state {
	case stCall, stRequest, stReply, stConfirm, stClear:
		return !m.alone()
	}
	return false
}

// silent returns when the peer will have been silent for too long. For an end that is ready, only time without a link
// counts.
func (m *machine) silent(e *end) (at time.Duration, ok bool) {
	switch {
	case m.listens(e):
		return max(e.since, m.received) + e.timeout, true
	case e.state == stReady && !m.up && !m.alone():
		return max(e.since, m.downAt) + e.timeout, true
	}
	return 0, false
}

// pingAt returns when the next ping is due.
func (m *machine) pingAt() (at time.Duration, ok bool) {
	for _, e := range m.ends {
		if t := m.pinged + e.timeout/pings; m.up && m.listens(e) && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// next returns when tick is due; false if never.
func (m *machine) next() (at time.Duration, ok bool) {
	sooner := func(t time.Duration, also bool) {
		if also && (!ok || t < at) {
			at, ok = t, true
		}
	}
	for _, e := range m.ends {
		sooner(e.limit, e.limit != 0)
		sooner(m.silent(e))
	}
	sooner(m.pingAt())
	return at, ok
}

// targets lists the targets to which ends need a link.
func (m *machine) targets() []string {
	var list []string
	for _, e := range m.ends {
		if (e.state.connecting() || e.state.established()) && !m.alone() && !slices.Contains(list, e.target) {
			list = append(list, e.target)
		}
	}
	return list
}

// idle reports whether neither side needs the link.
func (m *machine) idle() bool { return m.waiting == nil && m.wanted == 0 && len(m.targets()) == 0 }
