package qnix

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// conn is a connection to a peer; both tracks build on it. Its owner is one goroutine at a time, see driver.Life. Beside it there
// are who drains the Doorbell Ring, and the keeper, which makes and ends connections.
type conn struct {
	life driver.Life

	ctx      *Context
	api      track
	num      uint32 // in ctx.conns
	peer     *peer  // nil to oneself
	name     nic.Name
	call     call // this side's
	theirs   call // the peer's; set before state is up
	receives span // contexts
	sends    span

	// Told by who drains.
	came        atomic.Uint64 // messages
	creditsCame atomic.Uint32
	watched     atomic.Bool // the keeper wants to hear of everything

	// The keeper's, and that of who closes; guarded by ctx.mu.
	stage      stage
	closed     bool // this side has let go
	saidLeave  bool
	heardLeave bool
	saidOver   bool // the peer has nothing on its way to here
	heardOver  bool // all of ours has arrived
	expected   uint64
	credits    uint32 // that the peer has sent
	retiring   bool
	canceled   int // receives whose cancel was posted, while retiring
}

// stage is how far the making of a connection is.
type stage uint8

const (
	stageCalling  stage = iota // the peer was called
	stageJoined                // as dialer: the peer's call was joined to this one
	stageStanding              // both sides know
	stageRefused
)

// track is what a track adds to a connection.
type track interface {
	driver.Instance
	// prepare posts receives, before the peer can send. The keeper's.
	prepare()
	// received and sent take a doorbell that has rung. Of who drains.
	received(slot int, s nic.State, n int)
	sent(slot int, s nic.State, n int)
	// pending reports whether sends are under way. The owner's.
	pending() bool
	// tend does what the keeper is needed for.
	tend()
	// waits reports whether there is something to be tended.
	waits() bool
	// quiesce gives up what is being sent and reports whether nothing is, and drop what waits, when this side or the peer has left. The keeper's.
	quiesce() bool
	// counts are the messages and credits that were sent.
	counts() (messages uint64, credits uint32)
	// settled frees what does not go with the contexts, when the NIC touches nothing any more.
	settled()
	// revoke and revoked take control messages.
	revoke(m *control)
	revoked(m *control)
}

// Peer implements driver.Instance.
func (n *conn) Peer() string { return n.life.Peer() }

// Err implements driver.Ender.
func (n *conn) Err() error { return n.life.Failure("connection") }

// ConnectWait implements driver.Instance.
func (n *conn) ConnectWait(ctx context.Context) error {
	return n.life.ConnectWait(ctx, func() string { return n.ctx.props.Device + ": peer has not answered" })
}

// resolve ends connecting, one way or the other.
func (n *conn) resolve(s driver.State, reason error) {
	if _, over := n.life.Resolve(s, reason); over {
		n.over()
	}
	if s == driver.StateUp && n.life.HasMessage() {
		n.life.Notice()
		n.ctx.anyone.Tell()
	}
}

// finish ends a connection that is up, or will be in a moment.
func (n *conn) finish(s driver.State, reason error) {
	if n.life.Finish(s, reason) {
		n.over()
	}
}

// over wakes whoever waits for a connection that has ended.
func (n *conn) over() {
	n.life.Ended()
	n.ctx.anyone.Tell()
	n.wake()
}

// fail ends a connection, in whatever state it is.
func (n *conn) fail(reason error) {
	n.resolve(driver.StateBroken, reason)
	n.finish(driver.StateBroken, reason)
}

// misbehaved breaks the connection because of what the peer sent.
func (n *conn) misbehaved(what string) {
	n.life.Tally.Bad.Add(1)
	n.finish(driver.StateBroken, fmt.Errorf("%w: %s: the peer violated the protocol: %s", driver.ErrBroken, n.ctx.props.Device, what))
}

// wake wakes who sleeps on the instance.
func (n *conn) wake() { n.ctx.waits.Wake(&n.life) }

// rung tells who sleeps on the instance, and the keeper if it wants to know. Of who drains: somebody in the kernel was
// woken by the NIC.
func (n *conn) rung() {
	n.life.Wake()
	if n.watched.Load() {
		n.ctx.attend(n)
	}
}

// posted looks at what a post said. It is false if the queue was full.
func (n *conn) posted(err error) bool {
	switch err {
	case nil:
		return true
	case nic.ErrBusy:
		return false
	}
	n.ctx.nicFailed(err)
	return false
}

func (n *conn) kick() {
	if err := n.ctx.proc.Kick(); err != nil {
		n.ctx.nicFailed(err)
	}
}

// disconnect implements driver.Instance for the tracks.
func (n *conn) disconnect() error {
	switch n.life.State() {
	case driver.StateClosed:
		return n.life.Failure("disconnect")
	case driver.StateUp:
		if n.life.Enter() {
			pending := n.api.pending()
			n.life.Leave()
			if pending {
				return driver.ErrBusy
			}
		}
	}
	n.shut()
	return nil
}

// shut closes this side. From here on the connection is the keeper's.
func (n *conn) shut() {
	old, did := n.life.Close()
	if !did {
		return
	}
	if old == driver.StateUp {
		n.life.Tally.Disconnects.Store(1)
	}
	n.wake()
	n.life.Exclude()
	c := n.ctx
	c.mu.Lock()
	c.conns.Remove(n.num, n)
	n.closed = true
	n.watched.Store(true)
	n.api.tend()
	n.part()
	c.mu.Unlock()
	c.kick()
}

// endSending lets the owner finish his call, after which nothing more is sent, as the peer has left.
func (n *conn) endSending() {
	for n.life.State() == driver.StateUp {
		if n.life.TryEnter() {
			n.finish(driver.StatePeerClosed, nil)
			n.life.Leave()
			return
		}
		runtime.Gosched()
	}
}
