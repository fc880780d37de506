//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func (l *large) Progress(*driver.Packet, bool) { l.Settle() }

func (l *large) CancelRecv(p *driver.Packet) { l.ask(int(p.Driver.Slot)) }

func (l *large) StartRecv(p *driver.Packet, n int) (slot int, err error) {
	k := l.Receives.Free()
	s := &l.slots[k]
	err = l.open(s, p, n, k)
	if errors.Is(err, errNoWindow) {
		l.noWindows = true // as on a device without windows; slots whose windows are bound keep them
		s.closeWindows()
		l.release(&s.memory)
		err = l.open(s, p, n, k)
	}
	if err != nil {
		s.closeWindows()
		l.release(&s.memory)
		return 0, err
	}
	s.gen++
	l.ahead.Forget(p)
	s.k, s.length, s.keysSent = k, n, 0
	p.RdvData = l.describe(k, s, s.rdv[:])
	return k, nil
}

// open makes the memory of a receive accessible to the peer.
func (l *large) open(s *slot, p *driver.Packet, n, k int) error {
	if err := l.acquire(&s.memory, p, n, k, l.recvAccess(n)); err != nil {
		return err
	}
	return l.bind(s, n)
}

// describe writes rdv data of the pieces that are registered and whose keys were not sent to the peer yet.
func (l *large) describe(k int, s *slot, to []byte) []byte {
	r := rdvData{tag: l.tag, slot: k, gen: s.gen, length: s.length, first: s.keysSent, n: s.memory.ready - s.keysSent}
	for j := range r.n {
		b := s.memory.piece[s.keysSent+j]
		r.piece[j] = remotePiece{addr: address(b), length: len(b), rkey: l.key(s, s.keysSent+j)}
	}
	s.keysSent = s.memory.ready
	return r.encode(to)
}

// ask marks a receive as cancelled in the peer's table, and reads whether the peer's send has begun.
func (l *large) ask(k int) {
	s := &l.slots[k]
	if l.State() != kit.StateUp || s.asking || s.windows.over {
		return
	}
	if l.rx.room() < 2 {
		return // push asks again
	}
	s.asking = true
	entry := l.theirs.addr + uint64(k)*uint64(unsafe.Sizeof(claimTable{}[0]))
	var word [wordSize]byte
	binary.NativeEndian.PutUint64(word[:], uint64(s.gen))
	wr, _ := l.rx.add(requestControl, false)
	wr.Write(entry+8, l.theirs.rkey)
	l.rx.carry(wr, &word)
	wr, r := l.rx.add(requestCancel, true)
	r.slot, r.gen = k, s.gen
	wr.Read(entry, l.theirs.rkey)
	wr.AddSGE(address(l.asks[8*k:]), 8, l.mem.lkey)
	l.reads++
	l.postOn(l.rx)
}

// asked handles the claim that was read from the peer's table, unless the message came first.
func (l *large) asked(k int, gen uint32) {
	s := &l.slots[k]
	if l.Receives.At(k) != nil && !s.windows.over && s.gen == gen && binary.NativeEndian.Uint64(l.asks[8*k:]) != uint64(gen) {
		l.end(s, driver.ErrCanceled)
	}
}

func (l *large) postOn(q *sendQueue) {
	if err := q.post(); err != nil {
		l.broke(err)
	}
}

func (l *large) StartSend(p *driver.Packet, n int) (slot int, err error) {
	k := l.Sends.Free()
	t := &l.out[k]
	err = t.rdv.parse(p.RdvData, l.theirs.tag, transferDepth)
	if err == nil && t.rdv.first != 0 {
		err = errRdvDamaged
	}
	if err == nil && atomic.LoadUint64(&l.claim[t.rdv.slot].claimed) == uint64(t.rdv.gen) {
		err = fmt.Errorf("%w: rdv data that was used before", driver.ErrInvalid)
	}
	if err != nil {
		return 0, err
	}
	return k, l.begin(k, p, n)
}

// begin claims the receive and begins to write.
func (l *large) begin(k int, p *driver.Packet, n int) error {
	t := &l.out[k]
	t.k, t.total, t.length = k, n, min(n, t.rdv.length)
	t.posted, t.lastPosted, t.err = 0, false, nil
	if err := l.acquire(&t.memory, p, t.length, transferDepth+k, sendAccess); err != nil {
		return err
	}
	l.ahead.Forget(p)
	if b := t.memory.copied; b != nil {
		c := p.Cursor()
		c.Gather(b)
	}
	if !l.claims(&t.rdv) {
		t.err = l.Fault("send", fmt.Errorf("%w: the peer has cancelled the receive", driver.ErrCanceled))
		t.posted = t.length
	}
	l.queue = append(l.queue, t)
	l.push()
	return nil
}

// push posts writes as far as the queue has room, and repeats requests to cancel that found no room.
func (l *large) push() {
	for k := 0; k < len(l.queue) && l.sq.room() > controlReserve; {
		t := l.queue[k]
		if t.posted < t.length {
			if t.posted < t.rdv.covered() && l.fetchNext(t) {
				l.write(t)
			} else {
				k++ // the keys of the rest are missing: other transfers go on
			}
			continue
		}
		if !t.lastPosted {
			l.conclude(t)
		}
		l.queue = append(l.queue[:k], l.queue[k+1:]...)
	}
	if l.sq.chain.Len() > 0 {
		l.postOn(&l.sq)
	}
	for k := range l.slots {
		if p := l.Receives.At(k); p != nil && p.Driver.Phase == driver.Canceling {
			l.ask(k)
		}
	}
}

// write adds the next write of a transfer: as much as is contiguous at both ends.
func (l *large) write(t *transfer) {
	at, remote := seekPiece(t.rdv.piece[:t.rdv.n], t.posted)
	k, off := t.memory.seek(t.posted)
	n := min(remote.length-at, len(t.memory.piece[k])-off, t.length-t.posted, l.ctx.maxWrite)
	whole := n == t.length && t.length == t.total
	wr, r := l.sq.add(requestWrite, whole)
	if whole {
		wr.WriteImm(remote.addr+uint64(at), remote.rkey, immediate(codeDone, transferName(t.rdv.slot, t.rdv.gen)))
		r.last, t.lastPosted = t, true
	} else {
		wr.Write(remote.addr+uint64(at), remote.rkey)
	}
	wr.AddSGE(address(t.memory.piece[k][off:]), uint32(n), l.mr(&t.memory, k).LKey())
	t.posted += n
}

func seekPiece(pieces []remotePiece, off int) (int, *remotePiece) {
	k := 0
	for off >= pieces[k].length {
		off -= pieces[k].length
		k++
	}
	return off, &pieces[k]
}

// conclude notifies the receiver that a transfer is complete or withdrawn.
func (l *large) conclude(t *transfer) {
	wr, r := l.sq.add(requestWrite, true)
	r.last, t.lastPosted = t, true
	name := transferName(t.rdv.slot, t.rdv.gen)
	if t.err != nil {
		wr.SendImm(immediate(codeWithdrawn, name))
		return
	}
	wr.SendImm(immediate(codeDoneLong, name))
	var total [wordSize]byte
	binary.NativeEndian.PutUint64(total[:], uint64(t.total))
	l.sq.carry(wr, &total)
}

// sent completes a send.
func (l *large) sent(t *transfer) {
	l.release(&t.memory)
	l.path = pathWrite
	l.EndSend(t.k, t.total, t.length, t.err)
}
