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
	stRequest                 // asker: request sent
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
	return [...]string{"not started", "waiting to be asked", "replying", "requesting", "modifying queue pairs", "confirming",
		"modifying to RTS", "waiting for clear-to-send", "ready", "failed", "lost", "finalized"}[s]
}

// public is what the endpoint's user sees.
func (s endState) public() State {
	return [...]State{Idle, Connecting, Connecting, Connecting, Connecting, Connecting, Connecting, Connected, Ready, Failed, Lost, Finalized}[s]
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

// end is one endpoint in the machine. Times are since an origin of the
// caller's.
type end struct {
	id      uint64 // given by the machine
	target  string // where the peer is reached: the manager's blob
	offer   offer
	cts     bool
	clear   bool // own receives are posted
	timeout time.Duration
	user    any // not looked at

	peerID    uint64 // 0 until paired
	remote    offer
	state     endState
	useCTS    bool
	peerClear bool // the peer's receives are posted
	working   bool // queue pairs are being moved
	doing     endState
	err       error
	left      error // the peer stood, and left, before this side stands

	heard time.Duration // last message to this end, or its beginning
	again time.Duration // when to repeat; 0: not
	pause time.Duration // between repetitions
	limit time.Duration // when it has taken too long; 0: never
}

// actionKind is what the machine wants done.
type actionKind uint8

const (
	actSend  actionKind = iota // msg, on any link; lost if there is none
	actWork                    // steps first to last on end's queue pairs, then done
	actState                   // end's state, err or remote has changed
)

type action struct {
	kind        actionKind
	msg         message
	end         *end
	first, last step
}

// grave remembers an end that failed or was finalized while the peer knew it,
// so that the peer learns what became of it.
type grave struct {
	msg          message // close or reject
	again, pause time.Duration
	until        time.Duration
	known        bool // the peer has said so
}

const (
	firstPause = 200 * time.Millisecond
	maxQueue   = 1024 // requests of a peer that nobody meets yet
	maxGraves  = 4096
	stretch    = 3  // timeouts that a pair may take from meeting to standing
	repeats    = 10 // at least so often is something repeated within a timeout
)

// machine is the protocol towards one peer, without any I/O: events are its
// methods, what to do comes out of take. The side with the lower incarnation asks.
type machine struct {
	self, peer uint64
	nextID     func() uint64
	timeout    time.Duration

	ends   []*end    // in the order of their making, which is that of pairing
	queue  []message // answerer: requests that nobody meets yet
	lastID uint64    // answerer: highest request accepted
	graves []grave

	up       bool
	wasUp    bool
	downAt   time.Duration
	trouble  map[string]error // by target: why there is no link
	repeated uint64
	out      []action
}

func (m *machine) asks() bool { return m.self < m.peer }

// take returns what is to be done, in order.
func (m *machine) take() []action {
	out := m.out
	m.out = nil
	return out
}

func (m *machine) send(msg message) { m.out = append(m.out, action{kind: actSend, msg: msg}) }

// add takes an end that was made. It answers the peer from now on.
func (m *machine) add(e *end, now time.Duration) {
	e.id, e.heard = m.nextID(), now
	m.ends = append(m.ends, e)
	if !m.asks() && len(m.queue) > 0 {
		req := m.queue[0]
		m.queue = m.queue[1:]
		m.meet(e, &req, now)
	}
}

// start begins with an end that is idle.
func (m *machine) start(e *end, now time.Duration) {
	if e.state != stIdle {
		return
	}
	e.heard = now
	switch {
	case m.self == m.peer:
		e.peerID, e.remote, e.useCTS = e.id, e.offer, e.cts
		m.work(e, stModify, stepInit, stepRTS, now)
	case m.asks():
		e.id = m.nextID() // requests are accepted in the order of their ids
		m.enter(e, stRequest)
		m.repeat(e, now, firstPause)
	default:
		m.enter(e, stCall)
		m.repeat(e, now, firstPause)
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
	e.again, e.working = 0, true
	if e.limit == 0 {
		e.limit = now + stretch*e.timeout
	}
	m.out = append(m.out, action{kind: actWork, end: e, first: first, last: last})
}

// repeat says what an end wants of the peer, and when it says so again.
func (m *machine) repeat(e *end, now, pause time.Duration) {
	e.pause = min(pause, e.timeout/repeats)
	e.again = now + e.pause
	msg := message{from: e.id, to: e.peerID, offer: e.offer}
	switch e.state {
	case stCall:
		msg.kind = msgCall
		msg.count = uint32(m.count(stCall))
	case stRequest:
		msg.kind, msg.flags, msg.prev = msgRequest, ctsFlag(e.cts), m.before(e)
	case stReply:
		msg.kind, msg.flags = msgReply, ctsFlag(e.cts)
	case stConfirm, stClear:
		msg.kind, msg.flags = msgConfirm, e.clearFlags()
	}
	m.send(msg)
}

func ctsFlag(on bool) uint8 {
	if on {
		return flagCTS
	}
	return 0
}

// clearFlags says whether receives are posted.
func (e *end) clearFlags() uint8 {
	if e.clear {
		return flagClear
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

// before is the request that must be known to the peer before that of e.
func (m *machine) before(e *end) (id uint64) {
	for _, x := range m.ends {
		if x.state == stRequest && x.id < e.id {
			id = max(id, x.id)
		}
	}
	return id
}

// meet pairs an end of the answerer with a request. Until the asker confirms,
// nothing is done that could not be undone: it may have given up already.
func (m *machine) meet(e *end, req *message, now time.Duration) {
	e.peerID, e.remote, e.heard = req.from, req.offer, now
	e.useCTS = e.cts || req.flags&flagCTS != 0
	if code := e.offer.fits(&e.remote); code != 0 {
		m.fail(e, (&message{code: code}).rejectError(), code, 0, now)
		return
	}
	m.enter(e, stReply)
	m.repeat(e, now, firstPause)
}

// part undoes meet: the asker had given up. The next request is met instead.
func (m *machine) part(e *end, now time.Duration) {
	e.peerID, e.remote, e.useCTS, e.heard = 0, offer{}, false, now
	if len(m.queue) > 0 {
		req := m.queue[0]
		m.queue = m.queue[1:]
		m.meet(e, &req, now)
		return
	}
	m.enter(e, stCall)
	m.repeat(e, now, firstPause)
}

// done tells that the work on an end's queue pairs has ended.
func (m *machine) done(e *end, err *stepError, now time.Duration) {
	e.working = false
	if e.state != stModify && e.state != stFinish {
		return // given up meanwhile
	}
	e.heard = now
	switch {
	case err != nil:
		code, detail := rejectStep, uint32(err.step)<<16|errno(err.err)
		if err.prepare {
			code, detail = rejectPrepare, 0
		}
		m.fail(e, fmt.Errorf("%w: %w", driver.ErrBroken, err), code, detail, now)
	case e.state == stModify && m.asks():
		m.enter(e, stConfirm)
		m.repeat(e, now, firstPause)
	default:
		m.stand(e, now)
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
func (m *machine) stand(e *end, now time.Duration) {
	e.limit, e.again, e.heard = 0, 0, now
	if m.self == m.peer {
		e.peerClear = e.clear
	} else if !m.asks() {
		m.send(message{kind: msgConfirm, from: e.id, to: e.peerID, flags: e.clearFlags() | flagAnswer})
	}
	if !e.useCTS {
		m.enter(e, stReady)
		m.follow(e)
		return
	}
	m.enter(e, stClear)
	if m.follow(e); e.state != stClear {
		return
	}
	if m.cleared(e); e.state == stClear && m.self != m.peer {
		m.repeat(e, now, firstPause)
	}
}

// cleared makes an end ready once the peer can receive.
func (m *machine) cleared(e *end) {
	if e.state == stClear && e.peerClear {
		e.again = 0
		m.enter(e, stReady)
	}
}

// clearToSend tells that the receives of an end are posted.
func (m *machine) clearToSend(e *end, now time.Duration) {
	if e.clear {
		return
	}
	e.clear = true
	if !e.state.standing() {
		return
	}
	if m.self == m.peer {
		e.peerClear = true
		m.cleared(e)
		return
	}
	m.send(message{kind: msgConfirm, from: e.id, to: e.peerID, flags: e.clearFlags()})
	if e.state == stReady { // the peer waits for this alone and asks again if it is lost
		return
	}
	e.again = now + e.pause
}

// finalize gives an end up.
func (m *machine) finalize(e *end, now time.Duration) {
	if e.state == stOver {
		return
	}
	if known := e.state == stRequest || e.peerID != 0; known && (e.state.connecting() || e.state.standing()) && m.self != m.peer {
		m.bury(message{kind: msgClose, from: e.id, to: e.peerID}, now)
	}
	m.enter(e, stOver)
	e.again, e.limit = 0, 0
	m.ends = slices.DeleteFunc(m.ends, func(x *end) bool { return x == e })
}

// fail ends an attempt, and lets the peer know why.
func (m *machine) fail(e *end, err error, code rejectCode, detail uint32, now time.Duration) {
	if m.self != m.peer && (e.state == stRequest || e.peerID != 0) {
		m.bury(message{kind: msgReject, from: e.id, to: e.peerID, code: code, detail: detail}, now)
	}
	m.end(e, stFailed, err)
}

// end is how an attempt or a connection ends without the user's doing.
func (m *machine) end(e *end, s endState, err error) {
	if e.state != stIdle {
		e.doing = e.state
	}
	e.err, e.again, e.limit = err, 0, 0
	m.enter(e, s)
}

// follow loses an end whose peer left when only this side's last step was missing.
func (m *machine) follow(e *end) {
	if e.left != nil {
		m.end(e, stLost, e.left)
	}
}

// gone tells that the peer's end has left in order. In stFinish it had stood, and may have sent: what it
// sent can be received once this side stands, too.
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

// bury sends a last message and repeats it until the peer has heard it.
func (m *machine) bury(msg message, now time.Duration) {
	if len(m.graves) == maxGraves {
		m.graves = m.graves[1:]
	}
	m.graves = append(m.graves, grave{msg: msg, pause: firstPause, again: now + firstPause, until: now + 2*stretch*m.timeout})
	m.send(msg)
}

// grave finds what became of the end that an end of the peer had met.
func (m *machine) grave(theirs uint64) *grave {
	for k := range m.graves {
		if g := &m.graves[k]; theirs != 0 && g.msg.to == theirs {
			return g
		}
	}
	return nil
}

func (m *machine) byID(id uint64) *end {
	for _, e := range m.ends {
		if e.id == id {
			return e
		}
	}
	return nil
}

func (m *machine) byPeerID(id uint64) *end {
	for _, e := range m.ends {
		if e.peerID == id {
			return e
		}
	}
	return nil
}
