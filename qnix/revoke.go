//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"
	"slices"
	"sync"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// Cancelling a receive of the large track takes a message to the peer's driver.
//
// When the NIC has cancelled a receive, nothing writes to its memory any more. But the peer may still have the rdv
// data, and the NIC keeps a message to a tag without a receive for the next receive with that tag. So the tag rests,
// and this side sends revoke to the peer. The peer cancels its send, if there is one, or refuses to send later, and
// answers revoked, which reports whether it has sent. If it has, a receive without room, the sink, takes the message.
// The peer's program takes no part, and the program here does not wait.

// revocation is the state of cancelling that the owner and the background goroutine share. Each holds mu only briefly.
type revocation struct {
	mu      sync.Mutex
	resting [transferDepth]uint8 // tags that rest, by generation
	toSend  []rest               // cancelled receives whose revoke must be sent to the peer
	strays  []rest               // messages that were sent, for the sink to take
	sinking bool
	drained doorbell             // doorbell of the sink
	claims  [transferDepth]claim // the peer's receive slots
}

// rest is a receive that was cancelled.
type rest struct {
	slot int
	gen  uint32
}

// claim is the state of a receive slot of the peer.
type claim struct {
	used    uint32           // generation of the latest rdv data that was used
	revoked uint32           // generation of the latest rdv data that was revoked
	done    [tagsEach]uint32 // generations whose messages were sent
}

// after reports whether generation a is later than b.
func after(a, b uint32) bool { return int32(a-b) > 0 }

// rests reports whether the tag of a slot's next generation rests.
func (r *revocation) rests(slot int, gen uint32) bool {
	return r.resting[slot]&(1<<(gen%tagsEach)) != 0
}

// rest begins to revoke a receive that was cancelled.
func (l *large) rest(slot int, gen uint32) {
	l.mu.Lock()
	l.resting[slot] |= 1 << (gen % tagsEach)
	l.toSend = append(l.toSend, rest{slot, gen})
	l.mu.Unlock()
	l.ctx.schedule(&l.conn)
}

// sendControl sends a control message. On a connection to this context it handles the message.
func (l *large) sendControl(m *control) {
	switch {
	case l.peer != nil:
		m.mine, m.yours = l.call.number, l.theirs.number
		l.peer.sendControl(m)
	case m.kind == kindRevoke:
		l.revoke(m)
	default:
		l.revoked(m)
	}
}

// claim records that the send in slot k uses its rdv data. It returns an error if the rdv data was used before, or the
// receive was cancelled.
func (l *large) claim(k int) (before uint32, err error) {
	s := &l.out[k]
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.claims[s.rdv.slot]
	switch {
	case !after(s.rdv.gen, c.revoked):
		return 0, fmt.Errorf("%w: the peer has cancelled the receive", driver.ErrCanceled)
	case !after(s.rdv.gen, c.used):
		return 0, fmt.Errorf("%w: rdv data that was used before", driver.ErrInvalid)
	}
	if s.rdv.gen-c.revoked > 1<<30 {
		c.revoked = s.rdv.gen - 1 // a generation that is 2³¹ ahead would seem to be behind
	}
	before, c.used = c.used, s.rdv.gen
	s.busy, s.revoke = true, false
	return before, nil
}

// unclaim undoes claim after a post that failed.
func (l *large) unclaim(k int, before uint32) {
	s := &l.out[k]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims[s.rdv.slot].used = before
	s.busy = false
	if s.revoke { // the background goroutine answers
		s.revoke = false
		l.toSend = append(l.toSend, rest{^s.rdv.slot, s.rdv.gen})
		l.ctx.schedule(&l.conn)
	}
}

// launched cancels a send that was revoked while it was being posted.
func (l *large) launched(k int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := &l.out[k]; s.revoke {
		s.asked = false // a command before the post had no effect
		if l.cancelSend(k); !s.asked {
			l.ctx.schedule(&l.conn) // the Command Queue is full
		}
	}
}

// unlaunch frees a slot whose doorbell has rung.
func (l *large) unlaunch(k int, state nic.State) {
	s := &l.out[k]
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.claims[s.rdv.slot]
	if state == nic.Done {
		c.done[s.rdv.gen%tagsEach] = s.rdv.gen
	}
	s.busy = false
	if s.revoke {
		s.revoke = false
		l.toSend = append(l.toSend, rest{^s.rdv.slot, s.rdv.gen})
		l.ctx.schedule(&l.conn)
	}
}

// revoke implements track. It handles the message that the peer has cancelled a receive.
func (l *large) revoke(m *control) {
	l.mu.Lock()
	c := &l.claims[m.slot]
	if after(m.gen, c.revoked) {
		c.revoked = m.gen
	}
	for k := range l.out {
		if s := &l.out[k]; s.busy && s.rdv.slot == int(m.slot) && s.rdv.gen == m.gen {
			s.revoke = true
			l.watched.Store(true)
			l.cancelSend(k)
			l.mu.Unlock()
			l.ctx.schedule(&l.conn)
			return
		}
	}
	sent := c.done[m.gen%tagsEach] == m.gen
	l.mu.Unlock()
	l.sendControl(&control{kind: kindRevoked, slot: m.slot, gen: m.gen, sent: sent})
}

// revoked implements track. It handles the peer's answer for a receive that was cancelled.
func (l *large) revoked(m *control) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.rests(int(m.slot), m.gen) || len(l.strays) >= transferDepth*tagsEach {
		l.ctx.bad.Add(1)
		return
	}
	if !m.sent {
		l.resting[m.slot] &^= 1 << (m.gen % tagsEach)
		return
	}
	stray := rest{int(m.slot), m.gen}
	if slices.Contains(l.strays, stray) {
		l.ctx.bad.Add(1)
		return
	}
	l.strays = append(l.strays, stray)
	l.watched.Store(true)
	l.ctx.schedule(&l.conn)
}

// sendRevocations is called by the background goroutine to send all messages that are due.
func (l *large) sendRevocations() {
	for _, m := range l.dueRevocations() {
		l.sendControl(&m)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sink()
	busy := l.closed || l.leaveReceived || l.sinking || len(l.strays) > 0
	for k := range l.out {
		s := &l.out[k]
		if state, _ := s.doorbell.read(); s.revoke && state == nic.Pending {
			l.cancelSend(k) // unless that is done
		}
		busy = busy || s.revoke
	}
	l.watched.Store(busy)
}

// dueRevocations returns the control messages to be sent.
func (l *large) dueRevocations() (list []control) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.toSend {
		m := control{kind: kindRevoke, slot: uint32(r.slot), gen: r.gen}
		if r.slot < 0 { // an answer
			slot := ^r.slot
			m = control{kind: kindRevoked, slot: uint32(slot), gen: r.gen, sent: l.claims[slot].done[r.gen%tagsEach] == r.gen}
		}
		list = append(list, m)
	}
	l.toSend = l.toSend[:0]
	for k := range l.out {
		s := &l.out[k]
		if state, _ := s.doorbell.read(); s.revoke && state.Rung() {
			s.revoke = false
			list = append(list, control{kind: kindRevoked, slot: uint32(s.rdv.slot), gen: s.rdv.gen, sent: state == nic.Done})
		}
	}
	return list
}

// sink receives messages that were sent to resting tags, one after the other. The caller holds mu.
func (l *large) sink() {
	if l.sinking {
		if state, _ := l.drained.read(); state == nic.Pending {
			return
		}
		r := l.strays[0]
		l.strays, l.sinking = l.strays[1:], false
		l.resting[r.slot] &^= 1 << (r.gen % tagsEach)
	}
	if len(l.strays) == 0 || l.retiring {
		return
	}
	r := l.strays[0]
	m := nic.Message{Peer: l.name, Tag: transferTag(l.call.tags, r.slot, r.gen), Flags: nic.Doorbell | nic.Inline}
	l.drained.reset()
	l.sinking = l.ctx.post(l.ctx.proc.Post(nic.Receive, l.receives.at+transferDepth, &m))
}
