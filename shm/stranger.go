package shm

import (
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
)

// Limits of what dialers of a context can hold.
const (
	// strangerTime is the time in which a stranger must prove the secret.
	strangerTime = 5 * time.Second
	// maxStrangers of a user are kept: the oldest goes when one more comes.
	maxStrangers = 256
	// maxLeaving strangers of a user may be on their way out, before further
	// ones are refused.
	maxLeaving = 64
	// Peers that have proved it wait for our user's Connect: so many dialers and watchers of
	// one peer, and of all peers of one user.
	maxWaitingPeer = 256
	maxWaitingUser = 1024
)

// caller is a dialer. It is a stranger until it has proved the secret.
type caller struct {
	sock  *net.UnixConn
	user  uint32 // whose limits count; see hostContext.userOf
	hello message
	asym  bool
	conn  *conn    // whom it was given to; guarded by hostContext.Mu
	seg   *segment // made for it
	proc  *process // set with seg
	over  bool     // the socket has ended: nobody will use seg
	left  bool     // the socket is the lingerer's
}

// visitors are the dialers that are no connections yet; guarded by hostContext.Mu.
type visitors struct {
	strangers map[uint32][]*caller // by user, the oldest first
	leaving   map[uint32]int       // strangers that were told to go
	ofUser    map[uint32]int       // peers that wait
	ofPeer    map[uint64]int       // likewise, by incarnation
}

func newVisitors() visitors {
	return visitors{
		strangers: make(map[uint32][]*caller), leaving: make(map[uint32]int),
		ofUser: make(map[uint32]int), ofPeer: make(map[uint64]int),
	}
}

// userOf names the user whose limits count: those who are not admitted share
// one, as a single one of them can have thousands of names (user namespaces).
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
			c.greet(sock)
		}
	}
}

// greet takes a stranger in, or turns it away. Nothing waits for strangers: they
// are not among the tasks of the context.
func (c *hostContext) greet(sock *net.UnixConn) {
	a := &caller{sock: sock, user: c.userOf(rights.User(sock))}
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
	go c.meet(a)
}

// enlist adds a stranger. The oldest one of that user goes if there are too many:
// a genuine peer proves the secret within microseconds.
func (c *hostContext) enlist(a *caller) (code uint32) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	v := &c.visitors
	list := v.strangers[a.user]
	if c.IsClosed() || v.leaving[a.user] >= maxLeaving {
		return rejectBusy
	}
	if len(list) >= maxStrangers {
		oldest := list[0]
		list = list[1:]
		v.leaving[a.user]++
		_ = send(oldest.sock, &message{kind: msgReject, code: rejectBusy})
		rights.HangUp(oldest.sock)
	}
	v.strangers[a.user] = append(list, a)
	c.sockets[a.sock] = struct{}{}
	return 0
}

// delist removes a stranger, who has proved to be a peer or leaves. The caller holds mu.
func (c *hostContext) delist(a *caller) {
	v := &c.visitors
	list := v.strangers[a.user]
	if k := slices.Index(list, a); k < 0 {
		count(v.leaving, a.user, -1)
	} else if list = slices.Delete(list, k, k+1); len(list) == 0 {
		delete(v.strangers, a.user)
	} else {
		v.strangers[a.user] = list
	}
}

// count changes a counter in a map, which has no zeros.
func count[K comparable](m map[K]int, key K, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// meet speaks the listener's part with one dialer.
func (c *hostContext) meet(a *caller) {
	_ = a.sock.SetDeadline(time.Now().Add(strangerTime))
	code, err := c.interview(a)
	_ = a.sock.SetDeadline(time.Time{})
	if code == 0 && err == nil {
		code = c.admit(a)
	} else {
		c.Mu.Lock()
		c.delist(a)
		c.Mu.Unlock()
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
		count(c.visitors.ofUser, a.user, -1)
		count(c.visitors.ofPeer, a.hello.from, -1)
		c.Mu.Unlock()
		c.tasks.Done()
		if n != nil {
			n.monitor(a.sock)
			return
		}
	}
	c.dismiss(a)
}

// dismiss ends the socket of a dialer that has become no connection.
func (c *hostContext) dismiss(a *caller) {
	c.Mu.Lock()
	delete(c.sockets, a.sock)
	c.Mu.Unlock()
	if !a.left {
		rights.Close(a.sock)
	}
}

// admit makes a peer of a stranger that has proved the secret: a task of the
// context, which may pass descriptors, unless it only watches.
func (c *hostContext) admit(a *caller) (code uint32) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.delist(a)
	v := &c.visitors
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

// receivePeer waits with a peer for our user's Connect, and until the connection
// stands, or watches until either side ends. Nil if there is no connection.
func (c *hostContext) receivePeer(a *caller) *conn {
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

// interview checks the process at the other end. A code says what to answer; an error that
// there is nobody to answer to. A stranger cannot pass descriptors: the kernel
// refuses them, or closes them when they are read.
func (c *hostContext) interview(a *caller) (code uint32, err error) {
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
	said := proven(h, &challenge)
	challenge.mac = c.key.MAC(listenerProof, said...)
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
	if !c.key.Check(proof.mac[:], dialerProof, said...) {
		return rejectAuth, nil
	}
	a.asym = h.flags&challenge.flags&flagBarrier != 0
	return 0, nil
}
