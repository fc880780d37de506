package shm

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// RecvPost implements driver.Instance.
func (l *large) RecvPost(p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure("receive")
	}
	defer l.Leave()
	if l.State() != kit.StateUp {
		return l.Failure("receive")
	}
	if err := checkPost(p); err != nil {
		return l.fault("receive", "%w", err)
	}
	if n := p.Len(); n > maxTransfer {
		return l.fault("receive", "%w: %d bytes, the large track carries %d", driver.ErrTooLong, n, maxTransfer)
	}
	if bits.OnesCount32(l.live.recvs) >= transferDepth {
		l.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	for range transferSlots {
		i := l.nextSlot
		l.nextSlot = (i + 1) % transferSlots
		t := &l.recvs[i]
		if t.p != nil || t.used && load64(&t.slot.send.ack) != t.ticket {
			continue
		}
		return l.recvIn(t, i, p)
	}
	l.Tally.Busy.Add(1)
	return driver.ErrBusy
}

func (l *large) recvIn(t *transfer, i int, p *driver.Packet) error {
	if err := l.describe(t, &t.slot.recv, p); err != nil {
		return l.fault("receive", "%w", err)
	}
	l.ticket++
	t.ticket, t.p, t.used = l.ticket, p, false
	l.live.recvs |= 1 << i
	atomic.StoreUint64(&t.slot.claim, t.ticket<<claimTag)
	atomic.StoreUint64(&t.slot.recv.ticket, t.ticket)
	le := binary.LittleEndian
	le.PutUint32(t.rdv[:], uint32(i))
	le.PutUint32(t.rdv[4:], rdvSum(uint32(i), t.ticket))
	le.PutUint64(t.rdv[8:], t.ticket)
	p.RdvData = t.rdv[:]
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(i), Ticket: t.ticket}
	return nil
}

// checkPost checks a packet before a post: it must be free, and if it was
// prefetched, name the same memory as then.
func checkPost(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Idle:
		return nil
	case driver.Prefetched:
		if p.Driver.Ticket == fingerprint(p) {
			return nil
		}
		return fmt.Errorf("%w: the packet was prefetched with other memory; unfetch it first", driver.ErrInvalid)
	}
	return fmt.Errorf("%w: the packet is posted already, or its outcome was not polled", driver.ErrInvalid)
}

// SendPost implements driver.Instance.
func (l *large) SendPost(p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure("send")
	}
	defer l.Leave()
	if l.State() != kit.StateUp {
		return l.Failure("send")
	}
	if err := checkPost(p); err != nil {
		return l.fault("send", "%w", err)
	}
	if bits.OnesCount32(l.live.sends) >= transferDepth {
		l.progressOthers(nil)
		if bits.OnesCount32(l.live.sends) >= transferDepth {
			l.Tally.Busy.Add(1)
			return driver.ErrBusy
		}
	}
	i, ticket, ok := parseRdv(p.RdvData)
	if !ok {
		return l.fault("send", "%w: the packet's rdv data is not of this driver, or damaged", driver.ErrInvalid)
	}
	t := &l.sends[i]
	now := load64(&t.slot.recv.ticket)
	switch {
	case now != ticket && ticket>>20 == now>>20 && ticket < now:
		return l.fault("send", "%w: the receiver has given up", driver.ErrCanceled)
	case now != ticket:
		return l.fault("send", "%w: the packet's rdv data names no receive of this peer", driver.ErrInvalid)
	case t.p != nil || t.ticket == ticket:
		return l.fault("send", "%w: another packet was sent with the same rdv data", driver.ErrInvalid)
	}
	n, room := p.Len(), load64(&t.slot.recv.length)
	if n > maxTransfer || room > maxTransfer {
		return l.fault("send", "%w: %d bytes, the large track carries %d", driver.ErrTooLong, n, maxTransfer)
	}
	if err := l.describe(t, &t.slot.send, p); err != nil {
		return l.fault("send", "%w", err)
	}
	l.sizes(t, uint64(n), room)
	t.ticket, t.p, t.matched = ticket, p, true
	l.live.sends |= 1 << i
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: i, Ticket: ticket}
	l.resolveSend(t)
	atomic.StoreUint64(&t.slot.send.ticket, ticket)
	l.signal()
	return nil
}

// SendPoll implements driver.Instance.
func (l *large) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.Enter() {
		return l.ended(p, "send")
	}
	defer l.Leave()
	t := &l.sends[p.Driver.Slot%transferSlots]
	if t.p != p {
		return true, l.fault("send poll", "%w: the packet is not posted here", driver.ErrInvalid)
	}
	l.progressSend(t)
	if p.Driver.Phase != driver.Done {
		l.progressOthers(p)
		return false, nil
	}
	return p.Driver.Outcome()
}

// RecvPoll implements driver.Instance.
func (l *large) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.Enter() {
		return l.ended(p, "receive")
	}
	defer l.Leave()
	t := &l.recvs[p.Driver.Slot%transferSlots]
	if t.p != p {
		return true, l.fault("receive poll", "%w: the packet is not posted here", driver.ErrInvalid)
	}
	l.progressRecv(t)
	if p.Driver.Phase != driver.Done {
		l.progressOthers(p)
		return false, nil
	}
	return p.Driver.Outcome()
}
