//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func (l *large) StartSend(p *driver.Packet, n int) (slot int, err error) {
	tag, room, err := kit.ParseRdv(p.RdvData, l.theirs, maxLarge)
	if err != nil {
		return 0, err
	}
	k := l.Sends.Free()
	s := &l.out[k]
	s.n = n
	s.set(p)
	s.t = transfer{kind: frameMessage, tag: tag, bytes: uint64(min(n, room)), total: uint64(n)}
	s.state.Store(slotPosted)
	at := l.queued.Load()
	l.queue[at%kit.LargeDepth] = s
	l.queued.Store(at + 1)
	l.dirty.Store(true)
	if !l.blocked.Load() {
		l.flush()
	}
	return k, nil
}

func (l *large) unsent() bool {
	return l.dirty.Load() || l.wire.seal.unsent()
}

// next makes the next head, unless one is under way. It reports whether there is one.
func (l *large) next() bool {
	w := &l.writing
	if w.left > 0 || w.slot != nil {
		return true
	}
	var t transfer
	switch {
	case l.queued.Load() != w.taken:
		w.slot = l.queue[w.taken%kit.LargeDepth]
		w.taken++
		t = w.slot.t
	case l.wantPing.Swap(false):
		t.kind = framePing
	case l.wantBye.Swap(false):
		t.kind = frameBye
	default:
		return false
	}
	t.put(&w.head)
	w.left, w.off = transferHead, 0
	return true
}

func (l *large) write() {
	w := &l.writing
	l.dirty.Store(false)
	for budget := callBudget; budget > 0; {
		if !l.next() && !l.wire.seal.unsent() {
			return
		}
		n, st := l.wire.write(l.source(budget))
		clear(w.bufs[:])
		if n > 0 {
			budget -= n
			if !l.hasSent.Load() {
				l.hasSent.Store(true)
			}
			head := min(n, w.left)
			w.left -= head
			w.off += uint64(n - head)
		}
		if s := w.slot; s != nil && w.left == 0 && w.off == s.t.bytes {
			w.slot = nil
			s.state.Store(slotDone)
			l.Wake()
		}
		if !l.sent(st) {
			l.dirty.Store(w.left > 0 || w.slot != nil || l.queued.Load() != w.taken)
			return
		}
	}
	l.dirty.Store(true)
	l.ctx.drain.requeue(&l.conn)
	l.block() // the kernel has room, so no event comes: the next drain, or the keep-alive goroutine, goes on
}

// source is what is to be sent next.
func (l *large) source(budget int) [][]byte {
	w := &l.writing
	k := 0
	if w.left > 0 {
		w.bufs[0] = w.head[transferHead-w.left:]
		k = 1
	}
	s := w.slot
	if s == nil {
		return w.bufs[:k]
	}
	left := int(min(s.t.bytes-w.off, uint64(budget)))
	if s.buf != nil {
		if left > 0 {
			w.bufs[k] = s.buf[w.off : w.off+uint64(left)]
			k++
		}
		return w.bufs[:k]
	}
	if left > 0 {
		s.cursor.Seek(int(w.off))
	}
	c := s.cursor
	for k < maxPieces && left > 0 {
		w.bufs[k] = c.Next(left)
		left -= len(w.bufs[k])
		k++
	}
	return w.bufs[:k]
}

func (l *large) progressSend(k int) {
	s := &l.out[k]
	ends := l.State() != kit.StateUp
	if ends && s.state.Load() != slotDone {
		l.tx.lock() // its holder may be reading the memory, and wakes no waiter when it unlocks
		defer l.tx.unlock()
	}
	switch {
	case s.state.Load() == slotDone:
		l.endSend(k, nil)
	case ends:
		l.sendFailed = true // the stream may have ended in the middle of it
		if l.writing.slot == s {
			l.writing.slot = nil
		}
		l.endSend(k, l.Failure("send"))
	}
}

func (l *large) endSend(k int, err error) {
	s := &l.out[k]
	s.clear()
	l.EndSend(k, s.n, int(s.t.bytes), err)
}
