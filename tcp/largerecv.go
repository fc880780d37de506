//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func (l *large) StartRecv(p *driver.Packet, n int) (slot int, err error) {
	k := l.Receives.Free()
	s := &l.in[k]
	s.gen++
	s.length, s.total = n, 0
	s.set(p)
	kit.PutRdv(&s.rdv, l.mine, s.tag(k), n)
	p.RdvData = s.rdv[:]
	s.state.Store(slotPosted)
	return k, nil
}

// tag names a receive in rdv data; those before in the slot have other ones.
func (s *recvSlot) tag(k int) uint64 { return s.gen<<8 | uint64(k) }

// recvPiece is how many bytes one system call receives at most. The kernel sends acknowledgements for what comes during
// the call only at its end: with longer ones the sender waits for them while this side copies.
const recvPiece = 32 << 10

// read implements track. While the rest of a message is on its way, it reads until there is nothing.
func (l *large) read() (more bool) {
	for budget, calls := callBudget, 0; budget > 0 && calls < readCalls; calls++ {
		bufs, asked, whole := l.target(min(budget, recvPiece))
		n, st := l.wire.read(bufs)
		clear(l.reading.bufs[:])
		if n > 0 {
			budget -= n
			if !l.hasReceived.Load() {
				l.hasReceived.Store(true)
			}
			if !l.came(n, whole) {
				return false
			}
		}
		switch {
		case st == over:
			if !l.ended {
				l.end(l.wire.err)
			}
			return false
		case st == again, n < asked && l.wire.seal == nil && !l.reading.inside:
			return false
		}
	}
	return true
}

// target returns the memory for the next bytes of the stream, asked bytes in all: the rest of a head, or a part of a
// message. With whole, that part is the message's last one, and the next head follows.
func (l *large) target(budget int) (bufs [][]byte, asked int, whole bool) {
	r := &l.reading
	if !r.inside {
		r.bufs[0] = r.head[r.got:]
		return r.bufs[:1], transferHead - r.got, false
	}
	left := r.t.bytes - r.off
	if s := r.slot; s != nil && (s.state.Load() != slotPosted || s.tag(int(r.t.tag&0xff)) != r.t.tag) {
		r.slot = nil // cancelled meanwhile
	}
	want := int(min(left, uint64(budget)))
	if r.slot == nil {
		if r.scratch == nil {
			r.scratch = make([]byte, recvPiece)
		}
		want = min(want, len(r.scratch))
		r.bufs[0] = r.scratch[:want]
		return r.bufs[:1], want, false
	}
	k := 0
	if s := r.slot; s.buf != nil {
		r.bufs[0] = s.buf[r.off : r.off+uint64(want)]
		k, asked = 1, want
	} else {
		s.cursor.Seek(int(r.off))
		c := s.cursor
		for k < maxPieces-1 && asked < want {
			r.bufs[k] = c.Next(want - asked)
			asked += len(r.bufs[k])
			k++
		}
	}
	if whole = uint64(asked) == left; whole {
		r.bufs[k] = r.head[:]
		k, asked = k+1, asked+transferHead
	}
	return r.bufs[:k], asked, whole
}

// came takes n bytes that were read to the target. It reports whether the stream goes on.
func (l *large) came(n int, whole bool) bool {
	r := &l.reading
	if r.inside {
		left := r.t.bytes - r.off
		if whole && uint64(n) > left {
			r.got = n - int(left)
			n = int(left)
		}
		if r.off += uint64(n); r.off < r.t.bytes {
			return true
		}
		l.arrived()
	} else {
		r.got += n
	}
	for r.got == transferHead {
		r.got = 0
		if !l.begin() {
			return false
		}
		if !r.inside {
			return true
		}
		if r.t.bytes > 0 {
			return true
		}
		l.arrived()
	}
	return true
}

// arrived ends the transfer under way.
func (l *large) arrived() {
	r := &l.reading
	r.inside = false
	if s := r.slot; s != nil && s.state.Load() == slotPosted && s.tag(int(r.t.tag&0xff)) == r.t.tag {
		s.total = int(r.t.total)
		if s.state.CompareAndSwap(slotPosted, slotDone) {
			l.Wake()
		}
	}
	r.slot = nil
}

// begin handles a head. It reports whether the stream goes on.
func (l *large) begin() bool {
	r := &l.reading
	t, ok := parseTransfer(&r.head)
	if !ok {
		l.violated("a transfer that there cannot be")
		return false
	}
	switch t.kind {
	case framePing:
		return true
	case frameBye:
		l.peerClosed()
		return false
	}
	s := &l.in[t.tag&0xff]
	r.t, r.off, r.inside, r.slot = t, 0, true, nil
	if s.state.Load() != slotPosted || s.tag(int(t.tag&0xff)) != t.tag {
		return true // a receive that was cancelled: its bytes go nowhere
	}
	if t.bytes != min(t.total, uint64(s.length)) {
		l.violated("a transfer of another length than its receive")
		return false
	}
	r.slot = s
	return true
}

func (l *large) progressRecv(k int) {
	s := &l.in[k]
	ends := s.state.Load() == slotCancel || l.State() != kit.StateUp
	if ends && s.state.Load() != slotDone {
		// The lock's holder may be writing to the memory, and wakes no waiter when it unlocks: one that only tried the lock,
		// and then slept, would sleep for ever.
		l.rx.lock()
		defer l.rx.unlock()
	}
	switch st := s.state.Load(); {
	case st == slotDone:
		l.endRecv(k, l.Received(k, s.total, s.length))
	case st == slotCancel:
		l.endRecv(k, driver.ErrCanceled)
	case ends:
		l.endRecv(k, l.Failure("receive"))
	}
}

func (l *large) endRecv(k int, err error) {
	l.in[k].clear()
	l.EndRecv(k, err)
}

func (l *large) CancelRecv(p *driver.Packet) {
	l.in[p.Driver.Slot].state.CompareAndSwap(slotPosted, slotCancel)
}
