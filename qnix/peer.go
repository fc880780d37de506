//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// maxTags is one more than the last context tag.
const maxTags = nic.MaxTag + 1

// maxCalls is the most calls of a peer that may wait for calls of this side.
const maxCalls = 4096

// maxWaiting is the most control messages that may wait for a peer.
const maxWaiting = 1 << 16

// maxLost is the most lost peers whose tags are kept.
const maxLost = 4096

// peer is another process, with all connections to it. Control messages are sent one at a time. The NIC keeps messages
// that have no receive yet, so this side can call before the peer does. ctx.Mu guards all fields but lost.
type peer struct {
	ctx           *process
	incarnation   uint64
	near          bool // at the same NIC: it cannot come back once it is gone
	name          nic.Name
	send, receive int // contexts for control messages
	tags          peerTags
	cleaner       cleaner
	conns         map[uint32]*conn // by this side's call
	mine          []*conn          // calls of this side that are not joined, oldest first
	theirs        []call           // calls of the peer that are not joined
	out           [][]byte         // control messages to be sent
	sending       bool             // the first of them is on its way
	lost          atomic.Bool      // a doorbell of a connection rang that the peer is gone: lose is to be called
	gone          error            // why the process has ended, or nil
	rearm         bool             // the receive must be posted
	stopped       bool             // its cancel was posted after the peer was gone
}

// peerOf returns the peer at the NIC with number at. It makes the peer if necessary. The caller holds mu.
func (c *process) peerOf(incarnation uint64, at uint16) (*peer, error) {
	if p := c.peers[incarnation]; p != nil {
		return p, nil
	}
	p := &peer{
		ctx: c, incarnation: incarnation, name: processName(incarnation, c.Props.Track),
		near: at == c.place.nic, conns: make(map[uint32]*conn), rearm: true,
	}
	var ok1, ok2 bool
	p.send, ok1 = c.sends.take(1)
	p.receive, ok2 = c.receives.take(2)
	if !ok1 || !ok2 {
		c.giveBack(idRange{p.send, btoi(ok1)}, idRange{p.receive, 2 * btoi(ok2)})
		return nil, c.noContexts()
	}
	p.cleaner.receive = p.receive + 1
	p.refer(ref{peer: p})
	c.peers[incarnation] = p
	p.tags, ok1 = c.lost[incarnation]
	if !ok1 {
		p.tags.idAllocator = newIDAllocator(controlTag+1, maxTags-controlTag-1)
	}
	delete(c.lost, incarnation)
	p.receiveControl()
	return p, nil
}

// refer assigns the peer's contexts to r.
func (p *peer) refer(r ref) {
	b := &p.ctx.doorbells
	b.mustLock()
	defer b.unlock()
	b.sends[p.send], b.receives[p.receive], b.receives[p.cleaner.receive] = r, r, r
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sendControl sends a control message after those that wait. A peer for which too many wait loses its connections, and
// the message: it asks without reading the answers, or stands still.
func (p *peer) sendControl(m *control) {
	switch {
	case p.gone != nil:
	case len(p.out) >= maxWaiting:
		p.misbehaved(fmt.Errorf("%d control messages wait for it", len(p.out)))
	default:
		p.out = append(p.out, m.append(nil))
		p.flush()
	}
}

// flush sends the next control message if the last one was received.
func (p *peer) flush() {
	c := p.ctx
	s, _ := c.proc.SendDoorbell(p.send)
	if p.sending && s == nic.Done {
		p.out, p.sending = p.out[1:], false
	}
	if len(p.out) == 0 || s != nic.Free && s != nic.Done {
		return
	}
	n := copy(c.proc.SendRegion(p.send), p.out[0])
	p.sending = c.post(c.proc.SendShort(p.send, p.name, controlTag, n))
}

// step is called by the background goroutine. It checks both doorbells and does all that is possible.
func (p *peer) step() {
	c := p.ctx
	if c.peers[p.incarnation] != p {
		return // it was forgotten
	}
	for p.receiveControl() {
	}
	if p.lost.Swap(false) {
		c.afterFence(p.lose)
	}
	s, _ := c.proc.SendDoorbell(p.send)
	switch s {
	case nic.Pending:
		return
	case nic.Free, nic.Done:
	case nic.NoMemory: // of the NIC, for this process: the message is sent again
		c.proc.FreeSend(p.send)
		p.sending = false
		c.retry.Store(true)
		return
	default:
		p.died(c.doorbellError(s))
		c.proc.FreeSend(p.send)
	}
	p.clean()
	if p.gone == nil {
		p.flush()
		return
	}
	// If the link has come back before the receive was posted, nothing else ends it.
	r, _ := c.proc.ReceiveDoorbell(p.receive)
	if r == nic.Pending && !p.stopped {
		p.stopped = c.post(c.proc.CancelReceive(p.receive))
	}
	if len(p.conns) == 0 && r != nic.Pending && !p.cleaner.posted {
		p.forget()
	}
}

// receiveControl handles one control message, and reports whether there was one.
func (p *peer) receiveControl() bool {
	c := p.ctx
	if p.gone == nil && !p.rearm {
		switch s, n := c.proc.ReceiveDoorbell(p.receive); s {
		case nic.Pending:
			return false
		case nic.Done:
			p.take(c.proc.ReceiveRegion(p.receive)[:n])
		case nic.Truncated:
			p.misbehaved(fmt.Errorf("%w: %d bytes", errMalformed, n))
		default:
			p.died(c.doorbellError(s))
		}
		p.rearm = true
	}
	if p.gone != nil {
		return false
	}
	p.rearm = !c.post(c.proc.ReceiveShort(p.receive, p.name, controlTag, controlMax))
	return !p.rearm
}

// lose handles the loss of the peer that a connection has found, after the messages from before the loss: if the NIC has
// one for the posted receive, its doorbell has rung, because a fence was posted after the receive.
func (p *peer) lose() {
	switch {
	case p.receiveControl() || p.gone == nil && p.rearm:
		p.ctx.afterFence(p.lose)
	case p.gone == nil:
		p.died(p.ctx.doorbellError(nic.Gone))
		p.ctx.workList.addPeer(p)
	}
}

// died breaks all connections to the peer.
func (p *peer) died(err error) {
	if p.gone != nil {
		return
	}
	p.gone, p.out, p.sending, p.mine, p.theirs, p.cleaner.begun = err, nil, false, nil, nil, false
	for _, n := range p.conns {
		n.Fail(err)
		if n.closed {
			n.progressLeave()
		}
	}
}

// forget removes a peer that is gone.
func (p *peer) forget() {
	c := p.ctx
	delete(c.peers, p.incarnation)
	if len(p.tags.unclean) > 0 && !p.near {
		if len(c.lost) >= maxLost {
			for k := range c.lost { // any other: hardly one of so many comes back
				delete(c.lost, k)
				break
			}
		}
		c.lost[p.incarnation] = p.tags
	}
	p.refer(ref{})
	c.afterFence(func() { c.giveBack(idRange{p.send, 1}, idRange{p.receive, 2}) })
}

// misbehaved breaks all connections to the peer, because the control channel cannot be trusted any more.
func (p *peer) misbehaved(err error) {
	p.ctx.bad.Add(1)
	sentinel := driver.ErrBroken
	if errors.Is(err, driver.ErrVersion) {
		sentinel = driver.ErrVersion
	}
	err = fmt.Errorf("%w: %s: the peer violated the protocol: %w", sentinel, p.ctx.Props.Device, err)
	for _, n := range p.conns {
		n.Fail(err)
	}
}

// take handles a control message.
func (p *peer) take(b []byte) {
	var m control
	if err := m.parse(b); err != nil {
		p.misbehaved(err)
		return
	}
	switch m.kind {
	case kindCall:
		p.called(&m.call)
		return
	case kindWithdraw:
		p.withdrawn(m.mine)
		return
	}
	n := p.conns[m.yours]
	if m.kind == kindJoin {
		p.joined(n, &m)
		return
	}
	established := n != nil && n.stage == stageUp && n.theirs.number == m.mine
	if n == nil || !established && m.kind != kindRefuse && m.kind != kindWelcome {
		p.ctx.bad.Add(1)
		return
	}
	switch m.kind {
	case kindWelcome:
		n.welcomed(&m)
	case kindRefuse:
		n.refused(m.reason)
	case kindLeave:
		n.expected, n.credits, n.leaveReceived = m.messages, m.credits, true
		n.watched.Store(true)
	case kindOver:
		n.overReceived = true
	case kindRevoke:
		n.api.revoke(&m)
	case kindRevoked:
		n.api.revoked(&m)
	}
	n.progressLeave()
}

// dials reports whether this side joins calls. The other side verifies the proof first.
func (p *peer) dials() bool { return p.ctx.Incarnation < p.incarnation }

// called handles a call of the peer.
func (p *peer) called(c *call) {
	if c.from != p.incarnation || c.to != p.ctx.Incarnation || c.track != p.ctx.Props.Track || len(p.theirs) == maxCalls {
		r := refusedStale
		if c.track != p.ctx.Props.Track {
			r = refusedTrack
		}
		p.sendControl(&control{kind: kindRefuse, yours: c.number, reason: r})
		return
	}
	p.theirs = append(p.theirs, *c)
	p.join()
}

// join joins the oldest calls of both sides.
func (p *peer) join() {
	for p.dials() && len(p.mine) > 0 && len(p.theirs) > 0 {
		n := p.mine[0]
		n.theirs = p.theirs[0]
		p.mine, p.theirs = p.mine[1:], p.theirs[1:]
		n.stage = stageJoined
		n.api.prepare()
		mac := p.ctx.key.MAC(dialerProof, proven(&n.call, &n.theirs)...)
		p.sendControl(&control{kind: kindJoin, mine: n.call.number, yours: n.theirs.number, mac: mac})
	}
}

// joined handles, as listener, the message that the peer has joined two calls. If this side has withdrawn its call
// meanwhile, the peer joins its call to another. A call from before the link was lost may have waited at the peer's NIC:
// this side has forgotten it, and withdraws it now.
func (p *peer) joined(n *conn, m *control) {
	k := p.waiting(m.mine)
	if p.dials() || k < 0 {
		p.ctx.bad.Add(1)
		return
	}
	if n == nil {
		p.sendControl(&control{kind: kindWithdraw, mine: m.yours})
		return
	}
	if n.stage != stageCalling || n.closed {
		return
	}
	theirs := p.theirs[k]
	p.theirs = slices.Delete(p.theirs, k, k+1)
	p.unlist(n)
	n.theirs = theirs
	signed := proven(&n.theirs, &n.call)
	if !p.ctx.key.Check(m.mac[:], dialerProof, signed...) {
		p.sendControl(&control{kind: kindRefuse, mine: n.call.number, yours: theirs.number, reason: refusedSecret})
		n.refused(refusedSecret)
		return
	}
	n.stage, p.cleaner.begun = stageUp, true
	n.api.prepare()
	n.Resolve(kit.StateUp, nil)
	mac := p.ctx.key.MAC(listenerProof, signed...)
	p.sendControl(&control{kind: kindWelcome, mine: n.call.number, yours: theirs.number, mac: mac})
}

// unlist removes a call from those that wait.
func (p *peer) unlist(n *conn) {
	p.mine = slices.DeleteFunc(p.mine, func(x *conn) bool { return x == n })
}

// waiting returns the place of a call of the peer that waits, or -1.
func (p *peer) waiting(number uint32) int {
	return slices.IndexFunc(p.theirs, func(c call) bool { return c.number == number })
}

// withdrawn handles the message that the peer has given up a call.
func (p *peer) withdrawn(number uint32) {
	if k := p.waiting(number); k >= 0 {
		p.theirs = slices.Delete(p.theirs, k, k+1)
		return
	}
	for _, n := range p.conns {
		if n.stage != stageJoined || n.theirs.number != number {
			continue
		}
		n.stage = stageCalling // it waits again, at its old place
		if n.closed {
			n.progressLeave()
			return
		}
		k := 0
		for k < len(p.mine) && p.mine[k].call.number < n.call.number {
			k++
		}
		p.mine = slices.Insert(p.mine, k, n)
		p.join()
		return
	}
}

// welcomed handles, as dialer, the listener's agreement.
func (n *conn) welcomed(m *control) {
	if n.stage != stageJoined || n.theirs.number != m.mine {
		n.ctx.bad.Add(1)
		return
	}
	if !n.ctx.key.Check(m.mac[:], listenerProof, proven(&n.call, &n.theirs)...) {
		n.peer.sendControl(&control{kind: kindRefuse, mine: n.call.number, yours: n.theirs.number, reason: refusedSecret})
		n.refused(refusedSecret)
		return
	}
	n.stage, n.peer.cleaner.begun = stageUp, true
	if !n.closed {
		n.Resolve(kit.StateUp, nil)
	}
}

// refused handles the peer's refusal of a connection.
func (n *conn) refused(r reason) {
	var err error
	switch r {
	case refusedSecret:
		n.ctx.refusals.Add(1)
		err = fmt.Errorf("%w: the session secrets differ", driver.ErrAuth)
	case refusedTrack:
		err = fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	case refusedStale:
		err = fmt.Errorf("%w: the peer process was restarted, or has too many pending connection requests", driver.ErrBroken)
	default:
		err = fmt.Errorf("%w: the peer refused the connection (reason %d)", driver.ErrBroken, uint32(r))
	}
	n.peer.unlist(n)
	if n.stage != stageUp { // else the NIC may have messages of it: the connection ends like any other
		n.stage = stageRefused
	}
	n.Fail(err)
}
