//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// pendingPeer is a peer while connections with it are being made. Both sides dial, so that one direction that works is
// enough. The context with the lower incarnation leads: it takes one proven link for each of its instances, in the
// order of its calls of Connect, and the other one follows. The context's Mu guards a pendingPeer.
type pendingPeer struct {
	ctx  *share
	peer uint64

	waiting []*conn       // instances without a link, in the order of Connect
	idle    []*link       // without an instance
	taken   []*link       // for an instance whose connection is not established yet
	offered []*link       // by the peer, which leads, in its order
	dials   int           // under way
	pause   time.Duration // before the next one: the peer has dropped a link for which its user did not call Connect
}

// pendingPeer finds the peer with an incarnation. The caller holds Mu.
func (c *share) pendingPeer(peer uint64) *pendingPeer {
	p := c.pendingPeers[peer]
	if p == nil {
		p = &pendingPeer{ctx: c, peer: peer}
		c.pendingPeers[peer] = p
	}
	return p
}

func remove[T comparable](list []T, x T) []T {
	if k := slices.Index(list, x); k >= 0 {
		return slices.Delete(list, k, k+1)
	}
	return list
}

// leads reports whether this side chooses the links.
func (p *pendingPeer) leads() bool { return p.ctx.Incarnation < p.peer }

// enlist adds a proven link that this side has dialed, and reports whether the context is still open.
func (c *share) enlist(l *link, peer uint64) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.IsClosed() {
		return false
	}
	l.pendingPeer = c.pendingPeer(peer)
	l.pendingPeer.idle = append(l.pendingPeer.idle, l)
	l.pendingPeer.advance()
	return true
}

// admit adds a proven link that the peer has dialed, and sends welcome, if there is room.
func (c *share) admit(l *link, peer uint64) bool {
	c.Mu.Lock()
	waiting := len(c.pending.list)
	c.Mu.Unlock()
	limit := pendingLimit(waiting) // which counts, and may take some time
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.IsClosed() {
		return false
	}
	if p := c.pendingPeers[peer]; p == nil || len(p.waiting) <= len(p.idle) { // no instance of this side waits for it
		switch old := c.pending.excess(l, limit); old {
		case nil:
		case l:
			return false
		default:
			c.refused.Add(1)
			old.letGo()
			_ = old.sock.Close()
		}
	}
	p := c.pendingPeer(peer)
	l.pendingPeer = p
	if l.send(note{kind: noteWelcome, deadTime: c.opts.deadTime}) != nil {
		p.advance()
		return false
	}
	c.pending.add(l)
	p.idle = append(p.idle, l)
	p.advance()
	c.requested()
	return true
}

// advance does what can be done now: it matches instances with links, dials, and closes links that no instance needs.
func (p *pendingPeer) advance() {
	c := p.ctx
	if c.IsClosed() {
		return
	}
	if p.leads() {
		p.take()
	} else {
		p.follow()
	}
	for n := len(p.waiting) - len(p.idle) - p.dials; n > 0; n-- {
		p.dials++
		targets, pause := p.waiting[0].targets, p.pause
		c.tasks.Go(func() { c.call(p, targets, pause) })
	}
	if len(p.waiting) == 0 {
		for _, l := range slices.Clone(p.idle) {
			if l.dialed { // the other side's are its calls of Connect
				p.idle = remove(p.idle, l)
				l.state = linkOver
				_ = l.sock.Close()
			}
		}
		if len(p.idle)+len(p.taken)+len(p.offered)+p.dials == 0 {
			if c.pendingPeers[p.peer] == p {
				delete(c.pendingPeers, p.peer)
			}
		}
	}
}

// take gives the first instance that waits the first idle link. The next one has to wait until the follower has seen
// that, so that it sees them in order.
func (p *pendingPeer) take() {
	for len(p.waiting) > 0 && len(p.idle) > 0 {
		if slices.ContainsFunc(p.taken, func(l *link) bool { return l.state == linkTaken }) {
			return
		}
		l, i := p.idle[0], p.waiting[0]
		p.idle, p.waiting = p.idle[1:], p.waiting[1:]
		p.ctx.pending.remove(l)
		l.state, l.conn, i.link = linkTaken, i, l
		p.taken = append(p.taken, l)
		_ = l.send(note{kind: noteTake, token: i.api.token()}) // an error shows at the receiver, too
	}
}

// follow gives the first instance that waits the link that the leader has taken for it. The goroutine of the link does
// the rest: no other goroutine may read from the socket when the leader begins to send messages.
func (p *pendingPeer) follow() {
	for len(p.waiting) > 0 && len(p.offered) > 0 {
		l, i := p.offered[0], p.waiting[0]
		p.offered, p.waiting = p.offered[1:], p.waiting[1:]
		p.ctx.pending.remove(l)
		l.state, l.conn, i.link = linkMatched, i, l
		p.taken = append(p.taken, l)
		_ = l.sock.SetReadDeadline(time.Unix(1, 0)) // ends the goroutine's read
	}
}

// call dials the peer once, for whichever instance is first when that has worked.
func (c *share) call(p *pendingPeer, targets []netip.AddrPort, pause time.Duration) {
	l, err := c.persist(p, targets, pause)
	p.dialed(err)
	if err != nil {
		return
	}
	if !c.enlist(l, p.peer) {
		_ = l.sock.Close()
		return
	}
	l.serve()
}

// dialed counts a dial that has ended, and does what follows from its error. An instance that waits since after
// errNotAwaited has nothing to do with that dial, and gets one of its own.
func (p *pendingPeer) dialed(err error) {
	p.ctx.Mu.Lock()
	defer p.ctx.Mu.Unlock()
	p.dials--
	if err == nil {
		return
	}
	// Links that the peer has dialed show that it lives, and are enough.
	if err != errNotAwaited && len(p.idle)+len(p.taken)+len(p.offered) == 0 {
		p.fail(fmt.Errorf("%s: %w", p.ctx.Props.Device, err))
	}
	p.pause = max(p.pause, callPause)
	p.advance()
}

// fail ends the instances that wait: the peer is gone, or refuses.
func (p *pendingPeer) fail(err error) {
	for _, i := range p.waiting {
		i.Resolve(kit.StateBroken, err)
	}
	p.waiting = nil
}

// wait has instances wait for a link, in the order of Connect.
func (p *pendingPeer) wait(list ...*conn) {
	p.waiting = append(p.waiting, list...)
	slices.SortFunc(p.waiting, func(a, b *conn) int { return cmp.Compare(a.turn, b.turn) })
}

// reconnect has the instances wait again whose links the peer drops, one of which is l. Without the others, which
// follow it, the instances would no longer be in the order of Connect.
func (p *pendingPeer) reconnect(l *link) {
	p.pause = callPause
	if l.state == linkIdle {
		p.idle = remove(p.idle, l)
		l.state = linkOver
		return
	}
	var waiting []*conn
	for _, t := range p.taken {
		t.state = linkOver
		_ = t.sock.Close()
		t.conn.link = nil
		waiting = append(waiting, t.conn)
	}
	p.taken = nil
	p.wait(waiting...)
}

// hangUp closes all links, when the context is closed.
func (p *pendingPeer) hangUp() {
	for _, list := range [][]*link{p.idle, p.taken, p.offered} {
		for _, l := range list {
			_ = l.sock.Close()
		}
	}
}

// leave removes an instance that its user has given up. The caller holds Mu.
func (p *pendingPeer) leave(i *conn) {
	p.waiting = remove(p.waiting, i)
	if l := i.link; l != nil {
		switch l.state {
		case linkUp:
		case linkAsked:
			l.state = linkLeft
		default:
			if l.state == linkMatched { // the leader relies on it: it shall take another link
				_ = l.send(note{kind: noteWelcome, code: refuseBusy})
			}
			p.taken = remove(p.taken, l)
			l.state = linkOver
			_ = l.sock.Close()
		}
	}
	p.advance()
}

func (c smallContext) ConnectRequests(dst []uint64) []uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, p := range c.pendingPeers {
		asks := len(p.offered) > 0 || slices.ContainsFunc(p.idle, func(l *link) bool { return !l.dialed })
		if asks && len(p.waiting) == 0 {
			dst = append(dst, p.peer)
		}
	}
	return dst
}

func (c smallContext) OnConnectRequest(f func()) {
	if f == nil {
		c.onRequest.Store(nil)
		return
	}
	c.onRequest.Store(&f)
	f()
}

func (c *share) requested() {
	if f := c.onRequest.Load(); f != nil {
		(*f)()
	}
}

var _ driver.ConnectRequestReceiver = smallContext{}
