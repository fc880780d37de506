package verbs

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/connect"
	"github.com/bywash/bywash/verbs/ibv"
)

// State of a connection.
type state = uint32

const (
	stateConnecting state = iota
	stateUp
	statePeerClosed // the peer said goodbye: what it sent before can be received
	stateBroken     // the peer is gone, or misbehaved, or the device failed
	stateClosed     // this side disconnected, or gave up connecting
)

// conn is a connection to a peer; both tracks build on it.
//
// Its owner is one goroutine at a time: the user's, in a call; the keeper, which
// looks after idle connections; or whoever closes it. They exclude each other
// by the word inCall, which is held for the time of a post at most.
type conn struct {
	state  atomic.Uint32
	inCall atomic.Uint32

	ctx     *Context
	api     track
	num     uint32 // in ctx.conns
	peerURL string
	peerInc uint64
	qps     []*ibv.QP
	entries int // completions they can cause
	end     connect.Endpoint
	made    atomic.Bool // end is set
	isLost  atomic.Bool
	waited  bool          // ConnectWait has said that the connection stands; the owner's
	theirs  hello         // what the peer said; set before state is up
	settled chan struct{} // closed once state has left stateConnecting

	mu     sync.Mutex // state changes
	reason error      // why broken; set before state is
	early  state      // how it ended before it stood; stateConnecting: it has not

	// Written by whoever drains the completion queue.
	inbox    inbox
	arrived  atomic.Uint32 // messages that came
	firstBad atomic.Uint64 // status and vendor code of the first failure
	ended    atomic.Bool   // there will be no more
	_        [64]byte

	taken    atomic.Uint32 // messages that were received
	named    atomic.Bool   // a prober has named the instance
	endNamed atomic.Bool
	popped   bool // something was received in this call
	sleeping atomic.Int32
	bell     chan struct{}

	sq sendQueue // where messages and one-sided operations go
	oneSided
	opPath   string    // of the last one-sided operation, until a message
	quiet    uint32    // sq.next when the keeper last looked
	quenched bool      // the queue pairs are closed
	grace    time.Time // until which what is under way may complete after a goodbye
	tally    driver.Tallies
}

// track is what a track adds to a connection.
type track interface {
	driver.Instance
	// queues are the queue pairs in the order in which they are connected.
	queues() []connect.QP
	// hello is what the peer is told.
	hello() *hello
	// prepare is called when the peer is known and before it can send: to
	// post receives. Nobody else uses the connection.
	prepare() error
	// farewell says goodbye, if that is possible, and makes sure that nothing
	// is written to posted memory any more. It tells whether the goodbye is to be
	// waited for.
	farewell() bool
	// settle takes what has come in.
	settle()
	// unbind frees what is bound to the queue pairs.
	unbind()
	// drop forgets everything posted: polls then say that it is closed. The
	// queue pairs are gone.
	drop()
}

// Peer implements driver.Instance.
func (n *conn) Peer() string { return n.peerURL }

func (n *conn) fault(op string, err error) error {
	return &driver.Error{Driver: Name, Peer: n.peerURL, Op: op, Err: err}
}

// ConnectWait implements driver.Instance.
func (n *conn) ConnectWait(ctx context.Context) error {
	select {
	case <-n.settled:
	case <-ctx.Done():
		select {
		case <-n.settled:
		default:
			return n.fault("connect", fmt.Errorf("%s: peer has not answered: %w", n.ctx.props.Device, ctx.Err()))
		}
	}
	if s := n.state.Load(); s == stateUp || s == statePeerClosed {
		n.waited = true
		return nil
	}
	return n.failure("connect")
}

// failure is the error of an operation on a connection that is not up.
func (n *conn) failure(op string) error {
	err := driver.ErrClosed
	switch s := n.state.Load(); {
	case s == stateConnecting, s == stateUp && !n.waited:
		err = fmt.Errorf("%w: not connected yet, ConnectWait first", driver.ErrInvalid)
	case s == stateUp:
		return nil
	case s == stateBroken:
		n.mu.Lock()
		err = n.reason
		n.mu.Unlock()
	}
	return n.fault(op, err)
}

// enter begins a call. It fails once the connection is closed on this side, or
// before ConnectWait has said that it stands.
func (n *conn) enter() bool {
	if !n.waited {
		return false
	}
	for {
		if s := n.state.Load(); s == stateClosed || s == stateConnecting {
			return false
		}
		if n.inCall.CompareAndSwap(0, 1) {
			if s := n.state.Load(); s == stateClosed {
				n.inCall.Store(0)
				return false
			}
			return true
		}
		runtime.Gosched() // the keeper, for the time of a post
	}
}

// leave ends a call. Probes may name the instance again after something was
// received; another goroutine may then be given it at once.
func (n *conn) leave() {
	if n.popped {
		n.popped = false
		n.inCall.Store(0)
		n.named.Store(false)
		if n.arrived.Load() != n.taken.Load() || n.ended.Load() {
			n.ctx.ready.Add(n.num)
		}
		return
	}
	n.inCall.Store(0)
}

// notice tells those whom an event may concern. The caller drains the
// completion queue.
func (n *conn) notice(e *event) {
	switch {
	case e.kind == eventFailed || e.kind == eventUnused:
		n.failed()
		return
	case e.kind == eventRecv && e.code == codeGoodbye:
		n.finish(statePeerClosed, nil)
		return
	case e.kind == eventRecv && e.code == codeData:
		n.arrived.Add(1)
		if !n.named.Load() {
			n.ctx.ready.Add(n.num)
			if n.ctx.anySleepers.Load() > 0 {
				n.ctx.waiters.Wake(false)
			}
		}
	}
	n.wake()
}

// failed says why the first work request failed.
func (n *conn) failed() {
	if s := n.state.Load(); s != stateUp && s != stateConnecting {
		n.wake()
		return
	}
	bad := n.firstBad.Load()
	n.finish(stateBroken, fmt.Errorf("%w: %s: %v (vendor code %#x)", driver.ErrBroken, n.ctx.props.Device, ibv.WCStatus(uint32(bad)), bad>>32))
}

// finish ends a connection that is up and wakes whoever waits for it. The peer may have stood, sent and left
// before the last step on this side: then the end comes right after the beginning.
func (n *conn) finish(s state, reason error) {
	n.mu.Lock()
	switch n.state.Load() {
	case stateConnecting:
		if n.early == stateConnecting {
			n.early, n.reason = s, reason
		}
		n.mu.Unlock()
		return
	case stateUp:
		n.reason = reason
		if s == stateBroken {
			n.tally.Broken.Store(1)
		} else {
			n.tally.Disconnects.Store(1)
		}
		n.state.Store(s)
	}
	n.mu.Unlock()
	if s == statePeerClosed {
		time.AfterFunc(graceTime, n.wake)
	}
	n.ended.Store(true)
	n.ctx.ready.Add(n.num)
	n.ctx.waiters.Wake(false)
	n.wake()
}

// misbehaved breaks the connection because of what the peer sent.
func (n *conn) misbehaved(what string) {
	n.tally.Bad.Add(1)
	n.finish(stateBroken, fmt.Errorf("%w: %s: the peer violated the protocol: %s", driver.ErrBroken, n.ctx.props.Device, what))
}

// resolve moves a connection out of stateConnecting. It tells whether this call
// did.
func (n *conn) resolve(s state, reason error) bool {
	n.mu.Lock()
	if n.state.Load() != stateConnecting {
		n.mu.Unlock()
		return false
	}
	early, why := n.early, n.reason
	n.reason = reason
	switch s {
	case stateUp:
		n.tally.Connects.Store(1)
	case stateBroken:
		n.tally.Broken.Store(1)
	}
	n.state.Store(s)
	close(n.settled)
	n.mu.Unlock()
	if s == stateUp && early != stateConnecting {
		n.finish(early, why)
	}
	return true
}

// woken is called by the connection manager, for the first time maybe before
// the endpoint is known here.
func (n *conn) woken() {
	if n.made.Load() {
		n.endpointChanged()
	}
}

func (n *conn) endpointChanged() {
	switch n.end.State() {
	case connect.Ready:
		n.resolve(stateUp, nil)
	case connect.Failed:
		n.resolve(stateBroken, n.end.Err())
	case connect.Lost:
		if n.isLost.CompareAndSwap(false, true) {
			n.ctx.tasks.Go(n.lost)
		}
	}
}

// lost is called when the peer's process is gone, or has closed. What it sent
// before may still be on its way from the device to the completion queue.
func (n *conn) lost() {
	n.resolve(stateUp, nil) // it was, for a moment
	for range 3 {
		n.ctx.drainAll()
		if n.state.Load() != stateUp {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.finish(stateBroken, fmt.Errorf("%w: %s: the peer's process is gone", driver.ErrBroken, n.ctx.props.Device))
}

// prepare is called by the connection manager before the peer can send.
func (n *conn) prepare(r *connect.Remote) error {
	h, err := parseHello(r.UserData)
	if err != nil {
		return err
	}
	if h.large != (n.ctx.props.Track == driver.Large) {
		return fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	}
	n.theirs = h
	return n.api.prepare()
}

// disconnect implements driver.Instance for the tracks, which add what is
// pending.
func (n *conn) disconnect(pending bool) error {
	switch n.state.Load() {
	case stateClosed:
		return n.failure("disconnect")
	case stateUp:
		if pending {
			return driver.ErrBusy
		}
	}
	n.shut()
	return nil
}

// shut closes this side. From here on the connection belongs to linger.
func (n *conn) shut() {
	n.mu.Lock()
	old := n.state.Load()
	if old == stateClosed {
		n.mu.Unlock()
		return
	}
	n.state.Store(stateClosed)
	if old == stateConnecting {
		close(n.settled)
	}
	n.mu.Unlock()
	n.wake()
	for !n.inCall.CompareAndSwap(0, 1) { // whoever is inside leaves soon
		runtime.Gosched()
	}
	wait := false
	if old == stateUp {
		n.tally.Disconnects.Store(1)
		wait = n.api.farewell()
	} else if old != stateConnecting {
		n.api.farewell()
	}
	n.ctx.tasks.Go(func() { n.linger(wait) })
}

// linger waits until the goodbye, and what was sent before it, has reached the
// peer, and frees everything.
func (n *conn) linger(wait bool) {
	limit := time.Now().Add(n.ctx.props.Capabilities.DeadTime)
	for pause := 50 * time.Microsecond; wait && n.firstBad.Load() == 0; pause = min(2*pause, 5*time.Millisecond) {
		n.ctx.drain()
		n.api.settle()
		if n.sq.idle() || time.Now().After(limit) || n.end.State() == connect.Lost {
			break
		}
		time.Sleep(pause)
	}
	n.end.Finalize()
	<-n.end.Done()
	n.ctx.remove(n)
}

// broke breaks the connection because the device refused a request.
func (n *conn) broke(err error) {
	n.finish(stateBroken, fmt.Errorf("%w: %w", driver.ErrBroken, err))
}
