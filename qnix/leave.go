//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// This protocol ends a connection so that neither side uses its contexts and tags again while messages to them are
// under way. Its messages are:
//
//	leave   this side sends nothing more, and has sent so many messages and credits
//	over    all that you had sent has come
//
// Each side sends both. It sends leave when its program has disconnected, or when all messages of a peer that left have
// arrived. A connection is retired when both sides have sent both and the program has closed it. It is also retired
// when it was never established, and when the peer's process is gone. If only the link was lost, and comes back, messages
// may still arrive, which the NIC keeps. tags.go describes what happens to their tags.

// progressLeave takes the next step to end a connection, if one is possible. The caller holds ctx.Mu.
func (n *conn) progressLeave() {
	p := n.peer
	switch {
	case n.retiring:
	case n.ctx.failed != nil:
		if n.closed {
			n.retire()
		}
	case p == nil:
		if n.closed && n.api.quiesce() && n.hasAll() {
			n.retire()
		}
	case p.gone != nil:
		if n.closed && !n.fenced {
			n.fenced = true
			n.ctx.afterFence(n.retire) // a send that the NIC reads later would use a context of the next user
		}
	case n.stage == stageUp:
		n.leave()
	case n.stage == stageCalling && n.closed:
		p.unlist(n)
		p.sendControl(&control{kind: kindWithdraw, mine: n.call.number})
		n.retire()
	case n.stage == stageRefused && n.closed:
		n.retire()
	}
}

// hasAll reports whether everything that the peer has sent has arrived.
func (n *conn) hasAll() bool {
	expected, credits := n.expected, n.credits
	if n.peer == nil {
		expected, credits = n.api.counts()
	}
	return n.came.Load() == expected && n.creditsCame.Load() == credits
}

// leave exchanges leave and over for an established connection.
func (n *conn) leave() {
	p := n.peer
	all := n.leaveReceived && n.hasAll()
	if all && !n.closed {
		n.endSending()
	}
	if (n.closed || all && n.State() == kit.StatePeerClosed) && !n.leaveSent && n.api.quiesce() {
		n.leaveSent = true
		m := control{kind: kindLeave, mine: n.call.number, yours: n.theirs.number}
		m.messages, m.credits = n.api.counts()
		p.sendControl(&m)
	}
	if all && n.leaveSent && !n.overSent {
		n.overSent = true
		p.sendControl(&control{kind: kindOver, mine: n.call.number, yours: n.theirs.number})
	}
	if n.overSent && n.overReceived && n.closed {
		n.retire()
	}
}

// retire makes the NIC give up the contexts, which are then free.
func (n *conn) retire() {
	if !n.retiring {
		n.retiring = true
		n.watched.Store(true)
		n.ctx.retirees = append(n.ctx.retirees, n)
		n.ctx.wakeBackground()
	}
}

// hasRetired reports whether the NIC has given up all contexts.
func (n *conn) hasRetired() bool {
	c := n.ctx
	if c.proc.Abandoned() {
		return false // a NIC that is stopped may access them: letGo frees the connection's memory
	}
	for ; n.canceled < n.receives.n; n.canceled++ {
		i := n.receives.at + n.canceled
		if s, _ := c.proc.ReceiveDoorbell(i); s == nic.Pending && c.failed == nil && !c.post(c.proc.CancelReceive(i)) {
			return false
		}
	}
	if c.failed == nil {
		for k := range n.receives.n {
			if s, _ := c.proc.ReceiveDoorbell(n.receives.at + k); s == nic.Pending {
				return false
			}
		}
	}
	if c.failed == nil && !n.api.ended() {
		return false
	}
	for k := range n.sends.n {
		c.proc.FreeSend(n.sends.at + k)
	}
	return true
}

// releaseResources frees the resources of a retired connection.
func (n *conn) releaseResources() {
	c := n.ctx
	c.own(n, nil)
	n.api.settled()
	c.afterFence(func() { c.giveBack(n.sends, n.receives) })
	delete(c.all, n)
	tags := idRange{int(n.call.tags), tagsOf(c.Props.Track, int(n.call.receives))}
	p := n.peer
	if p == nil {
		c.selfTags.put(tags.at, tags.n)
		return
	}
	delete(p.conns, n.call.number)
	if p.gone == nil {
		p.tags.put(tags.at, tags.n)
		return
	}
	if n.stage == stageUp || n.stage == stageJoined {
		p.tags.unclean = append(p.tags.unclean, tags)
	} else {
		p.tags.put(tags.at, tags.n)
	}
	c.workList.addPeer(p) // the background goroutine may remove it now
}

// releaseRetired releases the connections that have retired.
func (c *process) releaseRetired() {
	kept := c.retirees[:0]
	for _, n := range c.retirees {
		if n.hasRetired() {
			n.releaseResources()
		} else {
			kept = append(kept, n)
		}
	}
	clear(c.retirees[len(kept):])
	c.retirees = kept
}

// nicFailed breaks all connections, because the NIC does not answer any more. Any goroutine may call it.
func (c *process) nicFailed(cause error) {
	if c.failing.Swap(true) {
		return
	}
	err := fmt.Errorf("%w: %s: the NIC has ended or failed: %w", driver.ErrBroken, c.Props.Device, cause)
	go func() { // the caller may hold locks that this needs
		c.Mu.Lock()
		defer c.Mu.Unlock()
		if c.failed = err; c.IsClosed() {
			return
		}
		for n := range c.all {
			n.Fail(err)
			n.progressLeave()
		}
		c.wakeBackground()
	}()
}
