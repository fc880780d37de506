package qnix

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// Posted implements kit.LargeHooks.
func (l *large) Posted(sending bool) int {
	if sending {
		return l.sending
	}
	return l.used
}

// Holds implements kit.LargeHooks.
func (l *large) Holds(p *driver.Packet, sending bool) bool {
	k := p.Driver.Slot
	if sending {
		return k < transferDepth && l.out[k].p == p
	}
	return k < transferDepth && l.in[k].p == p
}

// Lingers implements kit.Lingerer.
func (l *large) Lingers(p *driver.Packet, sending bool) bool {
	if !sending {
		return l.Holds(p, false) && !l.in[p.Driver.Slot].released.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Holds(p, true) {
		return false
	}
	s := &l.out[p.Driver.Slot]
	state, _ := s.bell.read()
	return state == nic.Pending && !s.released.Load()
}

// Progress implements kit.LargeHooks.
func (l *large) Progress(p *driver.Packet, sending bool) {
	if sending {
		l.progressSend(int(p.Driver.Slot))
	} else {
		l.progressRecv(int(p.Driver.Slot))
	}
}

// StartRecv implements kit.LargeHooks.
func (l *large) StartRecv(p *driver.Packet, n int) error {
	k, ok := l.freeReceive()
	if !ok {
		return driver.ErrBusy
	}
	s := &l.in[k]
	if err := l.acquire(&s.memory, p, n, k, nic.Write); err != nil {
		return err
	}
	m := nic.Message{
		Peer: l.name, Tag: transferTag(l.call.tags, k, s.gen+1), Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors(),
	}
	s.bell.reset()
	if !l.posted(l.ctx.proc.Post(nic.Receive, l.receives.at+k, &m)) {
		l.release(&s.memory)
		return driver.ErrBusy
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

// freeReceive finds a free slot whose next tag does not rest.
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

// progressRecv handles the doorbell of a receive.
func (l *large) progressRecv(k int) {
	s := &l.in[k]
	state, n := s.bell.read()
	if state == nic.Pending {
		if l.settle(); l.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endReceive(k, l.Failure("receive"))
			return
		}
		if l.State() != kit.StateUp || s.p.Driver.Phase == driver.Canceling {
			l.cancelReceive(k)
		}
		if state, n = s.bell.read(); state == nic.Pending {
			return
		}
	}
	l.receiveRang(k, state, n)
}

// receiveRang completes a receive with the result of its doorbell.
func (l *large) receiveRang(k int, state nic.State, n int) {
	s := &l.in[k]
	p := s.p
	switch state {
	case nic.Done, nic.Truncated:
		var err error
		p.N = min(n, s.length)
		if state == nic.Truncated {
			p.N = s.length
			err = &driver.TruncatedError{Message: n, Buffer: s.length}
			l.Tally.Truncated.Add(1)
		}
		s.memory.scatter(p)
		l.Tally.Received.Add(1)
		l.Tally.BytesReceived.Add(uint64(p.N))
		l.endReceive(k, err)
	case nic.Canceled:
		err := l.Failure("receive")
		if err == nil {
			l.rest(k, s.gen)
			l.Tally.Canceled.Add(1)
			err = driver.ErrCanceled
		}
		l.endReceive(k, err)
	default:
		if err := l.Failure("receive"); err != nil {
			l.endReceive(k, err)
		} // otherwise the drainer is about to record the reason
	}
}

// endReceive completes a receive.
func (l *large) endReceive(k int, err error) {
	s := &l.in[k]
	l.release(&s.memory)
	s.p.Driver.Finish(err)
	s.p = nil
	l.used--
}

// CancelRecv implements kit.LargeHooks.
func (l *large) CancelRecv(p *driver.Packet) {
	k := int(p.Driver.Slot)
	if state, _ := l.in[k].bell.read(); state == nic.Pending {
		l.cancelReceive(k)
	}
}

// StartSend implements kit.LargeHooks.
func (l *large) StartSend(p *driver.Packet, n int) error {
	k := 0
	for l.out[k].p != nil {
		k++
	}
	s := &l.out[k]
	if err := s.rdv.parse(p.RdvData, &l.theirs); err != nil {
		return err
	}
	if err := l.acquire(&s.memory, p, n, transferDepth+k, nic.Read); err != nil {
		return err
	}
	s.memory.gather(p)
	s.length, s.asked = n, false
	before, err := l.claim(k, p)
	if err != nil {
		l.release(&s.memory)
		return err
	}
	m := nic.Message{Peer: l.name, Tag: s.rdv.tag, Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors()}
	s.bell.reset()
	if !l.posted(l.ctx.proc.Post(nic.Send, l.sends.at+k, &m)) {
		l.unclaim(k, before)
		l.release(&s.memory)
		return driver.ErrBusy
	}
	l.launched(k)
	l.kick()
	l.sending++
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(k)}
	return nil
}

// progressSend handles the doorbell of a send.
func (l *large) progressSend(k int) {
	s := &l.out[k]
	p := s.p
	state, _ := s.bell.read()
	if state == nic.Pending {
		if l.settle(); l.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endSend(k, state, l.Failure("send"))
			return
		}
		if state, _ = s.bell.read(); state == nic.Pending {
			if l.State() != kit.StateUp {
				l.mu.Lock()
				l.cancelSend(k)
				l.mu.Unlock()
			}
			return
		}
	}
	var err error
	switch state {
	case nic.Done:
		p.N = s.length
		l.Sent(p.N)
	case nic.Canceled:
		if err = l.Failure("send"); err == nil {
			err = l.Fault("send", fmt.Errorf("%w: the peer has cancelled the receive", driver.ErrCanceled))
		}
	default:
		if err = l.Failure("send"); err == nil {
			return // the drainer is about to record the reason
		}
	}
	l.endSend(k, state, err)
}

// endSend completes a send.
func (l *large) endSend(k int, state nic.State, err error) {
	s := &l.out[k]
	p := s.p
	l.release(&s.memory)
	l.unlaunch(k, state)
	l.sending--
	p.Driver.Finish(err)
}
