//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bywash/bywash/driver"
)

// Endpoint is one end of a connection being made or made. Its methods may be called from any goroutine; none blocks.
type Endpoint struct {
	hub    *hub
	peer   *peer // nil where the queue pairs are connected to themselves
	cfg    EndpointConfig
	target []byte // the peer's blob
	offer  offer
	number uint64 // of its hub

	state atomic.Uint32
	err   atomic.Pointer[Error]

	over chan struct{} // closed when it has failed, is lost or finalized
	done chan struct{}

	// Guarded by hub.mu.
	waits       context.Context // ends when it waits no longer to be paired, or for its peer to be reached again
	stopWaiting context.CancelFunc
	pairing
}

// pairing is what an endpoint has while it is paired with one of the peer.
type pairing struct {
	link    *link
	theirs  offer
	running bool        // a goroutine uses the queue pairs
	limit   *time.Timer // ends the attempt
	phase   string      // for errors
}

// stretch is how many time-outs a pair may take until it is connected.
const stretch = 3

// State returns the state with one atomic load.
func (e *Endpoint) State() State { return State(e.state.Load()) }

// Err returns the cause of Failed or Lost as an *[Error], else nil.
func (e *Endpoint) Err() error {
	if err := e.err.Load(); err != nil {
		return err
	}
	return nil
}

// Done returns a channel that is closed when, after Finalize, the package does not use the queue pairs and Prepare any
// more.
func (e *Endpoint) Done() <-chan struct{} { return e.done }

// Finalize gives up the connection in any state: the peer sees Failed or Lost with ErrClosed, unless its end can wait for
// the next request. The queue pairs keep their states and belong to the caller once Done is closed: a step that is under
// way continues, and no further step begins. A second call has no effect.
func (e *Endpoint) Finalize() {
	e.hub.mu.Lock()
	defer e.hub.unlock()
	e.finalize(&message{kind: msgGone})
}

// finalize gives an endpoint up, after a last message to the peer. The caller holds hub.mu.
func (e *Endpoint) finalize(last *message) {
	s := e.State()
	if s == Finalized {
		return
	}
	e.state.Store(uint32(Finalized))
	delete(e.hub.ends, e)
	if s < Failed {
		e.end(last)
	}
	if !e.running {
		close(e.done)
	}
}

// fail ends an attempt or a connection. The caller holds hub.mu.
func (e *Endpoint) fail(err error) {
	s := Failed
	switch e.State() {
	case Ready:
		s = Lost
	case Failed, Lost, Finalized:
		return
	}
	e.hub.report(e, s, err)
	e.end(lastMessage(err))
}

// end tells the goroutines that serve an endpoint, and the peer, that it is over. The caller holds hub.mu.
func (e *Endpoint) end(last *message) {
	close(e.over)
	if e.limit != nil {
		e.limit.Stop()
	}
	if l := e.link; l != nil {
		e.hub.tasks.Go(func() { l.finish(last) })
	}
	if e.peer != nil {
		e.hub.unwait(e)
	}
}

// meet pairs an endpoint with the peer's end that m describes. The caller holds hub.mu, and then calls run.
func (e *Endpoint) meet(l *link, m *message) {
	e.pairing = pairing{link: l, theirs: m.offer, running: true, phase: "pairing"}
	timeout := stretch * e.hub.timeout
	var limit *time.Timer
	limit = time.AfterFunc(timeout, func() {
		e.hub.mu.Lock()
		defer e.hub.unlock()
		if e.limit == limit {
			e.fail(fmt.Errorf("%w after %v", errLate, timeout))
		}
	})
	e.limit = limit
}

// run connects the queue pairs by steps, serves the endpoint until it is over, and ends it with the error of steps.
func (e *Endpoint) run(steps func(*link) error) {
	h := e.hub
	err := steps(e.link)
	h.mu.Lock()
	e.running = false
	switch {
	case e.State() == Finalized:
		close(e.done)
	case errors.Is(err, errTakenBack) && e.State() < Failed:
		e.limit.Stop()
		e.pairing = pairing{}
		h.wait(e)
	case err != nil:
		e.fail(err)
	}
	h.unlock()
}

var (
	// errTakenBack means that the peer has given up before either side has moved a queue pair.
	errTakenBack = errors.New("the request was taken back")
	// errLate means that a pair of endpoints was not connected in time.
	errLate = fmt.Errorf("%w: not done", driver.ErrBroken)
)

// asker connects an endpoint whose request was replied to.
func (e *Endpoint) asker(l *link) error {
	if code := e.offer.fits(&e.theirs); code != 0 {
		return &misfit{code}
	}
	if err := e.move("modifying queue pairs", stepInit, stepRTR); err != nil {
		return err
	}
	confirm(l)
	e.enter("confirming")
	if _, err := e.hub.next(l, msgConfirm, e.over); err != nil {
		return err
	}
	l.expectNothing()
	if err := e.move("modifying to RTS", stepRTS, stepRTS); err != nil {
		return err
	}
	return e.serve(l)
}

// answerer connects an endpoint that has met a request. It moves no queue pair before the asker's confirm, because the
// asker may give up.
func (e *Endpoint) answerer(l *link) error {
	if code := e.offer.fits(&e.theirs); code != 0 {
		return &misfit{code}
	}
	e.enter("replying")
	e.offer.renew(e.hub.latest.Load(), netip.AddrFrom16(e.theirs.gid).Unmap())
	_ = l.send(&message{kind: msgReply, offer: e.offer})
	_, err := e.hub.next(l, msgConfirm, e.over)
	if errors.Is(err, errGone) {
		l.finish(nil)
		return errTakenBack
	}
	if err != nil {
		return err
	}
	l.expectNothing()
	if err := e.move("modifying queue pairs", stepInit, stepRTS); err != nil {
		return err
	}
	confirm(l)
	return e.serve(l)
}

// alone connects the queue pairs of an endpoint to themselves.
func (e *Endpoint) alone(*link) error {
	if err := e.move("modifying queue pairs", stepInit, stepRTS); err != nil {
		return err
	}
	return e.serve(nil)
}

// confirm tells the peer that it may send. An error shows at the reader.
func confirm(l *link) { _ = l.send(&message{kind: msgConfirm}) }

// serve handles what happens to an endpoint whose queue pairs are in RTS, and whose peer can receive, until it is over or
// has lost its link.
func (e *Endpoint) serve(l *link) error {
	e.ready()
	var received <-chan message
	if l != nil {
		received = l.received
		l.settle()
	}
	select {
	case <-e.over:
		return nil
	case m, ok := <-received:
		if !ok {
			e.cut()
			return nil
		}
		return e.hub.meaning(l, &m, ok, 0)
	}
}

func (e *Endpoint) ready() {
	e.hub.mu.Lock()
	defer e.hub.unlock()
	e.limit.Stop()
	if e.phase = "ready"; e.State() < Ready {
		e.hub.report(e, Ready, nil)
	}
}

// cut handles the loss of the link of an endpoint that is ready: the connection goes on as long as the peer's process
// lives. If the peer's endpoint ends meanwhile, the device reports that at the next send after the peer has destroyed its
// queue pairs.
func (e *Endpoint) cut() {
	h := e.hub
	h.mu.Lock()
	defer h.unlock()
	if e.State() == Ready {
		e.waits, e.stopWaiting = context.WithCancel(h.ctx)
		e.peer = h.peer(e.peer.inc) // it may have been forgotten
		e.peer.unlinked = append(e.peer.unlinked, e)
		h.startWatch(e.peer)
	}
}

// enter records what an endpoint is doing, for errors.
func (e *Endpoint) enter(phase string) {
	e.hub.mu.Lock()
	e.phase = phase
	e.hub.mu.Unlock()
}

// doing returns what an endpoint is doing. The caller holds hub.mu.
func (e *Endpoint) doing() string {
	switch {
	case e.phase != "":
		return e.phase
	case e.hub.asks(e.peer):
		return "requesting"
	}
	return "waiting for a request"
}

// step is a step of queue pairs.
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

// Unwrap returns the sentinel and the cause.
func (e *stepError) Unwrap() []error { return []error{driver.ErrBroken, e.err} }

// misfit is the error of two ends that cannot be connected.
type misfit struct{ code rejectCode }

func (e *misfit) Error() string { return (&message{code: e.code}).rejectError().Error() }

func (e *misfit) Unwrap() error { return driver.ErrInvalid }

// lastMessage returns the message that tells the peer why an endpoint has failed.
func lastMessage(err error) *message {
	var fit *misfit
	var bad *stepError
	m := &message{kind: msgReject}
	switch {
	case errors.As(err, &fit):
		m.code = fit.code
	case errors.Is(err, errLate):
		m.code = rejectTime
	case !errors.As(err, &bad):
		m.kind = msgGone
	case bad.prepare:
		m.code = rejectPrepare
	default:
		m.code, m.detail = rejectStep, uint32(bad.step)<<16
		if no := syscall.Errno(0); errors.As(bad.err, &no) {
			m.detail |= uint32(no) & 0xffff
		}
	}
	return m
}

// move moves the queue pairs of an endpoint. It may take seconds.
func (e *Endpoint) move(phase string, first, last step) error {
	e.enter(phase)
	h := e.hub
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-e.over:
		return errStopped
	}
	paths := e.paths()
	for s := first; s <= last; s++ {
		for k, qp := range e.cfg.QPs {
			if e.State() >= Failed {
				return errStopped
			}
			if err := move(qp, s, &paths[k]); err != nil {
				return &stepError{step: s, err: fmt.Errorf("queue pair %#x: %w", qp.Num(), err)}
			}
		}
		if s == stepInit && e.cfg.Prepare != nil && e.State() < Failed {
			if err := e.cfg.Prepare(e.theirs.user); err != nil {
				return &stepError{prepare: true, err: err}
			}
		}
	}
	return nil
}

func move(qp QP, s step, p *Path) error {
	switch s {
	case stepInit:
		return qp.Init(p)
	case stepRTR:
		return qp.RTR(p)
	}
	return qp.RTS(p)
}

// paths returns the agreed paths of the queue pairs.
func (e *Endpoint) paths() (list [maxQPs]Path) {
	p, mine, theirs := e.hub.latest.Load(), &e.offer, &e.theirs
	for k := range mine.n {
		list[k] = Path{
			Port: p.Num, GIDIndex: p.indexOf(mine.gid), PKeyIndex: p.PKeyIndex, LinkLayer: p.LinkLayer,
			MTU: 128 << min(mine.mtu, theirs.mtu),
			PSN: mine.qps[k].psn, PeerPSN: theirs.qps[k].psn, PeerQP: theirs.qps[k].num, PeerLID: theirs.lid, PeerGID: theirs.gid,
			Responder: min(mine.responder, theirs.initiator), Initiator: min(mine.initiator, theirs.responder),
			Quality: p.Quality,
		}
	}
	return list
}
