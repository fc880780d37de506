//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"runtime"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// conn is a connection to a peer; both tracks build on it. Three goroutines use it: its owner; the drainer, which is
// the goroutine that drains the Doorbell Ring and reports doorbells; and the background goroutine, which makes and ends
// the connection.
type conn struct {
	kit.Conn

	ctx      *process
	api      track
	peer     *peer // nil on a connection to oneself
	name     nic.Name
	call     call    // this side's
	theirs   call    // the peer's; set before state is up
	receives idRange // Receive Contexts of the connection
	sends    idRange

	// Written by the drainer.
	came        atomic.Uint64 // messages that have arrived
	creditsCame atomic.Uint32
	watched     atomic.Bool // the background goroutine must poll the connection after each doorbell

	// Used by the background goroutine and by Close; guarded by ctx.Mu.
	stage         stage
	closed        bool // this side has closed
	leaveSent     bool
	leaveReceived bool
	overSent      bool // sent: all that the peer sent has arrived here
	overReceived  bool // received: all that this side sent has arrived
	expected      uint64
	credits       uint32 // number of credits that the peer has sent
	fenced        bool   // the peer is gone: retires after a fence
	retiring      bool
	canceled      int // receives whose cancel was posted while retiring
}

// stage is the progress of making a connection.
type stage uint8

const (
	stageCalling stage = iota // the peer was called
	stageJoined               // as dialer: the peer's call was joined to this one
	stageUp                   // both sides have proved the secret: the connection is established
	stageRefused
)

// track is the part of a connection that depends on its track.
type track interface {
	driver.Instance
	kit.ConnHooks
	// prepare is called by the background goroutine to post receives, before the peer can send.
	prepare()
	// received and sent are called by the drainer for a doorbell that has rung.
	received(slot int, s nic.State, n int)
	sent(slot int, s nic.State, n int)
	// backgroundWork is called by the background goroutine for work that needs it.
	backgroundWork()
	// waits reports whether backgroundWork has work.
	waits() bool
	// quiesce is called by the background goroutine when this side or the peer has left. It cancels sends, drops messages
	// that wait, and reports whether no send is left.
	quiesce() bool
	// ended is called by the background goroutine when the connection retires, until it reports that the NIC uses no send
	// context any more.
	ended() bool
	// counts returns the numbers of messages and credits that were sent.
	counts() (messages uint64, credits uint32)
	// settled frees everything but the contexts, when the NIC accesses nothing any more.
	settled()
	// revoke and revoked handle control messages.
	revoke(m *control)
	revoked(m *control)
}

// rung wakes waiters of the instance, and the background goroutine if it watches. The drainer calls it. The NIC itself
// wakes a waiter that sleeps in the kernel.
func (n *conn) rung() {
	n.Life.Wake()
	if n.watched.Load() {
		n.ctx.schedule(n)
	}
}

// doorbellFailed breaks the connection because of a doorbell that reports a failure. The drainer calls it. If the peer is
// gone, all connections to it break: its link may come back before a control message finds out.
func (n *conn) doorbellFailed(s nic.State) {
	n.Finish(kit.StateBroken, n.ctx.doorbellError(s))
	if p := n.peer; p != nil && (s == nic.Gone || s == nic.Unknown) {
		p.lost.Store(true)
		n.ctx.workList.addPeer(p)
	}
	n.ctx.wakeBackground()
}

// posted handles the result of a post. It returns false if the queue was full.
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

// OnClose implements kit.ConnHooks. From here on the background goroutine owns the connection.
func (n *conn) OnClose(kit.State) {
	c := n.ctx
	c.Mu.Lock()
	c.Conns.Remove(n.Number(), n)
	n.closed = true
	n.watched.Store(true)
	n.api.backgroundWork()
	n.progressLeave()
	c.Mu.Unlock()
	c.kick()
}

// endSending waits until the owner has left its call, and then ends the instance, because the peer has left. If the NIC
// fails meanwhile, the owner may wait for that to be handled, with the lock that the caller holds.
func (n *conn) endSending() {
	for n.State() == kit.StateUp && !n.ctx.failing.Load() {
		if n.TryEnter() {
			n.Finish(kit.StatePeerClosed, nil)
			n.Leave()
			return
		}
		runtime.Gosched()
	}
}
