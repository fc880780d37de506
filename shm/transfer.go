//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// progressSend moves the sending end of a transfer on by at most one piece.
func (l *large) progressSend(t *transfer) {
	st := l.State() // before the look: see progressRecv
	if l.toSelf {
		// Both ends are here, and only one of them may be polled.
		if r := &l.recvs[t.p.Driver.Slot]; r.p != nil && r.ticket == t.ticket {
			l.match(r)
		}
	}
	if t.reach == reachUnknown {
		l.resolveSend(t)
	}
	w := atomic.LoadUint64(&t.slot.claim)
	theirs := load32(&t.slot.recv.reach)
	switch {
	case w>>claimTag != t.ticket<<claimTag>>claimTag:
		l.finishSend(t, driver.ErrCanceled)
		return
	case w&claimGiveUp != 0:
		// By the receiver, which is outside then, or by this end, whose receiver may still read this buffer.
		if l.released(t, true) {
			l.finishSend(t, driver.ErrCanceled)
		}
		return
	case t.pieces == 0:
		l.finishSend(t, nil)
		return
	case t.reach > reachNone:
		l.copyPiece(t, w, true)
	case t.reach == reachNone && theirs == reachNone:
		l.feedRing(t)
		if t.moved == t.n {
			l.finishSend(t, nil)
			return
		}
	}
	if l.complete(t, &t.slot.recv) {
		l.lastPath = pathName(t.reach, theirs)
		l.finishSend(t, nil)
		return
	}
	if f := l.ctx.opts.looked; f != nil {
		f()
	}
	if st != kit.StateUp && l.released(t, true) {
		l.finishSend(t, l.Failure("send"))
	}
}

// finishSend ends the sending end. An error is made one of this peer.
func (l *large) finishSend(t *transfer, err error) {
	switch {
	case err == driver.ErrCanceled && l.State() != kit.StateUp:
		err = l.Failure("send")
	case err == driver.ErrCanceled:
		err = l.fault("send", "%w: the receiver has given up", driver.ErrCanceled)
	case err == nil && t.reach == reachNone && load32(&t.slot.recv.reach) == reachNone:
		l.lastPath = "ring"
	}
	l.finishTransfer(t, true, err)
}

// progressRecv moves the receiving end of a transfer on by at most one piece. The state is read before the look for
// data: a peer sends first and closes afterwards, so that one look after the end was seen finds all that was sent
// before it.
func (l *large) progressRecv(t *transfer) {
	if t.gaveUp {
		if l.released(t, false) {
			l.Tally.Canceled.Add(1)
			l.finishTransfer(t, false, driver.ErrCanceled)
		}
		return
	}
	st := l.State()
	if l.match(t) {
		w := atomic.LoadUint64(&t.slot.claim)
		theirs := load32(&t.slot.send.reach)
		switch {
		case w&claimGiveUp != 0: // the sender has closed
		case t.pieces == 0:
			l.finishTransfer(t, false, nil)
			return
		case t.reach > reachNone:
			l.copyPiece(t, w, false)
		case t.reach == reachNone && theirs == reachNone:
			l.drainRing()
			if t.p == nil {
				return
			}
		}
		if l.complete(t, &t.slot.send) {
			l.lastPath = pathName(theirs, t.reach)
			l.finishTransfer(t, false, nil)
			return
		}
	}
	if f := l.ctx.opts.looked; f != nil {
		f()
	}
	if st != kit.StateUp && l.released(t, false) {
		l.finishTransfer(t, false, l.Failure("receive"))
	}
}

// complete reports whether both ends have copied all pieces. It breaks the connection if the other end, which
// describes itself in e, could not copy one.
func (l *large) complete(t *transfer, e *endLine) bool {
	if t.done+load64(&e.done) != t.pieces || t.failed {
		return false
	}
	if load32(&e.failed) != 0 {
		l.breakWith(fmt.Errorf("%w: the peer could not copy a piece of a message", driver.ErrBroken))
		return false
	}
	return true
}

// released reports whether the peer has no piece of t under way, nor can begin
// one, so that this end's buffer is free. It is for the claim word what hazardPointer describes for the hazard
// word: first it forbids further claims, then it checks the pieces that were claimed.
func (l *large) released(t *transfer, sending bool) bool {
	w := atomic.LoadUint64(&t.slot.claim)
	if w&claimGiveUp == 0 && l.State() != kit.StateUp {
		atomic.OrUint64(&t.slot.claim, claimGiveUp)
		w = atomic.LoadUint64(&t.slot.claim)
	}
	if w&claimGiveUp == 0 {
		return false
	}
	if l.peerGone() {
		return true
	}
	if sending {
		return back(w) <= load64(&t.slot.recv.done)
	}
	// The sender publishes its line before it claims.
	return front(w) == 0 || front(w) <= load64(&t.slot.send.done)
}

// copyPiece claims a piece and copies it: from the front as the sender, from
// the back as the receiver. Nothing is copied after the end of the connection was seen here: see peerGone.
func (l *large) copyPiece(t *transfer, w uint64, sending bool) {
	for l.State() == kit.StateUp {
		f, b := front(w), back(w)
		if w&claimGiveUp != 0 || f+b >= t.pieces || w>>claimTag != t.ticket<<claimTag>>claimTag {
			return
		}
		next, piece := w+1, f
		if !sending {
			next, piece = w+1<<claimBits, t.pieces-1-b
		}
		if atomic.CompareAndSwapUint64(&t.slot.claim, w, next) {
			l.copyAt(t, int(piece)*t.piece, sending)
			return
		}
		w = atomic.LoadUint64(&t.slot.claim)
	}
}

// copyAt copies the claimed piece at off and reports it done.
func (l *large) copyAt(t *transfer, off int, sending bool) {
	n := min(t.n-off, t.piece)
	mine := &t.slot.recv
	if sending {
		mine = &t.slot.send
	}
	var err error
	if t.reach == reachCMA {
		err = l.attachAt(t, off, n, sending)
	} else {
		l.mappedAt(t, off, n, sending)
	}
	if err != nil && err != errGone { // else the monitor learns whether the peer has left in order
		l.breakWith(l.fault("transfer", "%w: %w", driver.ErrBroken, err))
	}
	if err != nil {
		t.failed = true // never complete: the connection is broken
		store32(&mine.failed, 1)
	}
	t.done++
	store64(&mine.done, t.done)      // this end is outside
	atomic.AddUint32(&l.mine.seq, 1) // a wait of this end looks for the next piece before it sleeps
	l.signal()
}

// mappedAt copies a piece to or from memory of the peer that is mapped here.
func (l *large) mappedAt(t *transfer, off, n int, sending bool) {
	remote := unsafe.Slice((*byte)(unsafe.Add(t.remote, off)), n)
	switch {
	case t.local != nil && sending:
		movePiece(remote, t.local[off:off+n], t.n)
	case t.local != nil:
		movePiece(t.local[off:off+n], remote, t.n)
	default:
		t.cursor.Seek(off)
		if sending {
			t.cursor.Gather(remote)
		} else {
			t.cursor.Scatter(remote)
		}
	}
}

// attachAt copies a piece to or from private memory of the peer.
func (l *large) attachAt(t *transfer, off, n int, sending bool) error {
	t.cursor.Seek(off)
	for n > 0 {
		v, size := l.iov[:0], 0
		for len(v) < cap(v) && size < n {
			run := t.cursor.Next(n - size)
			if len(run) == 0 {
				break
			}
			v = append(v, unix.Iovec{Base: &run[0], Len: uint64(len(run))})
			size += len(run)
		}
		if err := l.crossCopy(sending, v, t.addr+uint64(off), size); err != nil {
			return err
		}
		clear(v) // the buffer is the program's
		off += size
		n -= size
	}
	return nil
}

// A fragment is the part of a transfer that one message of the ring carries, if the ends
// cannot reach each other's buffers: slot, low bits of the ticket, offset, and
// bytes.
const (
	fragmentHeader = 16
	fragmentBytes  = largeData/4 - fragmentHeader
)

// feedRing puts as many fragments into the ring as fit.
func (l *large) feedRing(t *transfer) {
	le := binary.LittleEndian
	for range ringSlots { // however fast the peer takes them
		if t.moved == t.n {
			return
		}
		n := min(t.n-t.moved, fragmentBytes)
		ok, bad := l.out.room(fragmentHeader + n)
		if !ok {
			if bad {
				l.misbehaved("progress beyond what was sent")
			}
			return
		}
		short := fragmentHeader+n <= inlineMax
		b := l.short[:]
		if short {
			b = b[:fragmentHeader+n]
		} else {
			b = unsafe.Slice((*byte)(l.out.dataAt()), fragmentHeader+n)
		}
		le.PutUint32(b, t.p.Driver.Slot)
		le.PutUint32(b[4:], uint32(t.ticket))
		le.PutUint64(b[8:], uint64(t.moved))
		t.cursor.Seek(t.moved)
		t.cursor.Gather(b[fragmentHeader:])
		if short {
			l.out.sendInline(b)
		} else {
			l.out.publishData(len(b))
		}
		t.moved += n
		l.signal()
	}
}

// drainRing takes fragments to the transfers they belong to; those of a
// transfer that was given up are dropped.
func (l *large) drainRing() {
	le := binary.LittleEndian
	var a arrival
	for range ringSlots { // however fast they come
		ok, bad := l.in.peek(&a)
		if bad || ok && a.n < fragmentHeader {
			l.misbehaved("malformed fragment")
			return
		}
		if !ok || a.there < a.n {
			return
		}
		b := unsafe.Slice((*byte)(a.at), a.n)
		slot, ticket, off := le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])
		if slot < transferSlots {
			t := &l.recvs[slot]
			if t.p != nil && uint32(t.ticket) == ticket && !t.gaveUp && l.match(t) {
				if off != uint64(t.moved) || a.n-fragmentHeader > t.n-t.moved {
					l.misbehaved("fragment out of place")
					return
				}
				t.cursor.Seek(t.moved)
				t.cursor.Scatter(b[fragmentHeader:])
				t.moved += a.n - fragmentHeader
				if t.moved == t.n {
					l.lastPath = "ring"
					l.finishTransfer(t, false, nil)
				}
			}
		}
		if l.in.pop(&a) {
			l.signal()
		}
	}
}

// fail implements trackEnd: it drops everything posted whose buffers the peer has
// let go of.
func (l *large) fail() bool {
	if l.seg == nil {
		return true
	}
	l.oneSided = opQueue{}
	all := true
	for i := range transferSlots {
		if t := &l.sends[i]; t.p != nil {
			if !l.released(t, true) {
				all = false
			} else {
				l.letGo(t)
				atomic.StoreUint64(&t.slot.send.ack, t.ticket)
			}
		}
		if t := &l.recvs[i]; t.p != nil {
			if !l.released(t, false) {
				all = false
			} else {
				l.letGo(t)
			}
		}
	}
	return all
}
