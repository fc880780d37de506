package shm

import (
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// Strangers get so long to introduce themselves, and so many at a time.
const (
	strangerTime = 5 * time.Second
	maxStrangers = 1024
)

// connectSelf connects to the own context: one ring, with both ends here.
func (n *conn) connectSelf() {
	seg, err := createSegment(n.ctx.props.Track == driver.Large)
	if err != nil {
		n.breakWith(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		return
	}
	seg.closeFD()
	n.toSelf, n.asym = true, n.ctx.barrier
	n.bell, n.remote = n.ctx.bell, n.ctx.regions.view()
	n.proc = process{pid: os.Getpid(), pidfd: -1}
	seg.ctl.side[0].cma = cmaNo
	if !n.up(seg) {
		seg.unmap()
	}
}

// hold makes a socket the connection's, so that giving up closes it. False if
// it has been given up already.
func (n *conn) hold(slot **net.UnixConn, s *net.UnixConn) bool {
	n.mu.Lock()
	*slot = s
	n.mu.Unlock()
	if n.givenUp() {
		s.Close()
		return false
	}
	return true
}

func (n *conn) givenUp() bool { return n.state.Load() != stateConnecting }

// dial is the side with the lower incarnation.
func (n *conn) dial(path string) {
	if n.before != nil {
		<-n.before
	}
	defer n.letNext()
	sock, err := dialSocket(path, n.givenUp)
	if err != nil {
		n.breakWith(err)
		return
	}
	if !n.hold(&n.sock, sock) {
		return
	}
	up, err := n.introduce(sock)
	if err != nil {
		sock.Close()
		n.proc.close()
		if !errors.Is(err, driver.ErrAuth) && !errors.Is(err, driver.ErrVersion) && !errors.Is(err, driver.ErrBroken) && !errors.Is(err, driver.ErrInvalid) {
			err = fmt.Errorf("%w: the peer ended while connecting: %w", driver.ErrBroken, err)
		}
		n.breakWith(err)
		return
	}
	if up {
		go n.monitor(sock) // not a task: Close does not wait for what lingers
	}
}

// letNext lets the next connection to the same peer be dialed.
func (n *conn) letNext() {
	if n.turn == nil {
		return
	}
	close(n.turn)
	n.ctx.mu.Lock()
	defer n.ctx.mu.Unlock()
	if n.ctx.turns[n.peerInc] == n.turn {
		delete(n.ctx.turns, n.peerInc)
	}
	n.turn = nil
}

func (c *Context) flags() uint32 {
	var f uint32
	if c.props.Track == driver.Large {
		f |= flagLarge
	}
	if c.barrier {
		f |= flagBarrier
	}
	return f
}

// introduce speaks the dialer's part until the connection stands. Up is false, without an error, if the user has given
// it up in the last moment.
func (n *conn) introduce(sock *net.UnixConn) (up bool, err error) {
	c := n.ctx
	uid, proc, err := peerOf(sock)
	if err != nil {
		return false, err
	}
	n.proc = proc
	if !c.admits(uid) {
		return false, fmt.Errorf("%w: the peer runs as user %d (option allow-uids)", driver.ErrAuth, uid)
	}
	hello := message{kind: msgHello, flags: c.flags(), from: c.inc, to: n.peerInc}
	_, _ = rand.Read(hello.nonce[:])
	if err := send(sock, &hello); err != nil {
		return false, err
	}
	var challenge message
	if _, err := expect(sock, &challenge, msgChallenge, 0); err != nil {
		return false, err
	}
	want := prove(c.secret, "listener", &hello, &challenge)
	if !hmac.Equal(want[:], challenge.mac[:]) {
		_ = send(sock, &message{kind: msgReject, code: rejectAuth})
		c.refused.Add(1)
		return false, rejectError(rejectAuth)
	}
	return n.beAccepted(sock, &hello, &challenge)
}

// beAccepted is the part of introduce after each side has proved the secret.
func (n *conn) beAccepted(sock *net.UnixConn, hello, challenge *message) (up bool, err error) {
	c := n.ctx
	proof := message{kind: msgProof, mac: prove(c.secret, "dialer", hello, challenge)}
	if err := send(sock, &proof, c.bellFD, c.regions.fd); err != nil {
		return false, err
	}
	var accept message
	fds, err := receive(sock, &accept)
	if err == nil && accept.kind == msgQueued && len(fds) == 0 {
		n.letNext()
		fds, err = receive(sock, &accept)
	}
	if fds, err = accept.must(msgAccept, 3, fds, err); err != nil {
		return false, err
	}
	n.letNext()
	seg, err := n.adopt(fds[0], fds[1], fds[2])
	if err != nil {
		return false, err
	}
	n.side, n.asym = 1, hello.flags&challenge.flags&flagBarrier != 0
	if err := n.tryAttach(seg, &accept); err != nil {
		seg.unmap()
		n.releasePeer()
		return false, err
	}
	c.admit(seg, n.side, n.proc.dead)
	err = send(sock, &message{kind: msgConfirm, probe: c.nonceAddr(), nonce: *c.nonce})
	if err == nil && n.up(seg) {
		return true, nil
	}
	n.releasePeer()
	proc := n.proc
	n.proc = process{pidfd: -1}
	c.abandon(seg, n.side, proc, sock)
	return false, err
}

func (c *Context) nonceAddr() uint64 { return uint64(uintptr(unsafe.Pointer(c.nonce))) }

func (c *Context) admits(uid uint32) bool {
	return uid == uint32(os.Getuid()) || slices.Contains(c.opts.allowUIDs, uid)
}

// adopt maps what the listener has sent. It owns the descriptors.
func (n *conn) adopt(segFD, bellFD, regionFD int) (*segment, error) {
	large := n.ctx.props.Track == driver.Large
	if err := checkSealed(segFD, segmentFileSize(large)); err != nil {
		closeAll([]int{segFD, bellFD, regionFD})
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	seg, err := mapSegment(segFD, large)
	if err != nil {
		closeAll([]int{bellFD, regionFD})
		return nil, err
	}
	seg.closeFD()
	if err := n.adoptPeer(bellFD, regionFD); err != nil {
		seg.unmap()
		return nil, err
	}
	return seg, nil
}

// adoptPeer maps the pages of the peer's context. It owns the descriptors.
func (n *conn) adoptPeer(bellFD, regionFD int) error {
	defer closeAll([]int{bellFD, regionFD})
	if err := checkSealed(bellFD, bellBytes); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if err := checkSealed(regionFD, regionTableBytes); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	p, err := mapShared(bellFD, bellBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	r, err := mapShared(regionFD, regionTableBytes, unix.PROT_READ)
	if err != nil {
		_ = unix.MunmapPtr(p, bellBytes)
		return err
	}
	n.bell, n.remote = (*bell)(p), (*regionView)(r)
	return nil
}

// releasePeer undoes adoptPeer.
func (n *conn) releasePeer() {
	if n.toSelf || n.bell == nil {
		return
	}
	_ = unix.MunmapPtr(unsafe.Pointer(n.bell), bellBytes)
	_ = unix.MunmapPtr(unsafe.Pointer(n.remote), regionTableBytes)
	n.bell, n.remote = nil, nil
}

// tryAttach finds out whether CMA reaches the peer, and tells it. ErrBroken: the peer has died.
func (n *conn) tryAttach(seg *segment, m *message) (err error) {
	v := uint32(cmaNo)
	if n.attaches, err = n.proc.attach(m.probe, &m.nonce); n.attaches {
		v = cmaYes
	}
	store32(&seg.ctl.side[n.side].cma, v)
	return err
}

// caller is a dialer that has introduced itself.
type caller struct {
	sock  *net.UnixConn
	hello message
	asym  bool
	proc  process
	bell  int // descriptors; -1 once adopted
	table int
	conn  *conn    // whom it was given to; guarded by Context.mu
	seg   *segment // made for it
	over  bool     // the socket has ended: nobody will use seg
	left  bool     // to abandon: socket and process are not the caller's any more
}

// serve accepts dialers.
func (c *Context) serve() {
	for {
		sock, err := c.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			pause() // out of descriptors: dialers wait in the queue
			continue
		}
		c.mu.Lock()
		full := c.closed || c.strangers >= maxStrangers
		if !full {
			c.strangers++
			c.tasks.Go(func() { c.meet(sock) })
		}
		c.mu.Unlock()
		if full {
			_ = send(sock, &message{kind: msgReject, code: rejectBusy})
			sock.Close()
		}
	}
}

// meet speaks the listener's part with one dialer.
func (c *Context) meet(sock *net.UnixConn) {
	a := &caller{sock: sock, bell: -1, table: -1, proc: process{pidfd: -1}}
	stop := c.onClose(sock)
	_ = sock.SetDeadline(time.Now().Add(strangerTime))
	code, err := c.interview(a)
	_ = sock.SetDeadline(time.Time{})
	c.mu.Lock()
	c.strangers--
	c.mu.Unlock()
	switch {
	case code != 0:
		c.refuse(a, code)
	case err != nil:
		if isProtocol(err) {
			c.bad.Add(1)
		}
	case a.hello.flags&flagWatch != 0:
		c.beWatched(a.hello.from, 1)
		var m message
		fds, _ := receive(sock, &m) // until either side closes
		closeAll(fds)
		c.beWatched(a.hello.from, -1)
	default:
		c.match(a)
		if n := c.complete(a, stop); n != nil {
			go n.monitor(sock)
			return
		}
	}
	stop()
	if a.left {
		a.proc.pidfd = -1
	} else {
		sock.Close()
	}
	closeAll(slices.DeleteFunc([]int{a.bell, a.table}, func(fd int) bool { return fd < 0 }))
	a.proc.close()
}

// interview checks who is there. A code says what to answer; an error that
// there is nobody to answer to.
func (c *Context) interview(a *caller) (code uint32, err error) {
	uid, proc, err := peerOf(a.sock)
	if err != nil {
		return 0, err
	}
	a.proc = proc
	// What is not read would reset the socket, and the answer be lost.
	_, err = expect(a.sock, &a.hello, msgHello, 0)
	if !c.admits(uid) {
		return rejectUser, nil
	}
	if errors.Is(err, driver.ErrVersion) {
		return rejectVersion, nil
	}
	if err != nil {
		return 0, err
	}
	h := &a.hello
	switch {
	case h.to != c.inc || h.from >= c.inc && h.flags&flagWatch == 0:
		return rejectStale, nil
	case (h.flags&flagLarge != 0) != (c.props.Track == driver.Large):
		return rejectTrack, nil
	}
	challenge := message{kind: msgChallenge, flags: c.flags()}
	_, _ = rand.Read(challenge.nonce[:])
	challenge.mac = prove(c.secret, "listener", h, &challenge)
	if err := send(a.sock, &challenge); err != nil || h.flags&flagWatch != 0 {
		return 0, err
	}
	var proof message
	fds, err := receive(a.sock, &proof)
	switch {
	case err == nil && proof.kind == msgReject && proof.code == rejectAuth:
		closeAll(fds)
		return rejectAuth, nil
	case err == nil && (proof.kind != msgProof || len(fds) != 2):
		err = errMalformed
		fallthrough
	case err != nil:
		closeAll(fds)
		return 0, err
	}
	a.bell, a.table = fds[0], fds[1]
	want := prove(c.secret, "dialer", h, &challenge)
	if !hmac.Equal(want[:], proof.mac[:]) {
		return rejectAuth, nil
	}
	a.asym = h.flags&challenge.flags&flagBarrier != 0
	return 0, nil
}

// refuse answers a dialer that cannot be admitted, and fails the connection
// that waits for it: its user learns why at once.
func (c *Context) refuse(a *caller, code uint32) {
	c.refused.Add(1)
	_ = send(a.sock, &message{kind: msgReject, code: code})
	if code != rejectAuth && code != rejectTrack {
		return
	}
	c.mu.Lock()
	var n *conn
	if list := c.waiting[a.hello.from]; len(list) > 0 {
		n = list[0]
	}
	c.mu.Unlock()
	if n != nil {
		n.breakWith(rejectError(code))
	}
}

// expect is the listening side of Connect: the next dialer from that peer is
// its other end. The caller holds mu.
func (c *Context) expect(n *conn) {
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
func (c *Context) match(a *caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.waiting[a.hello.from]; len(list) > 0 {
		n := list[0]
		trim(c.waiting, a.hello.from)
		c.answer(a, n)
		return
	}
	c.arrived[a.hello.from] = append(c.arrived[a.hello.from], a)
	c.knocked()
	_ = send(a.sock, &message{kind: msgQueued}) // under mu: before any accept
}

// forget takes a connection off the list of those that wait for a dialer. The
// caller holds mu.
func (c *Context) forget(n *conn) {
	list := slices.DeleteFunc(c.waiting[n.peerInc], func(x *conn) bool { return x == n })
	if len(list) == 0 {
		delete(c.waiting, n.peerInc)
		return
	}
	c.waiting[n.peerInc] = list
}

// answer sends accept with the memory of the connection. The caller holds mu.
func (c *Context) answer(a *caller, n *conn) {
	a.conn = n
	c.tasks.Go(func() {
		seg, err := createSegment(c.props.Track == driver.Large)
		if err == nil {
			err = c.accept(a, seg)
		} else {
			n.breakWith(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		}
		if err != nil {
			_ = a.sock.CloseRead() // complete notices
		}
	})
}

// complete waits for the dialer's confirm and makes the connection stand. Nil
// if that did not come about.
func (c *Context) complete(a *caller, stop func()) *conn {
	var confirm message
	_, err := expect(a.sock, &confirm, msgConfirm, 0)
	c.mu.Lock()
	n, seg := a.conn, a.seg
	a.over = true
	if list := slices.DeleteFunc(c.arrived[a.hello.from], func(x *caller) bool { return x == a }); len(list) == 0 {
		delete(c.arrived, a.hello.from)
	} else {
		c.arrived[a.hello.from] = list
	}
	if (err != nil || seg == nil) && n != nil && n.state.Load() == stateConnecting {
		// The dialer gave up: its place is the next one's.
		if list := c.arrived[n.peerInc]; len(list) > 0 {
			trim(c.arrived, n.peerInc)
			c.answer(list[0], n)
		} else {
			c.waiting[n.peerInc] = slices.Insert(c.waiting[n.peerInc], 0, n)
		}
	}
	c.mu.Unlock()
	if seg == nil {
		return nil
	}
	// From here on the dialer may be inside regions, whether its confirmation came or not.
	seg.closeFD()
	if err != nil {
		a.abandon(c)
		return nil
	}
	bell, table := a.bell, a.table
	a.bell, a.table = -1, -1
	if err = n.adoptPeer(bell, table); err == nil {
		n.proc, n.asym = a.proc, a.asym
		if err = n.tryAttach(seg, &confirm); err != nil {
			n.releasePeer()
		}
	}
	if err != nil {
		n.breakWith(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		a.abandon(c)
		return nil
	}
	n.mu.Lock()
	n.sock = a.sock
	watcher := n.watcher
	n.mu.Unlock()
	stop() // Close would end a connection that stands without goodbye
	if !n.up(seg) {
		n.releasePeer()
		a.abandon(c)
		return nil
	}
	if watcher != nil {
		watcher.Close() // only now: its end would be taken for the peer's
	}
	a.proc.pidfd = -1
	return n
}

// watch keeps a socket to a peer that is expected to dial, to notice if it
// ends before.
func (n *conn) watch(path string) {
	sock, err := dialSocket(path, n.givenUp)
	if err != nil {
		n.settle(stateBroken, err)
		return
	}
	if !n.hold(&n.watcher, sock) {
		return
	}
	defer sock.Close()
	hello := message{kind: msgHello, flags: n.ctx.flags() | flagWatch, from: n.ctx.inc, to: n.peerInc}
	_, _ = rand.Read(hello.nonce[:])
	err = send(sock, &hello)
	var m message
	for err == nil {
		var fds []int
		fds, err = receive(sock, &m)
		closeAll(fds)
		if err != nil || m.kind != msgChallenge {
			break
		}
		// The peer may have been refused before our user called Connect.
		if want := prove(n.ctx.secret, "listener", &hello, &m); !hmac.Equal(want[:], m.mac[:]) {
			m = message{kind: msgReject, code: rejectAuth}
			break
		}
	}
	reason := fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken)
	if err == nil && m.kind == msgReject {
		reason = rejectError(m.code)
	}
	n.settle(stateBroken, reason)
}

// onClose closes a socket when the context closes, until stop is called.
func (c *Context) onClose(sock *net.UnixConn) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		sock.Close()
		return func() {}
	}
	c.sockets[sock] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.sockets, sock)
	}
}
