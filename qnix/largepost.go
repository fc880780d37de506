package qnix

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// admit checks that a packet can be posted, with so many posted already, and returns the length of its memory.
func (l *large) admit(p *driver.Packet, op string, posted int) (int, error) {
	n, err := l.life.Admit(op, p, l.ctx.props.Capabilities.MaxMessage)
	if err == nil && posted == transferDepth {
		err = l.life.Busy()
	}
	return n, err
}

// RecvPost implements driver.Instance.
func (l *large) RecvPost(p *driver.Packet) error {
	if !l.life.Enter() {
		return l.life.Failure("receive")
	}
	defer l.life.Leave()
	n, err := l.admit(p, "receive", l.used)
	if err != nil {
		return err
	}
	k, ok := l.freeReceive()
	if !ok {
		return l.life.Busy()
	}
	s := &l.in[k]
	if err := l.acquire(&s.memory, p, n, k, nic.Write); err != nil {
		return l.life.Fault("receive", err)
	}
	m := nic.Message{
		Peer: l.name, Tag: transferTag(l.call.tags, k, s.gen+1), Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors(),
	}
	s.bell.reset()
	if !l.posted(l.ctx.proc.Post(nic.Receive, l.receives.at+k, &m)) {
		l.release(&s.memory)
		return l.life.Busy()
	}
	l.kick()
	s.gen++
	s.p, s.length, s.asked = p, n, false
	l.next, l.used = k+1, l.used+1
	rdv := rdvData{token: l.call.token, length: n, gen: s.gen, slot: k, tag: m.Tag}
	rdv.encode(&s.rdv)
	p.RdvData = s.rdv[:]
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(k)}
	return nil
}

// freeReceive finds a slot whose next tag does not rest.
func (l *large) freeReceive() (k int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for j := range transferDepth {
		k = (l.next + j) % transferDepth
		if s := &l.in[k]; s.p == nil && !l.rests(k, s.gen+1) {
			return k, true
		}
	}
	return 0, false
}

// RecvPoll implements driver.Instance.
func (l *large) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	k := int(p.Driver.Slot)
	if !l.life.Enter() {
		s := &l.in[k%transferDepth]
		if l.life.State() == kit.StateClosed && p.Driver.Phase != driver.Idle && s.p == p && !s.released.Load() {
			return false, nil // the NIC has not let go of the memory
		}
		return l.life.Over(p, "receive")
	}
	defer l.life.Leave()
	if p.Driver.Phase != driver.Posted && p.Driver.Phase != driver.Canceling || k >= transferDepth || l.in[k].p != p {
		return true, l.life.Misuse("receive poll", p)
	}
	s := &l.in[k]
	state, n := s.bell.read()
	if state == nic.Pending {
		if l.settle(); l.life.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endReceive(k, l.life.Failure("receive"))
			return p.Driver.Outcome()
		}
		if l.life.State() != kit.StateUp || p.Driver.Phase == driver.Canceling {
			l.cancelReceive(k)
		}
		if state, n = s.bell.read(); state == nic.Pending {
			return false, nil
		}
	}
	return l.receiveRang(k, state, n)
}

// receiveRang ends a receive as its doorbell says.
func (l *large) receiveRang(k int, state nic.State, n int) (bool, error) {
	s := &l.in[k]
	p := s.p
	switch state {
	case nic.Done, nic.Truncated:
		var err error
		p.N = min(n, s.length)
		if state == nic.Truncated {
			p.N = s.length
			err = &driver.TruncatedError{Message: n, Buffer: s.length}
			l.life.Tally.Truncated.Add(1)
		}
		s.memory.scatter(p)
		l.life.Tally.Received.Add(1)
		l.life.Tally.BytesReceived.Add(uint64(p.N))
		l.endReceive(k, err)
	case nic.Canceled:
		err := l.life.Failure("receive")
		if err == nil {
			l.rest(k, s.gen)
			l.life.Tally.Canceled.Add(1)
			err = driver.ErrCanceled
		}
		l.endReceive(k, err)
	default:
		err := l.life.Failure("receive")
		if err == nil {
			return false, nil // who drains says why in a moment
		}
		l.endReceive(k, err)
	}
	return p.Driver.Outcome()
}

// endReceive gives a receive back to its owner.
func (l *large) endReceive(k int, err error) {
	s := &l.in[k]
	l.release(&s.memory)
	s.p.Driver.Finish(err)
	s.p = nil
	l.used--
}

// RecvCancel implements driver.Instance.
func (l *large) RecvCancel(p *driver.Packet) error {
	if posted, err := l.life.EnterCancel(p); !posted {
		return err
	}
	defer l.life.Leave()
	k := int(p.Driver.Slot)
	if k >= transferDepth || l.in[k].p != p {
		return l.life.Fault("cancel", fmt.Errorf("%w: the packet is not posted on this instance", driver.ErrInvalid))
	}
	p.Driver.Phase = driver.Canceling
	if state, _ := l.in[k].bell.read(); state == nic.Pending {
		l.cancelReceive(k)
	}
	return nil
}

// SendPost implements driver.Instance.
func (l *large) SendPost(p *driver.Packet) error {
	if !l.life.Enter() {
		return l.life.Failure("send")
	}
	defer l.life.Leave()
	n, err := l.admit(p, "send", l.sending)
	if err != nil {
		return err
	}
	k := 0
	for l.out[k].p != nil {
		k++
	}
	s := &l.out[k]
	if err := s.rdv.parse(p.RdvData, &l.theirs); err != nil {
		return l.life.Fault("send", err)
	}
	if err := l.acquire(&s.memory, p, n, transferDepth+k, nic.Read); err != nil {
		return l.life.Fault("send", err)
	}
	s.memory.gather(p)
	s.length, s.asked = n, false
	before, err := l.claim(k, p)
	if err != nil {
		l.release(&s.memory)
		return l.life.Fault("send", err)
	}
	m := nic.Message{Peer: l.name, Tag: s.rdv.tag, Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors()}
	s.bell.reset()
	if !l.posted(l.ctx.proc.Post(nic.Send, l.sends.at+k, &m)) {
		l.unclaim(k, before)
		l.release(&s.memory)
		return l.life.Busy()
	}
	l.launched(k)
	l.kick()
	l.sending++
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(k)}
	return nil
}

// SendPoll implements driver.Instance.
func (l *large) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.life.Enter() {
		if l.holdsSend(p) {
			return false, nil
		}
		return l.life.Over(p, "send")
	}
	defer l.life.Leave()
	k := int(p.Driver.Slot)
	if p.Driver.Phase != driver.Posted || k >= transferDepth || l.out[k].p != p {
		return true, l.life.Misuse("send poll", p)
	}
	s := &l.out[k]
	state, _ := s.bell.read()
	if state == nic.Pending {
		if l.settle(); l.life.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endSend(k, state, l.life.Failure("send"))
			return p.Driver.Outcome()
		}
		if state, _ = s.bell.read(); state == nic.Pending {
			if l.life.State() != kit.StateUp {
				l.mu.Lock()
				l.cancelSend(k)
				l.mu.Unlock()
			}
			return false, nil
		}
	}
	var err error
	switch state {
	case nic.Done:
		p.N = s.length
		l.life.Sent(p.N)
	case nic.Canceled:
		if err = l.life.Failure("send"); err == nil {
			err = l.life.Fault("send", fmt.Errorf("%w: the peer has cancelled the receive", driver.ErrCanceled))
		}
	default:
		if err = l.life.Failure("send"); err == nil {
			return false, nil // who drains says why in a moment
		}
	}
	l.endSend(k, state, err)
	return p.Driver.Outcome()
}

// endSend gives a send back to its owner.
func (l *large) endSend(k int, state nic.State, err error) {
	s := &l.out[k]
	p := s.p
	l.release(&s.memory)
	l.unlaunch(k, state)
	l.sending--
	p.Driver.Finish(err)
}
