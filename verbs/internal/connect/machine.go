//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
)

// endState is the state of an end in the protocol.
type endState uint8

const (
	stIdle    endState = iota // not started
	stCall                    // answerer: started, waits for a request
	stReply                   // answerer: has met a request; queue pairs are unchanged
	stRequest                 // asker: waits for a reply
	stModify                  // queue pairs go to RTR (asker) or RTS (answerer)
	stConfirm                 // asker: can receive, and has sent confirm
	stFinish                  // asker: queue pairs go to RTS
	stClear                   // in RTS; clear-to-send is exchanged
	stReady
	stFailed
	stLost
	stOver // finalized
)

// String names what the end is doing, for errors.
func (s endState) String() string {
	return [...]string{"not started", "waiting to be asked", "replying", "requesting", "modifying queue pairs",
		"confirming", "modifying to RTS", "waiting for clear-to-send", "ready", "failed", "lost", "finalized"}[s]
}

// public returns the state that the endpoint's user sees.
func (s endState) public() State {
	return [...]State{Idle, Connecting, Connecting, Connecting, Connecting, Connecting, Connecting, Connected, Ready,
		Failed, Lost, Finalized}[s]
}

// connecting reports whether the end is between start and RTS.
func (s endState) connecting() bool { return s >= stCall && s <= stFinish }

// established reports whether this side's queue pairs are in RTS.
func (s endState) established() bool { return s == stClear || s == stReady }

// step is a step of queue pairs; an actWork action names a range of steps.
type step uint8

const (
	stepInit step = iota // and Prepare
	stepRTR
	stepRTS
)

// stepError is the error of a step.
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

// end is one endpoint in the machine. Times are durations since an origin that the caller chooses.
type end struct {
	target  string // the peer's blob, for the manager's dial
	offer   offer
	cts     bool
	clear   bool // this side's receives are posted
	timeout time.Duration
	user    any // the caller's

	id        uint64 // given by the machine
	peerID    uint64 // 0 until paired
	remote    offer
	useCTS    bool
	peerClear bool // the peer's receives are posted

	state   endState
	doing   endState // its state before it failed or was lost
	working bool     // queue pairs are being moved
	err     error
	left    error    // why the peer left, which was established before this side
	reject  *message // sends the peer the reason for which the end failed

	since time.Duration // when it began to wait for the peer
	limit time.Duration // deadline for it to be established; 0: none
}

// actionKind is the kind of an action that the machine asks its caller for.
type actionKind uint8

const (
	actSend  actionKind = iota // send msg on the current link; without one it is dropped
	actWork                    // run steps first to last on end's queue pairs, then call done
	actState                   // end's state, err or remote has changed
)

type action struct {
	kind        actionKind
	msg         message
	end         *end
	first, last step
}

const (
	stretch = 3  // time-outs that a pair may take from matched to established
	pings   = 10 // the least number of pings within a time-out
)

// machine is the protocol towards one peer, without I/O: its methods are events, and take returns the resulting
// actions. The side with the lower incarnation asks. A link delivers each message once and in order until it is down;
// over the next link each side repeats the state of its ends (linkUp).
type machine struct {
	self, peer uint64
	nextID     func() uint64

	ends []*end // in the order in which they were made

	// The fields below belong to the current link.
	up       bool
	asked    uint64   // asker: id of the request without a reply
	wanted   int      // asker: number of the answerer's ends that wait for a request
	called   int      // answerer: the number last sent with call
	waiting  *message // answerer: the request that is not matched with an end yet
	received time.Duration
	pinged   time.Duration

	downAt  time.Duration
	trouble map[string]error // by target: why there is no link
	out     []action
}

func (m *machine) asks() bool  { return m.self < m.peer }
func (m *machine) alone() bool { return m.self == m.peer }

// take returns the actions that are due, in order.
func (m *machine) take(now time.Duration) []action {
	m.sync(now)
	out := m.out
	m.out = nil
	return out
}

// sync sends the peer the numbers that have changed. The answerer sends how many of its ends wait for a request; the
// asker starts as many ends, and asks for one after the other in the order in which they started.
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
			m.sendState(head)
		}
	}
}

func (m *machine) send(msg message) {
	if m.up {
		m.out = append(m.out, action{kind: actSend, msg: msg})
	}
}

// sendState sends the state of an end to the peer.
func (m *machine) sendState(e *end) {
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

// add adds a new end, which answers the peer from now on.
func (m *machine) add(e *end, now time.Duration) {
	e.id, e.since = m.nextID(), now
	m.ends = append(m.ends, e)
	if !m.asks() {
		m.matchWaiting(e, now)
	}
}

// start starts an end that is idle.
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
		e.id = m.nextID() // ids give the order of starts
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

// match pairs an end of the answerer with a request. Until the asker confirms, it takes no step that cannot be undone,
// because the asker may have given up.
func (m *machine) match(e *end, req *message, now time.Duration) {
	e.peerID, e.remote, e.since = req.from, req.offer, now
	e.useCTS = e.cts || req.flags&flagCTS != 0
	if code := e.offer.fits(&e.remote); code != 0 {
		m.fail(e, (&message{code: code}).rejectError(), code, 0)
		return
	}
	m.enter(e, stReply)
	m.sync(now) // one end fewer waits for a request: the asker must know before it starts another
	m.sendState(e)
}

// matchWaiting pairs an end with the request that waits, if there is one.
func (m *machine) matchWaiting(e *end, now time.Duration) {
	if req := m.waiting; req != nil {
		m.waiting = nil
		m.match(e, req, now)
	}
}

// unmatch undoes match after the asker has given up.
func (m *machine) unmatch(e *end, now time.Duration) {
	e.peerID, e.remote, e.useCTS, e.since = 0, offer{}, false, now
	m.enter(e, stCall)
	m.matchWaiting(e, now)
}

// done reports that the work on an end's queue pairs has ended.
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
		m.sendState(e)
	default:
		m.establish(e)
	}
}

func errno(err error) uint32 {
	var no syscall.Errno
	if errors.As(err, &no) {
		return uint32(no) & 0xffff
	}
	return 0
}

// establish is called when the queue pairs are in RTS.
func (m *machine) establish(e *end) {
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
		m.sendState(e)
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

// clearToSend reports that the receives of an end are posted.
func (m *machine) clearToSend(e *end) {
	if e.clear {
		return
	}
	e.clear = true
	switch {
	case m.alone():
		e.peerClear = true
		m.cleared(e)
	case e.state == stConfirm || e.state == stFinish || e.state.established():
		m.sendState(e)
	}
}

// finalize gives an end up, and notifies the peer if the peer knows of it.
func (m *machine) finalize(e *end) {
	if e.state == stOver {
		return
	}
	known := (e.state == stRequest || e.peerID != 0) && (e.state.connecting() || e.state.established()) && !m.alone()
	m.enter(e, stOver)
	e.limit = 0
	m.ends = slices.DeleteFunc(m.ends, func(x *end) bool { return x == e })
	if known {
		m.sendState(e)
	}
}

// fail ends an attempt and sends the peer the reason.
func (m *machine) fail(e *end, err error, code rejectCode, detail uint32) {
	if !m.alone() && (e.state == stRequest || e.peerID != 0) {
		e.reject = &message{kind: msgReject, from: e.id, to: e.peerID, code: code, detail: detail}
	}
	m.end(e, stFailed, err)
	m.sendState(e)
}

// end ends an attempt or a connection for a reason other than finalize.
func (m *machine) end(e *end, s endState, err error) {
	if e.state != stIdle {
		e.doing = e.state
	}
	e.err, e.limit = err, 0
	m.enter(e, s)
}

// gone reports that the peer's end has left in order. In state stFinish the peer's end was established and may have
// sent data, which can be received once this side is established, too.
func (m *machine) gone(e *end, err error) {
	if e.state == stFinish {
		e.left = err
		return
	}
	m.drop(e, err)
}

// drop makes an end fail while it is connecting, and lost once it is established.
func (m *machine) drop(e *end, err error) {
	switch {
	case e.state.connecting():
		m.end(e, stFailed, err)
	case e.state.established():
		m.end(e, stLost, err)
	}
}

// leave reports that the peer's context has closed in order.
func (m *machine) leave() {
	for _, e := range m.ends {
		m.gone(e, fmt.Errorf("%w: the peer has closed", driver.ErrClosed))
	}
	m.waiting, m.wanted = nil, 0
}
