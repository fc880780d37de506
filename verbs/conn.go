//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// conn is a connection to a peer; both tracks build on it.
//
// One goroutine at a time owns it: the user's goroutine in a call; the keep-alive goroutine, for idle connections; or
// the goroutine that closes it.
type conn struct {
	kit.Conn

	ctx     *opened
	api     track
	peerInc uint64
	qps     []*ibv.QP
	cq      *completionQueue
	entries int // completions that its queue pairs can cause in cq
	end     *connect.Endpoint
	made    atomic.Bool // end is set
	isLost  atomic.Bool
	theirs  hello // the peer's hello; set before state is up

	// Written by the goroutine that drains the completion queue.
	inbox    inbox
	firstBad atomic.Uint64 // status and vendor code of the first failure
	isCut    bool          // see cutOff
	last     chan struct{} // see awaitLast

	sq sendQueue  // for messages and one-sided operations
	rx *sendQueue // large: of the queue pair for the peer's data; nil on the small track
	oneSided
	path      string      // of the last message or one-sided operation
	qpsReset  bool        // the queue pairs are reset or closed
	nextReset time.Time   // see resetQPs
	closing   bool        // closed on this side: packets and operations are their callers', who only look whether gone is set
	gone      atomic.Bool // the device does not use memory for this connection any more
	grace     time.Time   // until when posted requests may complete after the peer's close message
}

// track is the part of a connection that depends on its track.
type track interface {
	driver.Instance
	kit.ConnHooks
	// queues returns the queue pairs in the order in which they are connected.
	queues() []connect.QP
	// hello returns the data for the peer's connection manager.
	hello() *hello
	// prepare posts receives. It is called when the peer is known and before it can send; no other goroutine uses the
	// connection then.
	prepare() error
	// sendClose sends the close message to the peer, if possible, and makes sure that no peer writes to posted memory
	// any more. It reports whether the caller must wait for the completion of that message.
	sendClose() bool
	// Settle handles the events in the inbox, and posts all requests that they make possible.
	Settle()
	// take handles the events in the inbox and posts nothing.
	take()
	// unbind frees all that is bound to the queue pairs.
	unbind()
	// drop forgets all posted packets: polls then report that the connection is closed. The queue pairs are gone.
	drop()
}

// notice wakes the goroutines that an event may concern. The caller drains the completion queue.
func (n *conn) notice(e *event) {
	switch {
	case e.kind == eventFailed || e.kind == eventUnused:
		n.failed()
		return
	case e.kind == eventRecv && e.code == codeClose:
		n.Finish(kit.StatePeerClosed, nil)
		return
	case e.kind == eventRecv && e.code == codeData:
		n.Announce()
	}
	n.Life.Wake()
}

// failed ends the connection with the reason for which the first work request failed.
func (n *conn) failed() {
	if s := n.State(); s != kit.StateUp && s != kit.StateConnecting {
		n.Life.Wake()
		return
	}
	bad := n.firstBad.Load()
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %s: %v (vendor code %#x)%s", driver.ErrBroken, n.ctx.Props.Device,
		ibv.WCStatus(uint32(bad)), bad>>32, n.ctx.link()))
}

// woken is called by the connection manager, the first time possibly before n.end is set.
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
		n.stopQPs() // the peer may take the connection for established
	case connect.Lost:
		if n.isLost.CompareAndSwap(false, true) {
			n.ctx.tasks.Go(n.lost)
		}
	}
}

// lost is called when the peer's process has died or has closed, or cannot be reached. Completions of its earlier messages
// may not be in the completion queue yet.
func (n *conn) lost() {
	n.Resolve(kit.StateUp, nil) // the connection was established, for a moment
	for range 3 {
		n.ctx.drainAll()
		if n.State() != kit.StateUp {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %s: the connection manager has lost the peer: %v", driver.ErrBroken, n.ctx.Props.Device, n.end.Err()))
	n.stopQPs()
}

// prepare is called by the connection manager before the peer can send.
func (n *conn) prepare(theirs []byte) error {
	h, err := parseHello(theirs)
	if err != nil {
		return err
	}
	if h.large != (n.ctx.Props.Track == driver.Large) {
		return fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	}
	n.theirs = h
	return n.api.prepare()
}

// OnClose implements kit.ConnHooks. From here on the goroutine finishClose owns the connection.
func (n *conn) OnClose(before kit.State) {
	n.closing = true
	wait := false
	switch before {
	case kit.StateConnecting:
	case kit.StateBroken: // a close message would say that everything was sent
		n.stopQPs()
	default:
		wait = n.api.sendClose() && before == kit.StateUp
	}
	n.ctx.tasks.Go(func() { n.finishClose(wait) })
}

// finishClose waits until the close message, and everything sent before it, has reached the peer, and then frees the
// connection. The message's queue pair must not be reset earlier: a device may not have begun to send what was posted.
func (n *conn) finishClose(wait bool) {
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

func (n *conn) Path() string { return n.path }

// broke breaks the connection because the device refused a request.
func (n *conn) broke(err error) {
	n.Finish(kit.StateBroken, fmt.Errorf("%w: %w", driver.ErrBroken, err))
}
