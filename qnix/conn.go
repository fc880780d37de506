package qnix

import (
	"runtime"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// conn is a connection to a peer; both tracks build on it. Beside its owner, whoever drains the Doorbell Ring
// tells it what has come, and the keeper makes and ends it.
type conn struct {
	kit.Conn

	ctx      *process
	api      track
	peer     *peer // nil to oneself
	name     nic.Name
	call     call // this side's
	theirs   call // the peer's; set before state is up
	receives span // contexts
	sends    span

	// Told by who drains.
	came        atomic.Uint64 // messages
	creditsCame atomic.Uint32
	watched     atomic.Bool // the keeper wants to hear of everything

	// The keeper's, and that of who closes; guarded by ctx.Mu.
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
	kit.ConnHooks
	// prepare posts receives, before the peer can send. The keeper's.
	prepare()
	// received and sent take a doorbell that has rung. Of who drains.
	received(slot int, s nic.State, n int)
	sent(slot int, s nic.State, n int)
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

// rung tells who sleeps on the instance, and the keeper if it wants to know. Of who drains: somebody in the kernel was
// woken by the NIC.
func (n *conn) rung() {
	n.Life.Wake()
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

// Farewell implements kit.ConnHooks. From here on the connection is the keeper's.
func (n *conn) Farewell(kit.State) {
	c := n.ctx
	c.Mu.Lock()
	c.Conns.Remove(n.Number(), n)
	n.closed = true
	n.watched.Store(true)
	n.api.tend()
	n.part()
	c.Mu.Unlock()
	c.kick()
}

// endSending lets the owner finish his call, after which nothing more is sent, as the peer has left.
func (n *conn) endSending() {
	for n.State() == kit.StateUp {
		if n.TryEnter() {
			n.Finish(kit.StatePeerClosed, nil)
			n.Leave()
			return
		}
		runtime.Gosched()
	}
}
