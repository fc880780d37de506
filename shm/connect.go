//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
)

// connectSelf connects to the own context: one ring, with both ends here.
func (n *conn) connectSelf() {
	seg, err := createSegment(n.ctx.Props.Track == driver.Large)
	if err != nil {
		n.breakWith(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		return
	}
	seg.closeFD()
	n.toSelf, n.asym = true, n.ctx.barrier
	n.peerPage, n.remote = n.ctx.waits.page, n.ctx.regions.mem
	n.proc = &process{uid: uint32(os.Geteuid()), pid: os.Getpid(), pidfd: -1}
	if !n.up(seg) {
		seg.unmap()
	}
}

// hold makes a socket the connection's, so that giving up ends it. False if
// it has been given up already.
func (n *conn) hold(slot **net.UnixConn, s *net.UnixConn) bool {
	n.mu.Lock()
	*slot = s
	n.mu.Unlock()
	return !n.givenUp()
}

func (n *conn) givenUp() bool { return n.State() != kit.StateConnecting }

// dial is the side with the lower incarnation.
func (n *conn) dial(path string) {
	if n.before != nil {
		<-n.before
	}
	defer n.letNext()
	sock, err := n.persist(path, &n.sock, n.introduce)
	if err == nil {
		go n.monitor(sock) // not a task: Close does not wait for connections that are closing
		return
	}
	n.dropProcess()
	if !explains(err) {
		err = fmt.Errorf("%w: the peer ended while connecting: %w", driver.ErrBroken, err)
	}
	n.breakWith(err)
}

// explains reports whether an error alone explains why there is no connection.
func explains(err error) bool {
	return errors.Is(err, driver.ErrAuth) || errors.Is(err, driver.ErrVersion) ||
		errors.Is(err, driver.ErrBroken) || errors.Is(err, driver.ErrInvalid)
}

// busyTime bounds how long a dial is repeated while the listener has too many unauthenticated dialers.
const busyTime = 10 * time.Second

// errAbandoned: the connection was given up after the peer could use it. Its
// socket is closed later.
var errAbandoned = errors.New("connection given up")

// persist connects to a path, unless others can make files in its directory, and calls f with the socket, again while the
// listener has no room for unauthenticated dialers. It closes the socket if f has failed, except by errAbandoned.
func (n *conn) persist(path string, slot **net.UnixConn, f func(*net.UnixConn) error) (*net.UnixConn, error) {
	if err := checkDir(filepath.Dir(path), filepath.Dir(n.ctx.path)); err != nil {
		return nil, err
	}
	end := time.Now().Add(busyTime)
	for {
		sock, err := dialSocket(path, n.givenUp)
		if err != nil {
			return nil, n.farther(err)
		}
		began := time.Now()
		if n.hold(slot, sock) {
			err = f(sock)
		} else {
			err = driver.ErrClosed
		}
		switch {
		case err == nil:
			return sock, nil
		case errors.Is(err, errAbandoned):
			return nil, err
		}
		rights.Close(sock)
		if time.Since(began) >= proofTime {
			end = time.Now().Add(busyTime) // this process was stopped meanwhile
		}
		if !errors.Is(err, errBusy) || n.givenUp() || time.Now().After(end) {
			return nil, err
		}
		pause()
	}
}

// farther adds to the failure of a dial what the urls of both ends show about it.
func (n *conn) farther(err error) error {
	if n.apart == "" {
		return err
	}
	return fmt.Errorf("%w; %w: %s", err, driver.ErrUnreachable, n.apart)
}

// letNext lets the next connection to the same peer be dialed.
func (n *conn) letNext() {
	if n.turn == nil {
		return
	}
	close(n.turn)
	n.ctx.Mu.Lock()
	defer n.ctx.Mu.Unlock()
	if n.ctx.turns[n.peerInc] == n.turn {
		delete(n.ctx.turns, n.peerInc)
	}
	n.turn = nil
}

func (c *hostContext) flags() uint32 {
	var f uint32
	if c.Props.Track == driver.Large {
		f |= flagLarge
	}
	if c.barrier {
		f |= flagBarrier
	}
	return f
}

// introduce runs the dialer's part of the set-up until the connection is established.
func (n *conn) introduce(sock *net.UnixConn) error {
	c := n.ctx
	hello, challenge, err := n.prove(sock, c.flags())
	if err != nil {
		return err
	}
	var accept message
	fds, err := receive(sock, &accept, maxFDs)
	if err == nil && accept.kind == msgQueued && len(fds) == 0 {
		n.letNext()
		fds, err = receive(sock, &accept, maxFDs)
	}
	if err = accept.must(msgAccept, 3, fds, err); err != nil {
		discard(sock, fds)
		if errors.Is(err, unix.EMFILE) {
			return lacking(sock, err)
		}
		return err
	}
	n.letNext()
	proc, err := peerOf(sock)
	if err != nil {
		discard(sock, fds)
		return lacking(sock, resourceError("connect", err))
	}
	n.proc = proc
	seg, err := n.adopt(fds[0], fds[1], fds[2])
	if err != nil && !errors.Is(err, errMalformed) {
		return lacking(sock, err)
	}
	if err != nil {
		return err
	}
	n.side, n.asym = 1, hello.flags&challenge.flags&flagBarrier != 0
	if n.attaches, err = n.proc.attach(accept.probe, &accept.nonce); err != nil {
		seg.unmap()
		n.releasePeer()
		return err
	}
	c.guard(seg, n.side, n.proc.dead)
	confirm := message{kind: msgConfirm, probe: c.nonceAddr(), nonce: *c.nonce}
	if err = send(sock, &confirm, c.pageFD, c.regions.fd); err == nil && n.up(seg) {
		return nil
	}
	n.releasePeer()
	n.proc = noProcess
	c.abandon(seg, n.side, n.peerInc, proc, sock, n.yield())
	if err == nil {
		return errAbandoned // the connection was given up here
	}
	return fmt.Errorf("%w: %w", errAbandoned, err)
}

// yield takes the socket from a connection that will not be established, and reports whether shut may have closed it.
func (n *conn) yield() bool {
	n.mu.Lock()
	n.sock = nil
	n.mu.Unlock()
	return n.givenUp()
}

// prove runs the dialer's part of the set-up until both sides have proved the
// secret: before that no descriptor is accepted or sent.
func (n *conn) prove(sock *net.UnixConn, flags uint32) (hello, challenge message, err error) {
	c := n.ctx
	fail := func(err error) (message, message, error) { return hello, challenge, err }
	if uid := rights.User(sock); !c.admits(uid) {
		return fail(fmt.Errorf("%w: the peer runs as user %d (option allow-uids)", driver.ErrAuth, uid))
	}
	hello = message{kind: msgHello, flags: flags, from: c.Incarnation, to: n.peerInc}
	_, _ = rand.Read(hello.nonce[:])
	// A listener that has refused us at once has hung up: its answer can be read all the same.
	sent := send(sock, &hello)
	if _, err := expect(sock, &challenge, msgChallenge, 0); err != nil {
		return fail(err)
	}
	if sent != nil {
		return fail(sent)
	}
	signed := proven(&hello, &challenge)
	if !c.key.Check(challenge.mac[:], listenerProof, signed...) {
		_ = send(sock, &message{kind: msgReject, code: rejectAuth})
		c.refused.Add(1)
		return fail(rejectError(rejectAuth))
	}
	if flags&flagWatch == 0 {
		if err := rights.Admit(sock); err != nil {
			return fail(err)
		}
	}
	// If the listener has hung up meanwhile, its answer contains the reason.
	_ = send(sock, &message{kind: msgProof, mac: c.key.MAC(dialerProof, signed...)})
	return hello, challenge, nil
}

func (c *hostContext) nonceAddr() uint64 { return uint64(uintptr(unsafe.Pointer(c.nonce))) }

func (c *hostContext) admits(uid uint32) bool {
	return uid == uint32(os.Geteuid()) || slices.Contains(c.opts.allowUIDs, uid)
}

// adopt maps what the listener has sent. It owns the descriptors.
func (n *conn) adopt(segFD, pageFD, regionFD int) (*segment, error) {
	large := n.ctx.Props.Track == driver.Large
	if err := checkSealed(segFD, segmentFileSize(large)); err != nil {
		rights.Discard(n.proc.uid, segFD, pageFD, regionFD)
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	seg, err := mapSegment(segFD, large)
	if err != nil {
		rights.Discard(n.proc.uid, pageFD, regionFD)
		return nil, err
	}
	seg.closeFD()
	if err := n.adoptPeer(pageFD, regionFD); err != nil {
		seg.unmap()
		return nil, err
	}
	return seg, nil
}

// adoptPeer maps the pages of the peer's context. It owns the descriptors.
func (n *conn) adoptPeer(pageFD, regionFD int) error {
	defer rights.Discard(n.proc.uid, pageFD, regionFD)
	if err := checkSealed(pageFD, wakePageBytes); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if err := checkSealed(regionFD, regionTableBytes); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	p, err := mapShared(pageFD, wakePageBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	r, err := mapShared(regionFD, regionTableBytes, unix.PROT_READ)
	if err != nil {
		_ = unix.MunmapPtr(p, wakePageBytes)
		return err
	}
	n.peerPage, n.remote = (*wakePage)(p), (*regionView)(r)
	return nil
}

// releasePeer undoes adoptPeer.
func (n *conn) releasePeer() {
	if n.toSelf || n.peerPage == nil {
		return
	}
	_ = unix.MunmapPtr(unsafe.Pointer(n.peerPage), wakePageBytes)
	_ = unix.MunmapPtr(unsafe.Pointer(n.remote), regionTableBytes)
	n.peerPage, n.remote = nil, nil
}

// expect is the listening side of Connect: the next dialer from that peer is
// its other end. The caller holds mu.
func (c *hostContext) expect(n *conn) {
	if list := c.arrived[n.peerInc]; len(list) > 0 {
		a := list[0]
		trim(c.arrived, n.peerInc)
		c.answer(a, n)
		return
	}
	c.waiting[n.peerInc] = append(c.waiting[n.peerInc], n)
}

// trim removes the first of a list.
func trim[T any](m map[uint64][]T, key uint64) {
	if m[key] = m[key][1:]; len(m[key]) == 0 {
		delete(m, key)
	}
}

// match gives a dialer to the connection that has waited longest for one.
func (c *hostContext) match(a *pendingDialer) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if list := c.waiting[a.hello.from]; len(list) > 0 {
		n := list[0]
		trim(c.waiting, a.hello.from)
		c.answer(a, n)
		return
	}
	c.arrived[a.hello.from] = append(c.arrived[a.hello.from], a)
	c.requested()
	_ = send(a.sock, &message{kind: msgQueued}) // under mu: before any accept
}

// forget takes a connection off the list of those that wait for a dialer. The caller
// holds mu.
func (c *hostContext) forget(n *conn) {
	remove(c.waiting, n.peerInc, n)
}

// answer has the memory of the connection offered to a dialer. The caller holds mu.
func (c *hostContext) answer(a *pendingDialer, n *conn) {
	a.conn = n
	c.tasks.Go(func() { c.offer(a, n) })
}

// offer sends accept with the memory of the connection.
func (c *hostContext) offer(a *pendingDialer, n *conn) {
	seg, err := createSegment(c.Props.Track == driver.Large)
	if err == nil {
		err = c.accept(a, seg)
	}
	switch {
	case err == nil:
		return
	// The dialer has gone; complete has closed the socket, or is about to.
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
	default:
		n.breakWith(lacking(a.sock, err))
	}
	_ = a.sock.CloseRead() // complete notices
}

// lacking tells the other end, which would only see the end of the socket, that this process lacks what a connection
// needs, and returns the error for this end.
func lacking(sock *net.UnixConn, err error) error {
	_ = send(sock, &message{kind: msgReject, code: rejectResources})
	if errors.Is(err, driver.ErrBroken) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrBroken, err)
}

// complete waits for the dialer's confirm and establishes the connection. Nil
// if that did not come about.
func (c *hostContext) complete(a *pendingDialer) *conn {
	var confirm message
	fds, err := expect(a.sock, &confirm, msgConfirm, 2)
	c.Mu.Lock()
	n, seg := a.conn, a.seg
	a.over = true
	if n != nil && (confirm.kind == msgReject || errors.Is(err, unix.EMFILE)) {
		n.Fail(err) // an end lacks descriptors
	}
	remove(c.arrived, a.hello.from, a)
	if (err != nil || seg == nil) && n != nil && n.State() == kit.StateConnecting {
		// The dialer gave up: its place is the next one's.
		if list := c.arrived[n.peerInc]; len(list) > 0 {
			trim(c.arrived, n.peerInc)
			c.answer(list[0], n)
		} else {
			c.waiting[n.peerInc] = slices.Insert(c.waiting[n.peerInc], 0, n)
		}
	}
	c.Mu.Unlock()
	if seg == nil {
		discard(a.sock, fds)
		return nil
	}
	// From here on the dialer may be inside regions, whether its confirmation came or not.
	seg.closeFD()
	if err != nil || n.givenUp() {
		discard(a.sock, fds)
		a.abandon(c, false)
		return nil
	}
	if !c.establish(a, n, seg, &confirm, fds) {
		n.releasePeer()
		n.proc = noProcess
		a.abandon(c, n.yield())
		return nil
	}
	return n
}

// establish establishes the connection of a dialer that has confirmed. It owns
// the descriptors.
func (c *hostContext) establish(a *pendingDialer, n *conn, seg *segment, confirm *message, fds []int) bool {
	n.proc, n.asym = a.proc, a.asym
	err := n.adoptPeer(fds[0], fds[1])
	if err == nil {
		n.attaches, err = n.proc.attach(confirm.probe, &confirm.nonce)
	}
	if err != nil {
		n.breakWith(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		return false
	}
	n.mu.Lock()
	n.sock, n.reached = a.sock, true
	watcher := n.watcher
	n.mu.Unlock()
	c.Mu.Lock()
	delete(c.sockets, a.sock) // Close would end an established connection without a goodbye message
	c.Mu.Unlock()
	if watcher != nil {
		// Before this side's user can use the connection, and close it: the peer would take this connect request for another
		// one.
		rights.HangUp(watcher)
	}
	return n.up(seg)
}

// watch keeps a socket to a peer that is expected to dial, to notice if it
// ends before.
func (n *conn) watch(path string) {
	_, err := n.persist(path, &n.watcher, func(sock *net.UnixConn) error {
		if n.isReached() { // now, or before the socket could be hung up
			return driver.ErrClosed
		}
		// The peer may have been refused before this side's user called Connect: it learns why from the challenge.
		if _, _, err := n.prove(sock, n.ctx.flags()|flagWatch); err != nil {
			return err
		}
		var m message
		_, err := receive(sock, &m, 0)
		if err == nil && m.kind == msgReject {
			return rejectError(m.code)
		}
		return errGone
	})
	if n.isReached() {
		return
	}
	if !explains(err) {
		err = errGone
	}
	n.ctx.Mu.Lock()
	defer n.ctx.Mu.Unlock()
	n.ctx.forget(n)
	n.Resolve(kit.StateBroken, err) // unless it was established meanwhile
}

// isReached reports whether the peer has dialed, so that the end of the watching socket is not the peer's.
func (n *conn) isReached() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reached
}

var errGone = fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken)
