package connect

import (
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

// receive takes a message of the peer. An error means that it makes no sense,
// whatever was lost before: the peer does not follow the protocol.
func (m *machine) receive(msg *message, now time.Duration) error {
	if (msg.kind == msgRequest && m.asks()) || (msg.kind == msgCall || msg.kind == msgReply) && !m.asks() || m.self == m.peer {
		return fmt.Errorf("%w: kind %d from the wrong side", errMalformed, msg.kind)
	}
	switch msg.kind {
	case msgCall:
		m.receiveCall(msg, now)
	case msgRequest:
		m.receiveRequest(msg, now)
	case msgWait:
		if e := m.byID(msg.to); e != nil {
			e.heard = now
		}
	case msgReply:
		m.receiveReply(msg, now)
	case msgConfirm:
		m.receiveConfirm(msg, now)
	case msgCheck:
		if e := m.paired(msg); e != nil {
			e.heard = now
		}
	case msgReject:
		m.receiveEnd(msg, msg.rejectError(), now)
	case msgClose:
		m.receiveEnd(msg, fmt.Errorf("%w: the peer gave up or disconnected", driver.ErrClosed), now)
	case msgClosed:
		m.receiveClosed(msg, now)
	default:
		return fmt.Errorf("%w: kind %d among messages about endpoints", errMalformed, msg.kind)
	}
	return nil
}

// receiveCall makes requests, as many as the answerer wants.
func (m *machine) receiveCall(msg *message, now time.Duration) {
	m.send(message{kind: msgWait, to: msg.from})
	want := int(min(msg.count, maxQueue)) - m.count(stRequest)
	for _, e := range m.ends {
		if want > 0 && e.state == stIdle {
			m.start(e, now)
			want--
		}
	}
}

func (m *machine) receiveRequest(msg *message, now time.Duration) {
	if e := m.byPeerID(msg.from); e != nil && e.state != stFailed && e.state != stLost {
		e.heard = now
		if e.state == stReply {
			m.repeat(e, now, e.pause)
		}
		return
	}
	if g := m.grave(msg.from); g != nil {
		m.send(g.msg)
		return
	}
	if slices.ContainsFunc(m.queue, func(q message) bool { return q.from == msg.from }) {
		m.send(message{kind: msgWait, to: msg.from})
		return
	}
	if msg.from <= m.lastID {
		m.send(message{kind: msgClosed, to: msg.from})
		return
	}
	if msg.prev > m.lastID && m.grave(msg.prev) == nil {
		m.send(message{kind: msgWait, to: msg.from})
		return // the one before it was lost: both come again
	}
	m.lastID = msg.from
	for _, e := range m.ends {
		if e.state == stIdle || e.state == stCall {
			m.meet(e, msg, now)
			return
		}
	}
	if len(m.queue) == maxQueue {
		m.send(message{kind: msgReject, to: msg.from, code: rejectBusy})
		return
	}
	m.queue = append(m.queue, *msg)
	m.send(message{kind: msgWait, to: msg.from})
}

func (m *machine) receiveReply(msg *message, now time.Duration) {
	e := m.byID(msg.to)
	if e == nil || e.peerID != 0 && e.peerID != msg.from || e.state == stFailed || e.state == stLost {
		m.tell(msg)
		return
	}
	e.heard = now
	switch e.state {
	case stRequest:
		e.peerID, e.remote = msg.from, msg.offer
		e.useCTS = e.cts || msg.flags&flagCTS != 0
		if code := e.offer.fits(&e.remote); code != 0 {
			m.fail(e, (&message{code: code}).rejectError(), code, 0, now)
			return
		}
		m.work(e, stModify, stepInit, stepRTR, now)
	case stModify:
		m.send(message{kind: msgWait, to: msg.from})
	case stConfirm:
		m.repeat(e, now, e.pause)
	}
}

func (m *machine) receiveConfirm(msg *message, now time.Duration) {
	e := m.paired(msg)
	if e == nil {
		return
	}
	e.heard = now
	e.peerClear = e.peerClear || msg.flags&flagClear != 0
	switch e.state {
	case stReply:
		m.work(e, stModify, stepInit, stepRTS, now)
	case stConfirm:
		m.work(e, stFinish, stepRTS, stepRTS, now)
	case stModify, stFinish:
		m.send(message{kind: msgWait, to: msg.from})
	case stClear, stReady:
		m.cleared(e)
		if msg.flags&flagAnswer == 0 {
			m.send(message{kind: msgConfirm, from: e.id, to: e.peerID, flags: e.clearFlags() | flagAnswer})
		}
	}
}

// paired finds the end that a message of its pair is for; the peer learns if
// there is none.
func (m *machine) paired(msg *message) *end {
	e := m.byID(msg.to)
	if e == nil || e.peerID != msg.from || e.state == stFailed || e.state == stLost {
		m.tell(msg)
		return nil
	}
	return e
}

// tell answers a message for an end that is gone.
func (m *machine) tell(msg *message) {
	if g := m.grave(msg.from); g != nil {
		m.send(g.msg)
		return
	}
	m.send(message{kind: msgClosed, from: msg.to, to: msg.from})
}

// receiveEnd: the peer's end has failed or was finalized.
func (m *machine) receiveEnd(msg *message, err error, now time.Duration) {
	e := m.byID(msg.to)
	if msg.to == 0 {
		e = m.byPeerID(msg.from)
	}
	if e != nil && (e.state == stRequest || e.peerID != 0 && e.peerID == msg.from) {
		if e.state == stReply && (msg.kind == msgClose || msg.code == rejectTime) {
			m.part(e, now)
		} else if msg.kind == msgClose {
			m.gone(e, err)
		} else {
			m.drop(e, err)
		}
	}
	if msg.from == 0 {
		return
	}
	m.queue = slices.DeleteFunc(m.queue, func(q message) bool { return q.from == msg.from })
	if !m.asks() && msg.from > m.lastID && m.grave(msg.from) == nil {
		// The request itself may still be on its way.
		m.bury(message{kind: msgClosed, to: msg.from}, now)
		m.graves[len(m.graves)-1].known = true
		return
	}
	m.send(message{kind: msgClosed, from: msg.to, to: msg.from})
}

// receiveClosed: the peer's end is not there any more.
func (m *machine) receiveClosed(msg *message, now time.Duration) {
	for k := range m.graves {
		if g := &m.graves[k]; g.msg.from == msg.to {
			g.known = true
		}
	}
	switch e := m.byID(msg.to); {
	case e == nil || e.peerID != msg.from || e.state == stCall || e.state == stIdle:
	case e.state == stReply:
		m.part(e, now)
	default:
		m.gone(e, fmt.Errorf("%w: the peer's end is gone", driver.ErrClosed))
	}
}
