package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/internal/rights"
)

// State of a connection.
type state = uint32

const (
	stateConnecting state = iota
	stateUp
	statePeerClosed // the peer said goodbye: what it sent before can be received
	stateBroken     // the peer is gone, or misbehaved
	stateClosed     // this side disconnected, or gave up connecting
)

// conn is a connection to a peer; both tracks build on it.
type conn struct {
	state atomic.Uint32
	// inCall is set while the owner is inside a method that touches shared
	// memory. It is a plain store: the side that wants to unmap does the
	// barrier (see wait.go).
	inCall  uint32
	blocked uint32 // the owner is inside a wait
	fences  bool   // nobody can do the barrier: inCall is stored with one
	waited  bool   // ConnectWait has said that the connection stands
	// closing: this side has closed, but what was posted is not free yet.
	closing atomic.Bool

	ctx     *Context
	peerURL string
	peerInc uint64
	settled chan struct{} // closed once state has left stateConnecting
	reason  error         // why broken; set before state is
	track   trackEnd
	hungUp  atomic.Bool   // the peer has closed its end of the socket, or died
	parted  atomic.Bool   // this side has hung up: the end of the socket says nothing of the peer any more
	before  chan struct{} // dialing: closed when the connection before has its place
	turn    chan struct{} // this one's

	mu      sync.Mutex
	sock    *net.UnixConn
	watcher *net.UnixConn
	reached bool // the peer has dialed, and need not be watched

	// Set before state becomes stateUp.
	side     int
	seg      *segment
	mine     *sideLines // what this side writes
	theirs   *sideLines
	bell     *bell       // of the peer's context
	remote   *regionView // regions of the peer's context
	asym     bool        // both processes have registered for membarrier
	toSelf   bool
	proc     *process
	attaches bool // CMA reaches the peer: kept here, where the peer cannot write
	imports  imports
	exports  exports

	oneSided opQueue
	opPath   string // of the last one-sided operation, until a message
	tally    kit.Tallies
}

// trackEnd is what a track adds to a connection.
type trackEnd interface {
	driver.Instance
	// attach is called once the segment is there, before state is stateUp.
	attach()
	// fail drops everything posted; polls then say that it is closed, and they
	// alone touch packets. It returns false if the peer may still be inside
	// memory of this process; it is called again then. Nobody else is in the
	// instance.
	fail() bool
	// detach is called before the segment goes away.
	detach()
}

// bind makes the instance of the context's track.
func (n *conn) bind() driver.Instance {
	if n.ctx.props.Track == driver.Large {
		n.track = &large{conn: n}
	} else {
		n.track = &small{conn: n}
	}
	return n.track
}

// Peer implements driver.Instance.
func (n *conn) Peer() string { return n.peerURL }

// Err implements driver.Ender.
func (n *conn) Err() error { return n.failure("connection") }

// ConnectWait implements driver.Instance.
func (n *conn) ConnectWait(ctx context.Context) error {
	select {
	case <-n.settled:
	case <-ctx.Done():
		select {
		case <-n.settled:
		default:
			return &driver.Error{Driver: Name, Peer: n.peerURL, Op: "connect", Err: fmt.Errorf("peer has not answered: %w", ctx.Err())}
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
		if err = n.reason; err == nil {
			err = driver.ErrBroken
		}
	}
	return &driver.Error{Driver: Name, Peer: n.peerURL, Op: op, Err: err}
}

// enter begins a call that touches shared memory. It fails once the connection
// is closed on this side, or before ConnectWait has said that it stands.
func (n *conn) enter() bool {
	if !n.waited {
		return false
	}
	if n.fences {
		atomic.StoreUint32(&n.inCall, 1)
	} else {
		store32(&n.inCall, 1)
	}
	if s := n.state.Load(); s == stateClosed || s == stateConnecting {
		store32(&n.inCall, 0)
		return false
	}
	return true
}

func (n *conn) leave() { store32(&n.inCall, 0) }

// settle moves a connection out of stateConnecting. It reports whether this call
// did.
func (n *conn) settle(s state, reason error) bool {
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.state.Load() != stateConnecting {
		return false
	}
	n.reason = reason
	n.state.Store(s)
	n.ctx.forget(n)
	close(n.settled)
	return true
}

// up makes the connection stand. False: the user has given it up meanwhile, and
// the caller cleans up.
func (n *conn) up(seg *segment) bool {
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.state.Load() != stateConnecting {
		return false
	}
	n.seg = seg
	n.mine, n.theirs = &seg.ctl.side[n.side], &seg.ctl.side[1-n.side]
	if n.toSelf {
		n.theirs = n.mine
	}
	n.ctx.passages[seg] = &passage{theirs: n.theirs, gone: n.peerGone}
	n.tally.Connects.Store(1)
	n.track.attach()
	n.state.Store(stateUp)
	n.ctx.forget(n)
	for a := range n.ctx.shown {
		n.show(a)
	}
	close(n.settled)
	return true
}

// breakWith marks the connection broken and wakes whoever waits for it.
func (n *conn) breakWith(err error) {
	if n.settle(stateBroken, err) {
		n.tally.Broken.Store(1)
		return
	}
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.state.Load() != stateUp {
		return
	}
	n.reason = err
	n.tally.Broken.Store(1)
	n.state.Store(stateBroken)
	n.wakeOwners()
}

// misbehaved breaks the connection because of what the peer wrote.
func (n *conn) misbehaved(what string) {
	n.tally.Bad.Add(1)
	n.breakWith(fmt.Errorf("%w: the peer violated the protocol: %s", driver.ErrBroken, what))
}

// peerLeft is called when the peer says goodbye.
func (n *conn) peerLeft() {
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.state.CompareAndSwap(stateUp, statePeerClosed) {
		n.tally.Disconnects.Store(1)
		n.wakeOwners()
	}
}

// wakeOwners wakes local waits on this instance and on the context. The
// caller holds ctx.mu, so that the segment stays mapped.
func (n *conn) wakeOwners() {
	if n.seg != nil {
		wake(&n.mine.seq)
	}
	wake(&n.ctx.bell.seq)
}

// signal wakes the peer if it sleeps on this instance for progress other than
// a message in the ring.
func (n *conn) signal() {
	if raised(&n.theirs.sleeping, n.asym) {
		atomic.StoreUint32(&n.theirs.sleeping, 0)
		wake(&n.theirs.seq)
		n.tally.Woke.Add(1)
	}
}

// monitor reads the socket until the peer ends: its process's death closes it,
// at once and whatever the cause.
func (n *conn) monitor(sock *net.UnixConn) {
	var m message
	user := rights.User(sock)
	for {
		fds, err := receive(sock, &m, maxFDs)
		switch {
		case err != nil && isProtocol(err):
			n.misbehaved(err.Error())
		case err != nil:
			n.breakWith(fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken))
		case m.kind == msgGoodbye:
			n.peerLeft()
		case m.kind == msgArena && len(fds) == 1:
			if n.imports.add(m.arena, m.size, user, fds[0]) {
				n.wakeSelf()
				continue
			}
			fds = nil
			n.misbehaved("too many arenas, or one twice")
		case m.kind == msgForget && len(fds) == 0:
			n.dropArena(m.arena)
			continue
		default:
			n.misbehaved("unexpected message on the set-up socket")
		}
		discard(sock, fds)
		if err != nil && !isProtocol(err) && !n.parted.Load() {
			n.hungUp.Store(true)
		}
		// The peer takes the end of the socket for a promise: the owner is in no call that touches memory of the
		// peer, and later ones see the state.
		n.quiesceCall()
		rights.Close(sock)
		return
	}
}

// Disconnect implements driver.Instance; see the tracks, which add what is
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
	n.shut(driver.ErrClosed)
	return nil
}

// shut closes this side from any goroutine: the state first, so that nobody
// enters any more, then what is posted fails, then memory goes.
func (n *conn) shut(err error) {
	n.ctx.mu.Lock()
	old := n.state.Load()
	if old == stateClosed {
		n.ctx.mu.Unlock()
		return
	}
	n.closing.Store(n.seg != nil)
	n.state.Store(stateClosed)
	n.ctx.forget(n)
	if old == stateConnecting {
		n.reason = err
		close(n.settled)
	}
	if n.seg != nil {
		n.wakeOwners()
	}
	n.ctx.mu.Unlock()

	n.mu.Lock()
	sock, watcher := n.sock, n.watcher
	n.mu.Unlock()
	if watcher != nil {
		rights.HangUp(watcher)
	}
	if n.seg == nil {
		if sock != nil {
			rights.HangUp(sock) // its reader closes it
		}
		n.retire()
		return
	}
	if old == stateUp {
		n.tally.Disconnects.Store(1)
	}
	n.quiesce()
	n.publishClosed(old)
	n.detach(old, sock)
}

// quiesce waits until the owner has left the call it may be in, which is
// bounded: it sees the state, or has seen the old one and returns soon.
func (n *conn) quiesce() {
	n.quiesceCall()
	for load32(&n.inCall)|load32(&n.blocked) != 0 {
		n.wakeSelf()
		runtime.Gosched()
	}
}

// quiesceCall waits until the owner is not in the call that it may be in now.
func (n *conn) quiesceCall() {
	var dummy uint32
	raise(&dummy, true)
	for load32(&n.inCall) != 0 {
		runtime.Gosched()
	}
}

// detach ends what is posted and lets go of the shared memory, as soon as the
// peer cannot be inside memory of this process any more.
func (n *conn) detach(old state, sock *net.UnixConn) {
	part := func() {
		if sock != nil {
			if old == stateUp {
				_ = send(sock, &message{kind: msgGoodbye})
			}
			n.parted.Store(true)
			rights.HangUp(sock)
			sock = nil
		}
	}
	done := func() {
		part()
		n.track.detach()
		n.ctx.mu.Lock()
		n.ctx.unguard(n.seg)
		n.seg = nil
		n.ctx.mu.Unlock()
		n.imports.close()
		n.exports.close()
		n.dropProcess()
		n.retire()
		n.closing.Store(false)
	}
	if n.track.fail() && n.peerOutside() {
		done()
		return
	}
	// The peer is inside memory of this process and may be stopped there: the
	// memory stays pinned until it has left, or is dead.
	if n.proc.pidfd >= 0 {
		part() // the pidfd knows of its death
	}
	n.linger(func() bool {
		if !n.track.fail() || !n.peerOutside() {
			return false
		}
		done()
		return true
	})
}

// retire moves the counters to the context.
func (n *conn) retire() {
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if _, ok := n.ctx.conns[n]; ok {
		delete(n.ctx.conns, n)
		n.tally.AddTo(&n.ctx.retired)
	}
}

// isProtocol tells a violation of the protocol from the end of the socket.
func isProtocol(err error) bool {
	return errors.Is(err, errMalformed) || errors.Is(err, driver.ErrVersion)
}
