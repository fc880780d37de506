//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
)

// conn is a connection to a peer; both tracks build on it.
type conn struct {
	kit.Conn
	// inCall is set while the owner is inside a method that touches shared
	// memory. It is a plain store: the side that wants to unmap does the
	// barrier (see wait.go).
	inCall  uint32
	blocked uint32 // the owner sleeps
	fences  bool   // no peer can execute the barrier for this process: inCall is stored with one
	sending bool   // the wait under way is for a send
	armed   bool   // its flag may be up

	ctx      *hostContext
	peerInc  uint64
	apart    string // why the urls say that the peer cannot be reached; see place
	track    trackEnd
	watching kit.Watch     // the sleepers on this connection
	free     atomic.Bool   // closed on this side, and nothing reaches posted memory any more
	hungUp   atomic.Bool   // the peer has closed its end of the socket, or died
	parted   atomic.Bool   // this side has closed the socket: its end is no sign of the peer's end any more
	before   chan struct{} // dialing: closed when the connection before has its place
	turn     chan struct{} // this one's

	mu      sync.Mutex // leaf lock
	sock    *net.UnixConn
	watcher *net.UnixConn
	reached bool // the peer has dialed, and need not be watched

	// Set before the state becomes StateUp.
	side     int
	seg      *segment   // set to nil with ctx.Mu and mu held
	mine     *sideLines // what this side writes
	theirs   *sideLines
	peerPage *wakePage   // of the peer's context
	remote   *regionView // regions of the peer's context
	asym     bool        // both processes have registered for membarrier
	toSelf   bool
	proc     *process
	presence presence
	attaches bool // CMA reaches the peer: kept here, where the peer cannot write
	imports  imports
	exports  exports

	oneSided opQueue
	opPath   string // of the last one-sided operation, until a message
}

// trackEnd is the part of a connection that differs between the tracks.
type trackEnd interface {
	driver.Instance
	kit.ConnHooks
	kit.Gate
	// attach is called once the segment is there, before the state is StateUp.
	attach()
	// onUp is called right after.
	onUp()
	// flag returns the word by which the peer sees whether this side sleeps for a send or a receive.
	flag(sending bool) *uint32
	// stalled reports whether sends wait for room, which a receive that waits has to start.
	stalled() bool
	// fail drops everything posted; polls then return ErrClosed, and only they access packets. It returns false if the
	// peer may still access memory of this process; it is called again then. No other goroutine is inside the instance.
	fail() bool
}

// newConn makes a connection of the context's track.
func (c *hostContext) newConn(peer uint64) *conn {
	n := &conn{ctx: c, peerInc: peer, proc: noProcess, fences: c.fences}
	n.watching = kit.Watch{Device: ownWaits{n}, Spins: spins, Long: true}
	if c.Props.Track == driver.Large {
		n.track = &large{conn: n}
	} else {
		n.track = newSmall(n)
	}
	return n
}

func (n *conn) Enter() bool {
	if !n.Waited() {
		return false
	}
	if n.fences {
		atomic.StoreUint32(&n.inCall, 1)
	} else {
		store32(&n.inCall, 1)
	}
	if s := n.State(); s == kit.StateClosed || s == kit.StateConnecting {
		store32(&n.inCall, 0)
		return false
	}
	return true
}

func (n *conn) Leave() { store32(&n.inCall, 0) }

// up establishes the connection. It returns false if the user has given it up
// meanwhile; then the caller cleans up.
func (n *conn) up(seg *segment) bool {
	c := n.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if n.givenUp() {
		return false
	}
	n.seg = seg
	n.mine, n.theirs = &seg.ctl.side[n.side], &seg.ctl.side[1-n.side]
	if n.toSelf {
		n.theirs = n.mine
	}
	if !n.toSelf {
		if err := n.presence.observe(n.sock, n.proc.pidfd); err != nil { // the socket is closed
			n.seg = nil
			return false
		}
	}
	n.track.attach()
	if !n.Resolve(kit.StateUp, nil) {
		n.seg = nil
		return false
	}
	c.hazards[seg] = &hazardPointer{theirs: n.theirs, gone: n.peerGone}
	n.track.onUp()
	c.forget(n)
	for a := range c.shown {
		n.show(a)
	}
	return true
}

// breakWith marks the connection broken, whether it is established or not. It holds the context's lock, so that no
// connection ends while another goroutine holds it.
func (n *conn) breakWith(err error) {
	n.ctx.Mu.Lock()
	defer n.ctx.Mu.Unlock()
	n.ctx.forget(n)
	n.Fail(err)
	n.ctx.ended(n.peerInc)
}

// misbehaved breaks the connection because the peer has written what it may not.
func (n *conn) misbehaved(what string) {
	n.Tally.Bad.Add(1)
	n.breakWith(fmt.Errorf("%w: the peer violated the protocol: %s", driver.ErrBroken, what))
}

// peerLeft is called when the peer's goodbye message has come.
func (n *conn) peerLeft() {
	n.ctx.Mu.Lock()
	defer n.ctx.Mu.Unlock()
	n.Finish(kit.StatePeerClosed, nil)
}

// signal wakes the peer if it sleeps on this instance for progress other than
// a message in the ring.
func (n *conn) signal() {
	if raised(&n.theirs.sleeping, n.asym) {
		atomic.StoreUint32(&n.theirs.sleeping, 0)
		wake(&n.theirs.seq)
		n.Tally.Woke.Add(1)
	}
}

// monitor reads the socket until the peer ends: its process's death closes it,
// at once and whatever the cause.
func (n *conn) monitor(sock *net.UnixConn) {
	var m message
	user := rights.User(sock)
	for {
		fds, err := receive(sock, &m, maxFDs)
		gone := false
		switch {
		case err != nil && isProtocol(err):
			n.misbehaved(err.Error())
		case errors.Is(err, unix.EMFILE): // this process lacks descriptors: the peer may be in the middle of a copy
			n.breakWith(err)
		case err != nil && n.leftInOrder():
			gone = true // and the goodbye message did not fit into the socket
			n.peerLeft()
		case err != nil:
			gone = true
			n.breakWith(fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken))
		case m.kind == msgGoodbye:
			n.peerLeft()
		case m.kind == msgArena && len(fds) == 1:
			if n.imports.add(m.arena, m.size, user, fds[0]) {
				ownWaits{n}.Wake()
				continue
			}
			fds = nil
			n.misbehaved("too many arenas, or one twice, or one that is no memory")
		case m.kind == msgForget && len(fds) == 0:
			n.dropArena(m.arena)
			continue
		default:
			n.misbehaved("unexpected message on the set-up socket")
		}
		discard(sock, fds)
		if gone && !n.parted.Load() {
			n.hungUp.Store(true)
		}
		// The peer takes the end of the socket for a promise: the owner is in no call that touches memory of the
		// peer, and later ones see the state.
		n.quiesceCall()
		rights.Close(sock)
		return
	}
}

// leftInOrder reports whether the peer has closed the connection in order. False after this side has closed it.
func (n *conn) leftInOrder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seg != nil && atomic.LoadUint32(&n.theirs.closed) == closedLeft
}

// OnClose implements kit.ConnHooks: what is posted fails, then memory goes.
func (n *conn) OnClose(before kit.State) {
	c := n.ctx
	c.Mu.Lock()
	c.forget(n)
	c.ended(n.peerInc)
	seg := n.seg
	c.Mu.Unlock()
	n.mu.Lock()
	sock, watcher := n.sock, n.watcher
	n.mu.Unlock()
	if watcher != nil {
		rights.HangUp(watcher)
	}
	if seg == nil {
		if sock != nil {
			rights.HangUp(sock) // its reader closes it
		}
		n.free.Store(true)
		n.retire()
		return
	}
	n.publishClosed(before)
	n.detach(before, sock)
}

// Exclude implements kit.Gate: the owner leaves soon, as it sees the state, or has seen the old one.
func (n *conn) Exclude() {
	n.quiesceCall()
	for load32(&n.inCall)|load32(&n.blocked) != 0 {
		ownWaits{n}.Wake()
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
func (n *conn) detach(old kit.State, sock *net.UnixConn) {
	part := func() {
		if sock != nil {
			if old == kit.StateUp {
				_ = send(sock, &message{kind: msgGoodbye})
			}
			n.parted.Store(true)
			rights.HangUp(sock)
			sock = nil
		}
	}
	done := func() {
		part()
		n.releasePeer()
		n.ctx.Mu.Lock()
		n.mu.Lock()
		last := n.ctx.unguard(n.seg)
		n.seg = nil
		n.mu.Unlock()
		n.ctx.Mu.Unlock()
		if last {
			n.ctx.unpin()
		}
		n.imports.close()
		n.exports.close()
		n.dropProcess()
		n.retire()
		n.free.Store(true)
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
	n.closeLater(func() bool {
		if !n.track.fail() || !n.peerOutside() {
			return false
		}
		done()
		return true
	})
}

// retire moves the counters to the context.
func (n *conn) retire() {
	n.ctx.Mu.Lock()
	defer n.ctx.Mu.Unlock()
	if n.Self == nil { // abandoned: only what the peer did counts
		n.ctx.bad.Add(uint64(n.Tally.Bad.Load()))
		return
	}
	n.ctx.Conns.Remove(n.Number(), n)
}

// isProtocol reports whether err is a violation of the protocol, not the end of the socket.
func isProtocol(err error) bool {
	return errors.Is(err, errMalformed) || errors.Is(err, driver.ErrVersion)
}
