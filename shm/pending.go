//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
)

// Limits of what dialers of a context can hold.
const (
	// proofTime is the time in which a dialer must prove the secret.
	proofTime = 5 * time.Second
	// maxUnproven is the limit of dialers of a user that have not proved the secret: the oldest is dropped when one more
	// comes.
	maxUnproven = 256
	// maxLeaving is the limit of dropped dialers of a user whose goroutines
	// have not ended; more dialers are refused meanwhile.
	maxLeaving = 64
	// Limits of dialers and watchers that have proved the secret and wait for this side's
	// Connect: of one peer, and of all peers of one user.
	maxWaitingPeer = 256
	maxWaitingUser = 1024
)

// pendingDialer is a dialer that has no connection yet. It is unauthenticated until it has proved the secret.
type pendingDialer struct {
	sock  *net.UnixConn
	user  uint32 // the user whose limits count; see hostContext.userOf
	hello message
	asym  bool
	conn  *conn    // the connection that it was matched with; guarded by hostContext.Mu
	seg   *segment // made for it
	proc  *process // set with seg
	over  bool     // the socket has ended: the dialer will not use seg
	left  bool     // the socket is closed later
}

// pendingDialers are the dialers that have no connection yet; guarded by hostContext.Mu.
type pendingDialers struct {
	unproven map[uint32][]*pendingDialer // those that have not proved the secret, by user, the oldest first
	leaving  map[uint32]int              // dropped dialers whose goroutines have not ended, by user
	ofUser   map[uint32]int              // authenticated dialers that wait, by user
	ofPeer   map[uint64]int              // likewise, by incarnation
}

func newPendingDialers() pendingDialers {
	return pendingDialers{
		unproven: make(map[uint32][]*pendingDialer), leaving: make(map[uint32]int),
		ofUser: make(map[uint32]int), ofPeer: make(map[uint64]int),
	}
}

// userOf returns the user whose limits count: all users that are not admitted
// share one, because a single one of them can have thousands of IDs (user namespaces).
func (c *hostContext) userOf(uid uint32) uint32 {
	if c.admits(uid) {
		return uid
	}
	return rights.Nobody
}

// serve accepts dialers until the context closes, and then closes the listener.
func (c *hostContext) serve() {
	for {
		sock, err := c.listener.AcceptUnix()
		switch {
		case c.IsClosed():
			if err == nil {
				rights.Close(sock)
			}
			rights.Close(c.listener)
			return
		case err != nil:
			pause() // out of descriptors: dialers wait in the queue
		default:
			c.receiveDialer(sock)
		}
	}
}

// receiveDialer begins with a dialer, or refuses it. Closing does not wait for
// unauthenticated dialers: they are not among the tasks of the context.
func (c *hostContext) receiveDialer(sock *net.UnixConn) {
	a := &pendingDialer{sock: sock, user: c.userOf(rights.User(sock))}
	code := uint32(rejectStuck)
	if rights.Stuck(a.user) == nil {
		code = c.enlist(a)
	}
	if code != 0 {
		c.refused.Add(1)
		_ = send(sock, &message{kind: msgReject, code: code})
		rights.Close(sock)
		return
	}
	go c.handleDialer(a)
}

// enlist adds an unauthenticated dialer. It drops the oldest one of that user if
// there are too many: a genuine peer proves the secret within microseconds.
func (c *hostContext) enlist(a *pendingDialer) (code uint32) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	v := &c.pendingDialers
	list := v.unproven[a.user]
	if c.IsClosed() || v.leaving[a.user] >= maxLeaving {
		return rejectBusy
	}
	if len(list) >= maxUnproven {
		oldest := list[0]
		list = list[1:]
		v.leaving[a.user]++
		c.refused.Add(1)
		_ = send(oldest.sock, &message{kind: msgReject, code: rejectBusy})
		rights.HangUp(oldest.sock)
	}
	v.unproven[a.user] = append(list, a)
	c.sockets[a.sock] = struct{}{}
	return 0
}

// delist removes a dialer that has proved the secret or has ended. The caller holds mu.
func (c *hostContext) delist(a *pendingDialer) {
	v := &c.pendingDialers
	if !slices.Contains(v.unproven[a.user], a) {
		count(v.leaving, a.user, -1)
		return
	}
	remove(v.unproven, a.user, a)
}

// remove takes x out of a list in a map, which has no empty lists.
func remove[K, T comparable](m map[K][]T, key K, x T) {
	if m[key] = slices.DeleteFunc(m[key], func(y T) bool { return y == x }); len(m[key]) == 0 {
		delete(m, key)
	}
}

// count changes a counter in a map, which has no zeros.
func count[K comparable](m map[K]int, key K, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// handleDialer runs the listener's part of the set-up with one dialer.
func (c *hostContext) handleDialer(a *pendingDialer) {
	_ = a.sock.SetDeadline(time.Now().Add(proofTime))
	code, err := c.authenticate(a)
	_ = a.sock.SetDeadline(time.Time{})
	if code == 0 && err == nil {
		code = c.admit(a)
	} else {
		c.Mu.Lock()
		c.delist(a)
		c.Mu.Unlock()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		code = rejectBusy // one that was stopped for so long tries again
	}
	switch {
	case code != 0:
		c.refused.Add(1)
		_ = send(a.sock, &message{kind: msgReject, code: code})
	case err != nil:
		if isProtocol(err) {
			c.bad.Add(1)
		}
	default:
		n := c.receivePeer(a)
		c.Mu.Lock()
		count(c.pendingDialers.ofUser, a.user, -1)
		count(c.pendingDialers.ofPeer, a.hello.from, -1)
		c.Mu.Unlock()
		c.tasks.Done()
		if n != nil {
			n.monitor(a.sock)
			return
		}
	}
	c.dismiss(a)
}

// dismiss closes the socket of a dialer that has got no connection.
func (c *hostContext) dismiss(a *pendingDialer) {
	c.Mu.Lock()
	delete(c.sockets, a.sock)
	c.Mu.Unlock()
	if !a.left {
		rights.Close(a.sock)
	}
}

// admit makes a dialer that has proved the secret a task of the context, which
// may pass descriptors, unless it only watches.
func (c *hostContext) admit(a *pendingDialer) (code uint32) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.delist(a)
	v := &c.pendingDialers
	switch {
	case c.IsClosed():
		return rejectBusy
	case v.ofPeer[a.hello.from] >= maxWaitingPeer || v.ofUser[a.user] >= maxWaitingUser:
		return rejectWaiting
	}
	if a.hello.flags&flagWatch == 0 && rights.Admit(a.sock) != nil {
		return rejectProtocol
	}
	v.ofPeer[a.hello.from]++
	v.ofUser[a.user]++
	c.tasks.Add(1)
	return 0
}

// receivePeer waits with a peer for this side's Connect, and until the connection
// is established, or watches until either side ends. It returns nil if there is no connection.
func (c *hostContext) receivePeer(a *pendingDialer) *conn {
	if a.hello.flags&flagWatch == 0 {
		c.match(a)
		return c.complete(a)
	}
	c.beWatched(a)
	var m message
	_, _ = receive(a.sock, &m, 0)
	c.unwatched(a)
	return nil
}

// authenticate checks the process at the other end. A code is the reason to send; an error
// means that the dialer has gone. An unauthenticated dialer cannot pass descriptors: the kernel
// refuses them, or closes them when they are read.
func (c *hostContext) authenticate(a *pendingDialer) (code uint32, err error) {
	// Closing a socket with unread bytes resets it, and the peer would see an error before the answer.
	_, err = expect(a.sock, &a.hello, msgHello, 0)
	if a.user == rights.Nobody {
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
	case h.to != c.Incarnation || h.from >= c.Incarnation && h.flags&flagWatch == 0:
		return rejectStale, nil
	case (h.flags&flagLarge != 0) != (c.Props.Track == driver.Large):
		return rejectTrack, nil
	}
	challenge := message{kind: msgChallenge, flags: c.flags()}
	_, _ = rand.Read(challenge.nonce[:])
	signed := proven(h, &challenge)
	challenge.mac = c.key.MAC(listenerProof, signed...)
	if err := send(a.sock, &challenge); err != nil {
		return 0, err
	}
	var proof message
	_, err = receive(a.sock, &proof, 0)
	switch {
	case err == nil && proof.kind == msgReject && proof.code == rejectAuth:
		return rejectAuth, nil
	case err == nil && proof.kind != msgProof:
		return 0, errMalformed
	case err != nil:
		return 0, err
	}
	if !c.key.Check(proof.mac[:], dialerProof, signed...) {
		return rejectAuth, nil
	}
	a.asym = h.flags&challenge.flags&flagBarrier != 0
	return 0, nil
}
