package connect

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
)

// endState is where an end is in the protocol.
type endState uint8

const (
	stIdle    endState = iota // not started
	stCall                    // answerer: started, wants to be asked
	stReply                   // answerer: has met a request; queue pairs are as they were
	stRequest                 // asker: wants to meet an end of the peer
	stModify                  // queue pairs go to RTR (asker) or RTS (answerer)
	stConfirm                 // asker: can receive, and says so
	stFinish                  // asker: queue pairs go to RTS
	stClear                   // in RTS; clear-to-send is exchanged
	stReady
	stFailed
	stLost
	stOver // finalized
)

// String says what is being done, for errors.
func (s endState) String() string {
	return [...]string{"not started", "waiting to be asked", "replying", "requesting", "modifying queue pairs",
		"confirming", "modifying to RTS", "waiting for clear-to-send", "ready", "failed", "lost", "finalized"}[s]
}

// public is what the endpoint's user sees.
func (s endState) public() State {
	return [...]State{Idle, Connecting, Connecting, Connecting, Connecting, Connecting, Connecting, Connected, Ready,
		Failed, Lost, Finalized}[s]
}

// connecting: between start and RTS.
func (s endState) connecting() bool { return s >= stCall && s <= stFinish }

// standing: queue pairs are in RTS on this side.
func (s endState) standing() bool { return s == stClear || s == stReady }

// step is what happens to queue pairs, in order; a work action names a range.
type step uint8

const (
	stepInit step = iota // and Prepare
	stepRTR
	stepRTS
)

// stepError says which step failed.
type stepError struct {
	step    step
	prepare bool
	err     error
}

func (e *stepError) Error() string {
	if e.prepare {
		return "prepare: " + e.err.Error()
	}
	return "modify to " + [...]string{"INIT", "RTR", "RTS"}[e.step] + ": " + e.err.Error()
}

func (e *stepError) Unwrap() error { return e.err }

// end is one endpoint in the machine. Times are since an origin of the caller's.
type end struct {
	target  string // where the peer is reached: the manager's blob
	offer   offer
	cts     bool
	clear   bool // own receives are posted
	timeout time.Duration
	user    any // not looked at

	id        uint64 // given by the machine
	peerID    uint64 // 0 until paired
	remote    offer
	useCTS    bool
	peerClear bool // the peer's receives are posted

	state   endState
	doing   endState // what it did when it failed or was lost
	working bool     // queue pairs are being moved
	err     error
	left    error    // the peer stood, and left, before this side stands
	reject  *message // why it failed, for the peer

	since time.Duration // when it began to wait for the peer
	limit time.Duration // when it has taken too long; 0: never
}

// actionKind is what the machine wants done.
type actionKind uint8

const (
	actSend  actionKind = iota // msg, on the current link; lost if there is none
	actWork                    // steps first to last on end's queue pairs, then done
	actState                   // end's state, err or remote has changed
)

type action struct {
	kind        actionKind
	msg         message
	end         *end
	first, last step
}

const (
	stretch = 3  // timeouts that a pair may take from meeting to standing
	pings   = 10 // at least so many within a timeout
)

// machine is the protocol towards one peer, without any I/O: events are its methods, take returns what to do. The side
// with the lower incarnation asks. A link delivers each message once and in order until it is down; on the next one
// each side says again where it stands (linkUp).
type machine struct {
	self, peer uint64
	nextID     func() uint64

	ends []*end // in the order of their making

	// Of the current link.
	up      bool
	asked   uint64   // asker: the request that was sent and not replied to
	wanted  int      // asker: how many ends of the answerer want to be asked
	called  int      // answerer: how many the asker knows of
	waiting *message // answerer: the request that no end has met yet
	heard   time.Duration
	pinged  time.Duration

	downAt  time.Duration
	trouble map[string]error // by target: why there is no link
	out     []action
}

func (m *machine) asks() bool  { return m.self < m.peer }
func (m *machine) alone() bool { return m.self == m.peer }

// take returns what is to be done, in order.
func (m *machine) take(now time.Duration) []action {
	m.sync(now)
	out := m.out
	m.out = nil
	return out
}

// sync tells the peer what it must know, if it has changed. The answerer tells how many of its ends want to be asked;
// the asker starts as many, and asks for one after the other, in the order in which they started.
func (m *machine) sync(now time.Duration) {
	switch {
	case m.alone() || !m.up:
	case !m.asks():
		if n := m.count(stCall); n != m.called {
			m.called = n
			m.send(message{kind: msgCall, count: uint32(n)})
		}
	default:
		for k := 0; k < len(m.ends) && m.count(stRequest) < m.wanted; k++ {
			m.start(m.ends[k], now)
		}
		head := &end{}
		for _, e := range m.ends {
			if e.state == stRequest && (head.id == 0 || e.id < head.id) {
				head = e
			}
		}
		if m.asked != head.id {
			m.asked = head.id
			m.say(head)
		}
	}
}

func (m *machine) send(msg message) {
	if m.up {
		m.out = append(m.out, action{kind: actSend, msg: msg})
	}
}

// say tells the peer where an end stands.
func (m *machine) say(e *end) {
	msg := message{from: e.id, to: e.peerID}
	switch e.state {
	case stRequest:
		msg.kind, msg.offer, msg.flags = msgRequest, e.offer, flagIf(e.cts, flagCTS)
	case stReply:
		msg.kind, msg.offer, msg.flags = msgReply, e.offer, flagIf(e.cts, flagCTS)
	case stConfirm, stFinish, stClear, stReady:
		msg.kind, msg.flags = msgConfirm, flagIf(e.clear, flagClear)
	case stFailed:
		if e.reject == nil {
			return
		}
		msg = *e.reject
	case stOver:
		msg.kind = msgGone
	default:
		return
	}
	m.send(msg)
}

func flagIf(on bool, flag uint8) uint8 {
	if on {
		return flag
	}
	return 0
}

func (m *machine) count(s endState) (n int) {
	for _, e := range m.ends {
		if e.state == s {
			n++
		}
	}
	return n
}

// find returns the end that ok accepts, or nil.
func (m *machine) find(ok func(*end) bool) *end {
	if k := slices.IndexFunc(m.ends, ok); k >= 0 {
		return m.ends[k]
	}
	return nil
}

// add takes an end that was made. It answers the peer from now on.
func (m *machine) add(e *end, now time.Duration) {
	e.id, e.since = m.nextID(), now
	m.ends = append(m.ends, e)
	if !m.asks() {
		m.meetWaiting(e, now)
	}
}

// start begins with an end that is idle.
func (m *machine) start(e *end, now time.Duration) {
	if e.state != stIdle {
		return
	}
	e.since = now
	switch {
	case m.alone():
		e.peerID, e.remote, e.useCTS = e.id, e.offer, e.cts
		m.work(e, stModify, stepInit, stepRTS, now)
	case m.asks():
		e.id = m.nextID() // asked for in the order of starts
		m.enter(e, stRequest)
	default:
		m.enter(e, stCall)
	}
}

// enter changes the state of an end.
func (m *machine) enter(e *end, s endState) {
	before := e.state.public()
	e.state = s
	if s.public() != before {
		m.out = append(m.out, action{kind: actState, end: e})
	}
}

// work moves the queue pairs of an end.
func (m *machine) work(e *end, s endState, first, last step, now time.Duration) {
	m.enter(e, s)
	e.working = true
	if e.limit == 0 {
		e.limit = now + stretch*e.timeout
	}
	m.out = append(m.out, action{kind: actWork, end: e, first: first, last: last})
}

// meet pairs an end of the answerer with a request. Until the asker confirms, nothing is done that could not be undone:
// it may have given up already.
func (m *machine) meet(e *end, req *message, now time.Duration) {
	e.peerID, e.remote, e.since = req.from, req.offer, now
	e.useCTS = e.cts || req.flags&flagCTS != 0
	if code := e.offer.fits(&e.remote); code != 0 {
		m.fail(e, (&message{code: code}).rejectError(), code, 0)
		return
	}
	m.enter(e, stReply)
	m.sync(now) // one end fewer wants to be asked: the asker must know before it starts another
	m.say(e)
}

// meetWaiting pairs an end with the request that waits, if there is one.
func (m *machine) meetWaiting(e *end, now time.Duration) {
	if req := m.waiting; req != nil {
		m.waiting = nil
		m.meet(e, req, now)
	}
}

// part undoes meet: the asker had given up.
func (m *machine) part(e *end, now time.Duration) {
	e.peerID, e.remote, e.useCTS, e.since = 0, offer{}, false, now
	m.enter(e, stCall)
	m.meetWaiting(e, now)
}

// done says that the work on an end's queue pairs has ended.
func (m *machine) done(e *end, err *stepError, now time.Duration) {
	e.working = false
	if e.state != stModify && e.state != stFinish {
		return // given up meanwhile
	}
	e.since = now
	switch {
	case err != nil:
		code, detail := rejectStep, uint32(err.step)<<16|errno(err.err)
		if err.prepare {
			code, detail = rejectPrepare, 0
		}
		m.fail(e, fmt.Errorf("%w: %w", driver.ErrBroken, err), code, detail)
	case e.state == stModify && m.asks():
		m.enter(e, stConfirm)
		m.say(e)
	default:
		m.stand(e)
	}
}

func errno(err error) uint32 {
	var no syscall.Errno
	if errors.As(err, &no) {
		return uint32(no) & 0xffff
	}
	return 0
}

// stand is entered when the queue pairs are in RTS.
func (m *machine) stand(e *end) {
	e.limit = 0
	if m.alone() {
		e.peerClear = e.clear
	}
	if e.useCTS && !e.peerClear {
		m.enter(e, stClear)
	} else {
		m.enter(e, stReady)
	}
	if !m.asks() && !m.alone() {
		m.say(e)
	}
	if e.left != nil {
		m.end(e, stLost, e.left)
	}
}

// cleared makes an end ready once the peer can receive.
func (m *machine) cleared(e *end) {
	if e.state == stClear && (e.peerClear || !e.useCTS) {
		m.enter(e, stReady)
	}
}

// clearToSend says that the receives of an end are posted.
func (m *machine) clearToSend(e *end) {
	if e.clear {
		return
	}
	e.clear = true
	switch {
	case m.alone():
		e.peerClear = true
		m.cleared(e)
	case e.state == stConfirm || e.state == stFinish || e.state.standing():
		m.say(e)
	}
}

// finalize gives an end up, and lets the peer know if it has heard of it.
func (m *machine) finalize(e *end) {
	if e.state == stOver {
		return
	}
	known := (e.state == stRequest || e.peerID != 0) && (e.state.connecting() || e.state.standing()) && !m.alone()
	m.enter(e, stOver)
	e.limit = 0
	m.ends = slices.DeleteFunc(m.ends, func(x *end) bool { return x == e })
	if known {
		m.say(e)
	}
}

// fail ends an attempt, and lets the peer know why.
func (m *machine) fail(e *end, err error, code rejectCode, detail uint32) {
	if !m.alone() && (e.state == stRequest || e.peerID != 0) {
		e.reject = &message{kind: msgReject, from: e.id, to: e.peerID, code: code, detail: detail}
	}
	m.end(e, stFailed, err)
	m.say(e)
}

// end is how an attempt or a connection ends without the user's doing.
func (m *machine) end(e *end, s endState, err error) {
	if e.state != stIdle {
		e.doing = e.state
	}
	e.err, e.limit = err, 0
	m.enter(e, s)
}

// gone says that the peer's end has left in order. In stFinish it had stood, and may have sent: what it sent can be
// received once this side stands, too.
func (m *machine) gone(e *end, err error) {
	if e.state == stFinish {
		e.left = err
		return
	}
	m.drop(e, err)
}

// drop fails or loses an end, as the case may be.
func (m *machine) drop(e *end, err error) {
	switch {
	case e.state.connecting():
		m.end(e, stFailed, err)
	case e.state.standing():
		m.end(e, stLost, err)
	}
}

// leave says that the peer's context has gone in order.
func (m *machine) leave() {
	for _, e := range m.ends {
		m.gone(e, fmt.Errorf("%w: the peer has closed", driver.ErrClosed))
	}
	m.waiting, m.wanted = nil, 0
}
