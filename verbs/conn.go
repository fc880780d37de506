package verbs

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// conn is a connection to a peer; both tracks build on it.
//
// Its owner is one goroutine at a time: the user's, in a call; the keeper, which
// looks after idle connections; or whoever closes it.
type conn struct {
	kit.Conn

	ctx     *opened
	api     track
	peerInc uint64
	qps     []*ibv.QP
	entries int // completions they can cause
	end     connect.Endpoint
	made    atomic.Bool // end is set
	isLost  atomic.Bool
	theirs  hello // what the peer said; set before state is up

	// Written by whoever drains the completion queue.
	inbox    inbox
	firstBad atomic.Uint64 // status and vendor code of the first failure

	sq sendQueue  // where messages and one-sided operations go
	rx *sendQueue // large: of the queue pair that the peer's data comes by; nil on the other track
	oneSided
	opPath   string    // of the last one-sided operation, until a message
	quenched bool      // the queue pairs are closed
	grace    time.Time // until which what is under way may complete after a goodbye
}

// track is what a track adds to a connection.
type track interface {
	driver.Instance
	kit.ConnHooks
	// queues are the queue pairs in the order in which they are connected.
	queues() []connect.QP
	// hello is what the peer is told.
	hello() *hello
	// prepare is called when the peer is known and before it can send: to
	// post receives. Nobody else uses the connection.
	prepare() error
	// goodbye says so to the peer, if that is possible, and makes sure that nothing
	// is written to posted memory any more. It reports whether the goodbye is to be
	// waited for.
	goodbye() bool
	// Settle takes what has come in, and does what that asks for.
	Settle()
	// take takes what has come in, and no more.
	take()
	// unbind frees what is bound to the queue pairs.
	unbind()
	// drop forgets everything posted: polls then say that it is closed. The
	// queue pairs are gone.
	drop()
}

// notice tells those whom an event may concern. The caller drains the
// completion queue.
func (n *conn) notice(e *event) {
	switch {
	case e.kind == eventFailed || e.kind == eventUnused:
		n.failed()
		return
	case e.kind == eventRecv && e.code == codeGoodbye:
		n.Finish(kit.StatePeerClosed, nil)
		return
	case e.kind == eventRecv && e.code == codeData:
		n.Announce()
	}
	n.Life.Wake()
}

// failed says why the first work request failed.
func (n *conn) failed() {
	if s := n.State(); s != kit.StateUp && s != kit.StateConnecting {
		n.Life.Wake()
		return
	}
	bad := n.firstBad.Load()
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %s: %v (vendor code %#x)", driver.ErrBroken, n.ctx.Props.Device, ibv.WCStatus(uint32(bad)), bad>>32))
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
		n.Resolve(kit.StateUp, nil)
	case connect.Failed:
		n.Resolve(kit.StateBroken, n.end.Err())
	case connect.Lost:
		if n.isLost.CompareAndSwap(false, true) {
			n.ctx.tasks.Go(n.lost)
		}
	}
}

// lost is called when the peer's process is gone, or has closed. What it sent
// before may still be on its way from the device to the completion queue.
func (n *conn) lost() {
	n.Resolve(kit.StateUp, nil) // it was, for a moment
	for range 3 {
		n.ctx.drainAll()
		if n.State() != kit.StateUp {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %s: the peer's process is gone", driver.ErrBroken, n.ctx.Props.Device))
}

// prepare is called by the connection manager before the peer can send.
func (n *conn) prepare(r *connect.Remote) error {
	h, err := parseHello(r.UserData)
	if err != nil {
		return err
	}
	if h.large != (n.ctx.Props.Track == driver.Large) {
		return fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	}
	n.theirs = h
	return n.api.prepare()
}

// Farewell implements kit.ConnHooks. From here on the connection belongs to linger.
func (n *conn) Farewell(before kit.State) {
	wait := before != kit.StateConnecting && n.api.goodbye() && before == kit.StateUp
	n.ctx.tasks.Go(func() { n.linger(wait) })
}

// linger waits until the goodbye, and what was sent before it, has reached the
// peer, and frees everything. The queue pair of the goodbye must not be reset before: a device need not have begun to
// send what was posted.
func (n *conn) linger(wait bool) {
	limit := time.Now().Add(n.ctx.Props.Capabilities.DeadTime)
	for pause := 50 * time.Microsecond; wait && n.firstBad.Load() == 0; pause = min(2*pause, 5*time.Millisecond) {
		n.ctx.Drain()
		n.api.take()
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
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %w", driver.ErrBroken, err))
}
