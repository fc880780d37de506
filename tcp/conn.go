//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// conn is what instances of both tracks have in common.
//
// Its owner is the goroutine that uses the instance. Bytes from the socket are taken by the holder of rx, bytes to it
// are handed over by the holder of tx: the owner, a goroutine that drains all connections, or the keep-alive goroutine.
// While messages are exchanged, both are only tried.
type conn struct {
	kit.Conn

	ctx         *share
	api         track
	targets     []netip.AddrPort
	pendingPeer *pendingPeer // guarded by the context's Mu, as is link
	turn        uint64       // of its Connect, among all of the context
	link        *link
	toSelf      bool
	wire        *wire // nil until the connection is established

	rx, tx     tryLock
	hup        atomic.Bool // the socket has announced its end
	gone       bool        // the sockets are closed; under rx or tx
	ended      bool        // nothing more comes; under rx
	sendFailed bool        // nothing more can be sent; under tx
	wanted     atomic.Bool // a goroutine wanted to flush while another one did
	blocked    atomic.Bool // the kernel has no room: an epoll event will report room
	starved    atomic.Bool // what was received has no room

	// The state of the keep-alive check of the connection.
	hasReceived, hasSent atomic.Bool   // since the last check, and the last beat
	silent               int           // checks since bytes were received
	deferred             bool          // the last check did not come to reading it
	quiet                time.Duration // since bytes were sent, at least
	every                time.Duration // half of the longest pause between bytes that are sent; guarded by the context's Mu
	pingDue              bool
	deadline             time.Time // while closing
	shut                 bool      // while closing: this side sends no more
}

// track is the part of a connection that differs between the tracks.
type track interface {
	driver.Instance
	kit.ConnHooks

	// token returns the number in rdv data for this end; learn sets the peer's. The caller holds Mu.
	token() uint64
	learn(theirs uint64)

	// read takes what the socket has. It reports whether there may be more. The caller holds rx.
	read() (more bool)
	// write hands over what is to be sent, as far as the kernel has room. The caller holds tx.
	write()
	// unsent reports whether write has left something. The caller holds tx, or is the only one to be left.
	unsent() bool
	// ping sends a sign of life, unless the owner is inside: then it returns false. The caller holds Mu.
	ping() bool
	// bye sends the close message. No call is inside; the caller holds rx and tx.
	bye()
	// starts does for the owner what only its calls would do. It returns false if there is something, and the owner is
	// inside.
	starts() bool
	// drop forgets what is posted. No call is inside; the caller holds rx and tx.
	drop()
}

// tryLock is held for the time of a few system calls that do not block.
type tryLock struct{ held atomic.Bool }

func (l *tryLock) try() bool { return !l.held.Load() && l.held.CompareAndSwap(false, true) }

// lock waits for the lock. It is not for what each message needs.
func (l *tryLock) lock() {
	for !l.try() {
		runtime.Gosched()
	}
}

func (l *tryLock) unlock() { l.held.Store(false) }

// establish makes a link carry the messages of the instance, also if the user has given it up meanwhile: the peer's end
// is up, too, and shall end in order. The caller holds Mu.
func (i *conn) establish(l *link, theirs uint64) {
	c := i.ctx
	i.every = min(i.every, l.deadTime/checks)
	setUserTimeout(l.sock, 0) // a peer that does not receive may let sent bytes wait
	fd, err := takeSocket(l.sock)
	if err == nil {
		w := &wire{in: fd, out: fd}
		if c.opts.encrypt {
			w.seal = newSealer(l.hs)
		}
		err = i.attach(w, theirs)
	}
	if err != nil {
		i.closeSockets()
		i.Resolve(kit.StateBroken, fmt.Errorf("%w: %s: %w", driver.ErrBroken, c.Props.Device, err))
		return
	}
	i.Resolve(kit.StateUp, nil)
	c.wakeKeepAlive() // the keep-alive goroutine checks it from now on
}

// connectSelf establishes a connection to this context: a pair of sockets, of which the instance writes to one and
// reads from the other one.
func (i *conn) connectSelf() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	i.toSelf = true
	if err := i.attach(&wire{out: fds[0], in: fds[1]}, i.api.token()); err != nil {
		i.closeSockets()
		return err
	}
	i.Resolve(kit.StateUp, nil)
	i.ctx.wakeKeepAlive()
	return nil
}

// attach gives the connection its sockets. It takes both locks, because another goroutine may still access the
// connection that had this number before. The caller holds Mu.
func (i *conn) attach(w *wire, theirs uint64) error {
	i.rx.lock()
	i.tx.lock()
	i.wire = w
	i.api.learn(theirs)
	i.tx.unlock()
	i.rx.unlock()
	if !i.ctx.watched.Load() || i.State() == kit.StateClosed { // the number may be another connection's
		return nil
	}
	return i.ctx.poll.add(i)
}

// receive reads what the socket has, unless another goroutine does. It reports whether this call has read.
func (i *conn) receive() bool {
	if !i.rx.try() {
		return false
	}
	more := false
	if !i.gone && !i.ended && i.wire != nil {
		more = i.api.read()
		// An edge that announced bytes and the end together comes once: the end is behind the bytes.
		more = more || i.hup.Load() && !i.ended && !i.starved.Load()
	}
	i.rx.unlock()
	if more {
		i.ctx.drain.requeue(i)
	}
	return true
}

// flush writes queued bytes to the socket, unless another goroutine does. That one then also writes the caller's bytes,
// even if they were queued after its last check and before its unlock.
func (i *conn) flush() {
	for {
		if !i.tx.try() {
			i.wanted.Store(true)
			if !i.tx.try() {
				return
			}
		}
		if i.wanted.Load() {
			i.wanted.Store(false)
		}
		if i.gone || i.wire == nil {
			i.tx.unlock()
			return
		}
		if i.blocked.Store(false); !i.sendFailed {
			i.api.write()
		}
		left := !i.sendFailed && !i.blocked.Load() && i.api.unsent()
		i.tx.unlock()
		if !left && !i.wanted.Load() {
			return
		}
	}
}

// sent handles the outcome of a system call of write. It reports whether write goes on. The caller holds tx.
func (i *conn) sent(s status) bool {
	switch s {
	case ok:
		return true
	case again:
		i.block()
	case over: // what has come can still be received: the reader finds the end
		i.sendFailed = true
		i.blocked.Store(false)
	}
	return false
}

func (i *conn) block() {
	i.blocked.Store(true)
	i.ctx.schedule()
}

// end breaks the connection when the stream ends without a close message. The caller holds rx.
func (i *conn) end(why error) {
	if why == errRecord {
		i.violated(why.Error())
		return
	}
	i.ended = true
	i.hangUp()
	if why == nil {
		why = unix.ECONNRESET
	}
	i.Finish(kit.StateBroken,
		fmt.Errorf("%w: %s: the peer's process is gone: %w", driver.ErrBroken, i.ctx.Props.Device, why))
}

// peerClosed ends the connection in order, when the peer's close message has come. The caller holds rx.
func (i *conn) peerClosed() {
	i.ended = true
	i.Finish(kit.StatePeerClosed, nil)
	i.hangUp() // lets the peer close at once
}

// hangUp sends the peer the end of the stream: the peer may still receive, and must not wait for the dead time until
// this side's user disconnects. The caller holds rx.
func (i *conn) hangUp() { _ = unix.Shutdown(i.wire.out, unix.SHUT_WR) }

// violated ends the connection because of what the peer sent. The caller holds rx.
func (i *conn) violated(what string) {
	i.ended = true
	i.hangUp()
	i.Misbehaved(what)
}

func (i *conn) Path() string {
	switch {
	case i.toSelf:
		return "socketpair"
	case i.ctx.opts.encrypt:
		return "tcp-sealed"
	}
	return "tcp"
}

func (i *conn) OnClose(before kit.State) {
	c := i.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if i.pendingPeer != nil {
		i.pendingPeer.leave(i)
	}
	i.rx.lock()
	i.tx.lock()
	up := before == kit.StateUp || before == kit.StateConnecting && i.wire != nil // the peer's end is up
	sending := up && !i.toSelf && i.sayBye()
	i.api.drop()
	i.tx.unlock()
	i.rx.unlock()
	c.Conns.Remove(i.Number(), i)
	switch {
	case sending:
		c.poll.remove(i)
	case i.link == nil || i.link.state != linkLeft:
		i.closeSockets()
		return
	}
	i.deadline = time.Now().Add(c.opts.deadTime)
	c.closing = append(c.closing, i)
	c.wakeKeepAlive()
}

// sayBye sends the close message, and reports whether it, and what was sent before, may still arrive. No call is
// inside; the caller holds rx and tx.
func (i *conn) sayBye() bool {
	if !i.gone && !i.sendFailed {
		i.api.bye()
	}
	return !i.gone && !i.sendFailed
}

// closeSockets closes the connection's sockets. Any goroutine may call it, once.
func (i *conn) closeSockets() {
	if i.wire == nil {
		return
	}
	i.rx.lock()
	i.tx.lock()
	if !i.gone {
		i.gone = true
		i.wire.close()
	}
	i.tx.unlock()
	i.rx.unlock()
}

// sentAll sends the rest, and reports whether the peer's kernel has everything, or the connection cannot send any more:
// closing a socket with bytes that were not received would discard what was sent. The caller holds Mu.
func (i *conn) sentAll(now time.Time) bool {
	if i.wire == nil { // the leader has not answered yet; up, or lost, ends that
		late := now.After(i.deadline)
		if late {
			_ = i.link.sock.Close()
		}
		return late || i.link.state != linkLeft
	}
	i.flush()
	i.rx.lock()
	i.tx.lock()
	defer i.tx.unlock()
	defer i.rx.unlock()
	if i.gone || i.sendFailed || now.After(i.deadline) {
		return true
	}
	if !i.shut && !i.api.unsent() {
		i.shut = true
		_ = unix.Shutdown(i.wire.out, unix.SHUT_WR)
	}
	for range 16 {
		n, s := discard(i.wire.in)
		if s == over || s == ok && n == 0 {
			return true
		}
		if s == again {
			break
		}
	}
	if !i.shut {
		return false
	}
	left, err := unix.IoctlGetInt(i.wire.out, unix.SIOCOUTQ)
	return err != nil || left == 0
}
