//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/kit"
)

// link is a TCP connection whose ends have proved the secret to one another, until it carries messages. One goroutine
// receives on it. Its state is guarded by the context's Mu.
type link struct {
	ctx         *share
	sock        *net.TCPConn
	hs          *handshake.Conn
	dialed      bool          // by this side
	deadTime    time.Duration // of the peer
	pendingPeer *pendingPeer

	state linkState
	conn  *conn // the instance it is for, once it was taken
	token uint64
}

type linkState uint8

const (
	linkIdle    linkState = iota
	linkTaken             // the leader has sent take
	linkSeen              // and the follower has seen it
	linkOffered           // the follower has been sent take, and has no instance yet
	linkMatched           // the follower has an instance for it, and is about to send stand
	linkAsked             // the follower has sent stand; the leader may have given its instance up meanwhile
	linkLeft              // and has given its instance up: the leader may be up already, and gets an orderly end
	linkUp                // it carries messages: the socket is the connection's
	linkOver
)

func (l *link) send(m note) error { return l.hs.Send(m.append(nil)) }

func (l *link) receive() (note, error) {
	b, err := l.hs.Receive()
	if err != nil {
		return note{}, err
	}
	m, err := parseNote(b)
	if err != nil {
		l.ctx.bad.Add(1)
	}
	return m, err
}

// serve receives the peer's notes until the link carries messages or ends.
func (l *link) serve() {
	for {
		m, err := l.receive()
		if l.ask() || l.taken(err) { // an instance has come for it
			continue
		}
		if err == nil {
			err = l.handle(m)
		}
		switch {
		case err == errUp:
			return
		case err != nil:
			l.lost(err)
			return
		}
		l.ask()
	}
}

// errUp ends serve: the socket is the connection's.
var errUp = errors.New("the link carries messages")

// ask sends stand to the leader, if the link has got an instance here. The connection is established when the leader
// answers.
func (l *link) ask() bool {
	c := l.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if l.state != linkMatched {
		return false
	}
	l.state = linkAsked
	_ = l.sock.SetReadDeadline(time.Time{})
	_ = l.send(note{kind: noteStand, token: l.conn.api.token()}) // an error shows at the receiver, too
	return true
}

// taken reports whether an instance has taken the link when its time was over.
func (l *link) taken(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	l.ctx.Mu.Lock()
	defer l.ctx.Mu.Unlock()
	return l.state == linkTaken
}

// letGo ends a link for which this side's user has not called Connect. The peer dials again, if its user still waits.
// The caller holds Mu.
func (l *link) letGo() {
	p := l.pendingPeer
	l.ctx.pending.remove(l)
	p.idle, p.offered = remove(p.idle, l), remove(p.offered, l)
	l.state = linkOver
	_ = l.send(note{kind: noteWelcome, code: refuseBusy})
}

// handle takes a note of the peer.
func (l *link) handle(m note) error {
	c := l.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	p := l.pendingPeer
	switch {
	case l.state == linkOver: // it was closed here while the note was on its way
		return net.ErrClosed
	case m.kind == noteTake && l.state == linkIdle && !p.leads():
		p.idle = remove(p.idle, l)
		l.state, l.token = linkOffered, m.token
		p.offered = append(p.offered, l)
		if p.advance(); l.state != linkOffered {
			return nil
		}
		c.pending.add(l)
		c.requested()
		return l.send(note{kind: noteSeen})
	case m.kind == noteSeen && l.state == linkTaken:
		l.state = linkSeen
		p.advance()
		return nil
	case m.kind == noteStand && (l.state == linkTaken || l.state == linkSeen):
		_ = l.send(note{kind: noteUp})
		l.up(m.token)
		return errUp
	case m.kind == noteUp && (l.state == linkAsked || l.state == linkLeft):
		l.up(l.token)
		return errUp
	case m.kind == noteWelcome && m.code == refuseBusy &&
		(l.state == linkIdle && l.dialed || l.state == linkTaken || l.state == linkSeen):
		p.reconnect(l)
		return errBusy
	}
	c.bad.Add(1)
	return errMalformed
}

// up gives the socket to the instance. The caller holds Mu.
func (l *link) up(theirs uint64) {
	i, left := l.conn, l.state == linkLeft
	l.state = linkUp
	l.pendingPeer.pause = 0
	l.pendingPeer.taken = remove(l.pendingPeer.taken, l)
	if i.establish(l, theirs); left && i.wire != nil {
		i.rx.lock()
		i.tx.lock()
		i.sayBye()
		i.tx.unlock()
		i.rx.unlock()
	}
	l.pendingPeer.advance()
}

// lost ends a link that the peer has closed, or that was closed here.
func (l *link) lost(err error) {
	c := l.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) && (l.state == linkIdle || l.state == linkOffered) {
		c.refused.Add(1)
		l.letGo()
	}
	_ = l.sock.Close()
	c.pending.remove(l)
	p, i, before := l.pendingPeer, l.conn, l.state
	l.state = linkOver
	p.idle, p.taken, p.offered = remove(p.idle, l), remove(p.taken, l), remove(p.offered, l)
	gone := fmt.Errorf("%w: %s: the peer's process is gone: %w", driver.ErrBroken, c.Props.Device, err)
	switch {
	case before == linkSeen:
		i.Resolve(kit.StateBroken, gone)
	case before == linkTaken && l.dialed:
		i.Resolve(kit.StateBroken, gone)
	case (before == linkTaken || before == linkMatched || before == linkAsked) && i.State() == kit.StateConnecting:
		// The follower closed it before it saw the note, or the leader gave its instance up: another link will do.
		p.wait(i)
	case before == linkIdle && l.dialed && !c.IsClosed():
		p.fail(gone) // nothing else closes a link that this side has dialed
	}
	p.advance()
}
