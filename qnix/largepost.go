//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

func (l *large) InFlight(p *driver.Packet, sending bool) bool {
	if !sending {
		return l.Receives.Holds(p) && !l.in[p.Driver.Slot].released.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Sends.Holds(p) {
		return false
	}
	s := &l.out[p.Driver.Slot]
	state, _ := s.doorbell.read()
	return state == nic.Pending && !s.released.Load()
}

func (l *large) Progress(p *driver.Packet, sending bool) {
	if sending {
		l.progressSend(int(p.Driver.Slot))
	} else {
		l.progressRecv(int(p.Driver.Slot))
	}
}

func (l *large) StartRecv(p *driver.Packet, n int) (slot int, err error) {
	k, ok := l.freeReceive()
	if !ok {
		return 0, driver.ErrBusy
	}
	s := &l.in[k]
	if err := l.acquire(&s.memory, p, n, k, nic.Write); err != nil {
		return 0, err
	}
	m := nic.Message{
		Peer: l.name, Tag: transferTag(l.call.tags, k, s.gen+1), Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors(),
	}
	s.doorbell.reset()
	if !l.posted(l.ctx.proc.Post(nic.Receive, l.receives.at+k, &m)) {
		l.release(&s.memory)
		return 0, driver.ErrBusy
	}
	l.ahead.Forget(p)
	l.ctx.kick()
	s.gen++
	s.length, s.asked, l.next = n, false, k+1
	rdv := rdvData{token: l.call.token, length: n, gen: s.gen, slot: k, tag: m.Tag}
	rdv.encode(&s.rdv)
	p.RdvData = s.rdv[:]
	return k, nil
}

// freeReceive finds a free slot whose next tag can be used again.
func (l *large) freeReceive() (k int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for j := range transferDepth {
		k = (l.next + j) % transferDepth
		if l.Receives.At(k) == nil && !l.rests(k, l.in[k].gen+1) {
			return k, true
		}
	}
	return 0, false
}

// progressRecv handles the doorbell of a receive.
func (l *large) progressRecv(k int) {
	s := &l.in[k]
	state, n := s.doorbell.read()
	if state == nic.Pending {
		if l.settle(); l.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endReceive(k, l.Failure("receive"))
			return
		}
		if l.State() != kit.StateUp || l.Receives.At(k).Driver.Phase == driver.Canceling {
			l.cancelReceive(k)
		}
		if state, n = s.doorbell.read(); state == nic.Pending {
			return
		}
	}
	l.receiveRang(k, state, n)
}

// receiveRang completes a receive with the result of its doorbell.
func (l *large) receiveRang(k int, state nic.State, n int) {
	s := &l.in[k]
	switch state {
	case nic.Done, nic.Truncated:
		err := l.Received(k, n, s.length)
		s.memory.scatter(l.Receives.At(k))
		l.endReceive(k, err)
	case nic.Canceled:
		err := l.Failure("receive")
		if err == nil {
			l.rest(k, s.gen)
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
	l.release(&l.in[k].memory)
	l.EndRecv(k, err)
}

func (l *large) CancelRecv(p *driver.Packet) {
	k := int(p.Driver.Slot)
	if state, _ := l.in[k].doorbell.read(); state == nic.Pending {
		l.cancelReceive(k)
	}
}

func (l *large) StartSend(p *driver.Packet, n int) (slot int, err error) {
	k := l.Sends.Free()
	s := &l.out[k]
	if err := s.rdv.parse(p.RdvData, &l.theirs); err != nil {
		return 0, err
	}
	if err := l.acquire(&s.memory, p, n, transferDepth+k, nic.Read); err != nil {
		return 0, err
	}
	s.memory.gather(p)
	s.length, s.asked = n, false
	s.doorbell.reset() // before claim: from there on the background goroutine looks at it
	before, err := l.claim(k)
	if err != nil {
		l.release(&s.memory)
		return 0, err
	}
	m := nic.Message{Peer: l.name, Tag: s.rdv.tag, Len: n, Flags: nic.Doorbell, Descriptors: s.memory.descriptors()}
	if !l.posted(l.ctx.proc.Post(nic.Send, l.sends.at+k, &m)) {
		l.unclaim(k, before)
		l.release(&s.memory)
		return 0, driver.ErrBusy
	}
	l.ahead.Forget(p)
	l.launched(k)
	l.ctx.kick()
	return k, nil
}

// progressSend handles the doorbell of a send.
func (l *large) progressSend(k int) {
	s := &l.out[k]
	state, _ := s.doorbell.read()
	if state == nic.Pending {
		if l.settle(); l.State() != kit.StateUp && l.ctx.failing.Load() {
			l.endSend(k, state, l.Failure("send"))
			return
		}
		if state, _ = s.doorbell.read(); state == nic.Pending {
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
	l.release(&s.memory)
	l.unlaunch(k, state)
	l.EndSend(k, s.length, s.length, err)
}
