//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

func (l *large) RecvPost(p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure("receive")
	}
	defer l.Leave()
	if _, err := l.Admit("receive", p, maxTransfer); err != nil {
		return err
	}
	if bits.OnesCount32(l.live.recvs) >= transferDepth {
		return l.Busy()
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
	return l.Busy()
}

func (l *large) recvIn(t *transfer, i int, p *driver.Packet) error {
	if err := l.describe(t, &t.slot.recv, p); err != nil {
		return l.fault("receive", "%w", err)
	}
	l.ticket++
	t.ticket, t.p, t.cursor, t.used = l.ticket, p, p.Cursor(), false
	l.live.recvs |= 1 << i
	atomic.StoreUint64(&t.slot.claim, t.ticket<<claimTag)
	atomic.StoreUint64(&t.slot.recv.ticket, t.ticket)
	le := binary.LittleEndian
	le.PutUint32(t.rdv[:], uint32(i))
	le.PutUint32(t.rdv[4:], rdvSum(uint32(i), t.ticket))
	le.PutUint64(t.rdv[8:], t.ticket)
	p.RdvData = t.rdv[:]
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(i), Ticket: t.ticket}
	next := l.recvs[l.nextSlot].slot // its lines lie in the peer's cache, since they were used last
	own(unsafe.Pointer(&next.recv), unsafe.Sizeof(next.recv))
	own(unsafe.Pointer(&next.claim), unsafe.Sizeof(next.claim))
	return nil
}

func (l *large) SendPost(p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure("send")
	}
	defer l.Leave()
	n, err := l.Admit("send", p, maxTransfer)
	if err != nil {
		return err
	}
	if bits.OnesCount32(l.live.sends) >= transferDepth {
		l.progressOthers(nil)
		if bits.OnesCount32(l.live.sends) >= transferDepth {
			return l.Busy()
		}
	}
	i, ticket, ok := parseRdv(p.RdvData)
	if !ok {
		return l.fault("send", "%w: the packet's rdv data is not of this driver, or damaged", driver.ErrInvalid)
	}
	t := &l.sends[i]
	own(unsafe.Pointer(&t.slot.claim), unsafe.Sizeof(t.slot.claim)) // arrives while the other lines are read
	now := load64(&t.slot.recv.ticket)
	switch {
	case now != ticket && now-ticket < 1<<20:
		return l.fault("send", "%w: the receiver has given up", driver.ErrCanceled)
	case now != ticket:
		return l.fault("send", "%w: the packet's rdv data names no receive of this peer", driver.ErrInvalid)
	case t.p != nil || t.ticket == ticket:
		return l.fault("send", "%w: another packet was sent with the same rdv data", driver.ErrInvalid)
	}
	room := load64(&t.slot.recv.length)
	if room > maxTransfer {
		return l.TooLong("send", int(min(room, math.MaxInt)), maxTransfer)
	}
	if err := l.describe(t, &t.slot.send, p); err != nil {
		return l.fault("send", "%w", err)
	}
	l.sizes(t, uint64(n), room)
	t.ticket, t.p, t.cursor, t.matched = ticket, p, p.Cursor(), true
	l.live.sends |= 1 << i
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: i, Ticket: ticket}
	l.resolveSend(t)
	atomic.StoreUint64(&t.slot.send.ticket, ticket)
	l.signal()
	if load64(&t.slot.recv.ticket) != ticket { // the claim word has too few bits of it to show that after a long stop
		l.finishSend(t, driver.ErrCanceled)
	}
	return nil
}

func (l *large) SendPoll(p *driver.Packet) (bool, error) { return l.poll(p, "send", &l.sends) }

func (l *large) RecvPoll(p *driver.Packet) (bool, error) { return l.poll(p, "receive", &l.recvs) }

func (l *large) poll(p *driver.Packet, op string, of *[transferSlots]transfer) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.Enter() {
		return l.ended(p, op)
	}
	defer l.Leave()
	t := &of[p.Driver.Slot%transferSlots]
	if t.p != p {
		return true, l.fault(op+" poll", "%w: the packet is not posted here", driver.ErrInvalid)
	}
	if of == &l.sends {
		l.progressSend(t)
	} else {
		l.progressRecv(t)
	}
	if p.Driver.Phase != driver.Done {
		l.progressOthers(p)
		return false, nil
	}
	return p.Driver.Outcome()
}

// ended answers a poll on a connection that was closed on this side, or is not established. What is posted is not given
// back before the peer has left its memory.
func (l *large) ended(p *driver.Packet, op string) (bool, error) {
	if p.Driver.Phase == driver.Posted || p.Driver.Phase == driver.Canceling {
		if !l.free.Load() {
			return false, nil
		}
		p.N, p.RdvData = 0, nil
	}
	return l.Over(p, op)
}
