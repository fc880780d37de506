//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// Hazard pointers: how this side knows that a peer accesses its memory no more.
//
// A peer reaches a region with its own CPU, so that nothing here can stop it: this side can only know that the peer
// is outside and will not enter again. A side that accesses a region of the other side
//
//  1. stores the region's index in the hazard word of its own lines in the segment,
//  2. loads the other side's word closed, then the generation of the region, and gives up if either has changed,
//  3. copies,
//  4. clears the hazard word.
//
// The owner revokes in the opposite order: it stores closed (for all regions, when it closes the connection) or a new
// generation (for one, when it deregisters it), and loads the hazard word afterwards. All of these are sequentially
// consistent: either the peer sees that it may not enter, or the owner sees that the peer is inside. A hazard counts
// until the peer clears it, or is gone (see conn.peerGone), in every state of the connection here: it may be closed,
// broken, or not established yet. So the owner keeps each segment mapped from before the peer can use it until the peer
// is outside for good; a hazardPointer represents such a segment.
//
// Transfers of the large track do the same with the claim word of their slot, see released.
type hazardPointer struct {
	theirs *sideLines
	gone   func() bool // whether the peer accesses no memory here any more, even if its hazard word is set
}

// Values of the word closed.
const (
	closedNot    = iota
	closedLeft   // disconnected in order
	closedBroken // closed after the connection had broken
)

// guard observes the hazard word in a segment: from before the peer can use it until unguard.
func (c *hostContext) guard(seg *segment, side int, gone func() bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.hazards[seg] = &hazardPointer{theirs: &seg.ctl.side[1-side], gone: gone}
}

// unguard unmaps a segment whose peer is outside. It reports whether no peer can access the released context any more:
// then the caller, who holds mu, calls unpin without it.
func (c *hostContext) unguard(seg *segment) (last bool) {
	delete(c.hazards, seg)
	seg.unmap()
	return c.released && len(c.hazards) == 0
}

// occupied reports whether a peer may be inside the region with this index, whose generation has been changed.
// The caller holds mu.
func (c *hostContext) occupied(index int) bool {
	for _, p := range c.hazards {
		if atomic.LoadUint64(&p.theirs.hazard) == uint64(index)+1 && !p.gone() {
			return true
		}
	}
	return false
}

// abandon closes a connection that was established at the peer but not here. The peer may be inside a region already.
// abandon owns the arguments. If this side may have closed the socket, only the pidfd shows the peer's end.
func (c *hostContext) abandon(seg *segment, side int, peer uint64, proc *process, sock *net.UnixConn, hungUp bool) {
	n := c.newConn(peer)
	n.Init(Name, "", 0, nil, nil)
	n.Close()
	n.side, n.seg, n.proc, n.sock = side, seg, proc, sock
	n.parted.Store(hungUp)
	n.imports.closed = true
	n.mine, n.theirs = &seg.ctl.side[side], &seg.ctl.side[1-side]
	c.guard(seg, side, n.peerGone)
	n.publishClosed(kit.StateUp)
	go n.monitor(sock)
	n.detach(kit.StateUp, sock)
}

// accept sends the segment to the dialer, which may use it from then on, unless the dialer has gone.
func (c *hostContext) accept(a *pendingDialer, seg *segment) error {
	proc, err := peerOf(a.sock)
	if err != nil {
		seg.unmap()
		return resourceError("accept", err)
	}
	c.guard(seg, 0, proc.dead)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if a.over {
		c.unguard(seg)
		proc.close()
		return nil
	}
	a.seg, a.proc = seg, proc
	err = send(a.sock, &message{kind: msgAccept, probe: c.nonceAddr(), nonce: *c.nonce}, seg.fd, c.pageFD, c.regions.fd)
	if err != nil {
		return resourceError("accept", err)
	}
	return nil
}

// abandon gives up what is a connection for the dialer, or soon will be. hungUp: this side may have closed the socket.
func (a *pendingDialer) abandon(c *hostContext, hungUp bool) {
	a.left = true
	c.Mu.Lock()
	hungUp = hungUp || c.IsClosed()
	delete(c.sockets, a.sock)
	c.Mu.Unlock()
	c.abandon(a.seg, 0, a.hello.from, a.proc, a.sock, hungUp)
}

// publishClosed publishes that the peer may not enter regions of this side any more over this connection, which was in
// state old. Afterwards the peer is inside only if its hazard word is set.
func (n *conn) publishClosed(old kit.State) {
	v := uint32(closedLeft)
	if old == kit.StateBroken {
		v = closedBroken
	}
	atomic.StoreUint32(&n.mine.closed, v)
}

// refused returns why this side may not access regions of the peer, whose word closed is c.
func refused(c uint32) error {
	if c == closedBroken {
		return driver.ErrBroken
	}
	return driver.ErrClosed
}

// expired returns why a region has another generation than its key: a peer that closes its context revokes all regions,
// after the word closed; else it has deregistered this one.
func (n *conn) expired() error {
	if c := atomic.LoadUint32(&n.theirs.closed); c != closedNot {
		return refused(c)
	}
	return fmt.Errorf("%w: the region was deregistered", driver.ErrRemoteKey)
}

// peerOutside reports whether the peer is in none of this process's regions, after publishClosed.
func (n *conn) peerOutside() bool {
	return n.toSelf || atomic.LoadUint64(&n.theirs.hazard) == 0 || n.peerGone()
}

// peerGone reports whether the peer will not access memory of this process any more over this connection. There are two
// proofs. The pidfd knows when no thread of the process runs any more. The end of the socket is the other one: a peer
// that lives closes it when none of its calls is inside and none can begin (see monitor and detach), a peer
// that dies when its last thread has ended.
func (n *conn) peerGone() bool { return n.hungUp.Load() || n.proc.dead() }
