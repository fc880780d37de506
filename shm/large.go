//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// transfer is this end's view of a slot in use.
type transfer struct {
	p       *driver.Packet
	cursor  driver.Cursor // of p, at the piece that is copied next
	slot    *transferSlot
	ticket  uint64
	used    bool // receiving end: the slot's last use was matched by a sender
	failed  bool // this end could not copy a piece
	matched bool
	gaveUp  bool
	message int // bytes that the sender has
	n       int // bytes that travel
	piece   int // bytes of each but the last
	pieces  uint64
	reach   uint32
	remote  unsafe.Pointer // reachArena, reachSelf
	from    *imported      // reachArena
	addr    uint64         // reachCMA
	local   []byte         // nil if not contiguous
	done    uint64         // pieces this end has copied
	moved   int            // bytes through the ring
	arena   *driver.Arena
	pin     runtime.Pinner
	rdv     [rdvBytes]byte
}

// large is an instance on the large track.
type large struct {
	*conn
	recvs, sends [transferSlots]transfer
	outTable     *[transferSlots]transferSlot // we send
	inTable      *[transferSlots]transferSlot
	out          producer
	in           consumer
	nextSlot     int
	ticket       uint64                        // of the receive posted last
	live         struct{ sends, recvs uint32 } // slots in use, a bit each
	turn         uint32                        // of progressOthers
	lastPath     string
	short        [inlineMax]byte // a fragment that goes into a slot
	iov          [64]unix.Iovec
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
	_ driver.OneSided   = (*large)(nil)
)

func (l *large) attach() {
	out, in := l.side, 1-l.side
	if l.toSelf {
		in = out
	}
	l.outTable, l.inTable = l.seg.table[out], l.seg.table[in]
	l.out, l.in = newProducer(l.seg.ring[out]), newConsumer(l.seg.ring[in])
	for i := range transferSlots {
		l.recvs[i].slot, l.sends[i].slot = &l.inTable[i], &l.outTable[i]
	}
	// Tickets of another connection do not fit.
	l.ticket = rand.Uint64() << 20
	l.lastPath = l.likelyPath()
}

func (l *large) onUp() {}

func (l *large) flag(bool) *uint32 { return &l.mine.sleeping }

func (l *large) stalled() bool { return false }

// HasMessage implements kit.Gate: receives of this track name their messages.
func (l *large) HasMessage() bool { return false }

func (l *large) Path() string {
	if l.opPath != "" {
		return l.opPath
	}
	return l.lastPath
}

func (l *large) likelyPath() string {
	switch {
	case l.toSelf:
		return "copy"
	case !l.ctx.opts.noArena:
		return "arena-both"
	case l.attaches && !l.ctx.opts.noCMA:
		return "cma-both"
	}
	return "ring"
}

// paths names the path of a transfer by how the sender reaches the receiver's memory, and the receiver the sender's: not
// at all, in an arena, by cma.
var paths = [3][3]string{
	{"ring", "arena-get", "cma-get"},
	{"arena-put", "arena-both", "arena-put+cma-get"},
	{"cma-put", "cma-put+arena-get", "cma-both"},
}

func pathName(send, recv uint32) string {
	if send > reachCMA || recv > reachCMA {
		return "copy"
	}
	// An end whose peer's arena had not arrived yet took no part.
	return paths[max(send, reachNone)-reachNone][max(recv, reachNone)-reachNone]
}

// describe fills this end's line, but for the ticket.
func (l *large) describe(t *transfer, e *endLine, p *driver.Packet) error {
	b, contiguous := p.Contiguous()
	t.local = nil
	addr, arena, offset := uint64(0), uint64(0), uint64(0)
	if contiguous && len(b) > 0 {
		t.local = b
		addr = uint64(uintptr(unsafe.Pointer(&b[0])))
		if a, off, ok := driver.ArenaOf(b); ok {
			if !a.Hold() {
				return fmt.Errorf("%w: the arena of the buffer is closed", driver.ErrInvalid)
			}
			t.arena = a
			if !l.ctx.opts.noArena && l.show(a) {
				arena, offset = a.ID(), uint64(off)
				l.Tally.Hits.Add(1)
			}
		} else {
			t.pin.Pin(&b[0])
			l.Tally.Misses.Add(1)
		}
	}
	store64(&e.addr, addr)
	store64(&e.length, uint64(p.Len()))
	store64(&e.arena, arena)
	store64(&e.offset, offset)
	store64(&e.done, 0)
	store32(&e.failed, 0)
	store32(&e.reach, reachUnknown)
	t.done, t.moved, t.matched, t.gaveUp, t.failed = 0, 0, false, false, false
	t.reach = reachUnknown
	return nil
}

// resolve finds out how this end reaches the buffer that the peer described.
// Every field is read once. False while the peer's arena is on its way.
func (l *large) resolve(t *transfer, e *endLine, forbidden bool) bool {
	addr, arena, offset := load64(&e.addr), load64(&e.arena), load64(&e.offset)
	t.reach = reachNone
	if addr == 0 || forbidden {
		return true
	}
	if l.toSelf {
		other := &l.recvs[t.p.Driver.Slot]
		if t == other {
			other = &l.sends[t.p.Driver.Slot]
		}
		if other.local != nil && other.ticket == t.ticket {
			t.reach, t.remote = reachSelf, unsafe.Pointer(&other.local[0])
		}
		return true
	}
	if arena != 0 && !l.ctx.opts.noArena {
		mem, from, known := l.imports.find(arena, offset, uint64(t.n))
		if !known {
			t.reach = reachUnknown
			return false
		}
		if from != nil {
			from.share()
			t.reach, t.remote, t.from = reachArena, mem, from
			return true
		}
	}
	if l.attaches && !l.ctx.opts.noCMA {
		t.reach, t.addr = reachCMA, addr
	}
	return true
}

func (l *large) sizes(t *transfer, message, room uint64) {
	t.message = int(message)
	t.n = int(min(message, room))
	t.piece = pieceOf(t.n)
	t.pieces = uint64((t.n + t.piece - 1) / t.piece)
}

// pieceOf is the length of the pieces of a transfer of n bytes: both ends
// compute it.
func pieceOf(n int) int {
	const page = 4096
	half := (n/2 + page - 1) &^ (page - 1)
	return min(max(half, minPiece), maxPiece)
}

func (l *large) fault(op string, format string, args ...any) error {
	return l.Fault(op, fmt.Errorf(format, args...))
}

// resolveSend reports to the receiver how this end reaches its buffer.
func (l *large) resolveSend(t *transfer) {
	if l.resolve(t, &t.slot.recv, l.ctx.opts.noSender) {
		store32(&t.slot.send.reach, t.reach)
	}
}

// match looks whether the sender has posted.
func (l *large) match(t *transfer) bool {
	if !t.matched {
		e := &t.slot.send
		if load64(&e.ticket) != t.ticket {
			return false
		}
		own(unsafe.Pointer(&t.slot.claim), unsafe.Sizeof(t.slot.claim)) // for copyPiece, which may follow
		message := load64(&e.length)
		if message > maxTransfer {
			l.misbehaved("transfer that is too long")
			return false
		}
		l.sizes(t, message, uint64(t.p.Len()))
		t.matched, t.used = true, true
	}
	if t.reach == reachUnknown && l.resolve(t, &t.slot.send, l.ctx.opts.noRecver) {
		store32(&t.slot.recv.reach, t.reach)
		l.signal()
	}
	return true
}

// letGo releases what a transfer holds.
func (l *large) letGo(t *transfer) {
	t.p, t.local, t.remote, t.cursor = nil, nil, nil, driver.Cursor{}
	if t.arena != nil {
		t.arena.Release()
		t.arena = nil
	}
	t.pin.Unpin()
	t.from.drop()
	t.from = nil
}

// progressOthers moves on one other receive and one other send, in turn: two ends that each poll only their send still
// need each other's receives to move. One of each is enough, because a caller that polls all posted packets runs this
// for each; one that sleeps next moves all on.
func (l *large) progressOthers(p *driver.Packet) {
	if l.armed {
		for live := l.live.recvs; live != 0; live &= live - 1 {
			if t := &l.recvs[bits.TrailingZeros32(live)]; t.p != nil && t.p != p {
				l.progressRecv(t)
			}
		}
		for live := l.live.sends; live != 0; live &= live - 1 {
			if t := &l.sends[bits.TrailingZeros32(live)]; t.p != nil && t.p != p {
				l.progressSend(t)
			}
		}
		return
	}
	l.turn++
	if t := &l.recvs[nextLive(l.live.recvs, l.turn)]; t.p != nil && t.p != p {
		l.progressRecv(t)
	}
	if t := &l.sends[nextLive(l.live.sends, l.turn)]; t.p != nil && t.p != p {
		l.progressSend(t)
	}
}

// nextLive returns the number of the first bit that is set in live, from the bit turn on; any number if none is.
func nextLive(live, turn uint32) uint32 {
	turn %= transferSlots
	return (uint32(bits.TrailingZeros32(bits.RotateLeft32(live, -int(turn)))) + turn) % transferSlots
}

// finishTransfer gives the packet back. The sending end acknowledges, upon
// which the slot can be used again.
func (l *large) finishTransfer(t *transfer, sending bool, err error) {
	l.opPath = ""
	p := t.p
	slot := uint32(1) << p.Driver.Slot
	l.letGo(t)
	p.N, p.RdvData = t.n, nil
	if err != nil {
		p.N = 0
	}
	if sending {
		l.live.sends &^= slot
		if err == nil {
			p.N = t.message
			l.Tally.Sent.Add(1)
			l.Tally.BytesSent.Add(uint64(t.n))
		}
		atomic.StoreUint64(&t.slot.send.ack, t.ticket)
	} else {
		l.live.recvs &^= slot
		if err == nil {
			l.Tally.Received.Add(1)
			l.Tally.BytesReceived.Add(uint64(t.n))
			if t.message > t.n {
				err = &driver.TruncatedError{Message: t.message, Buffer: t.n}
				l.Tally.Truncated.Add(1)
			}
		}
	}
	p.Driver.Finish(err)
	if st := l.State(); st == kit.StateUp {
		l.signal()
	}
}

func (l *large) Pending() (pending bool) {
	for i := range l.sends {
		if t := &l.sends[i]; t.p != nil {
			l.progressSend(t)
			pending = pending || t.p != nil
		}
	}
	return pending
}

func (l *large) RecvCancel(p *driver.Packet) error {
	if posted, err := l.EnterCancel(p); !posted {
		return err
	}
	defer l.Leave()
	t := &l.recvs[p.Driver.Slot%transferSlots]
	if t.p != p {
		return l.fault("cancel", "%w: the packet is not posted here", driver.ErrInvalid)
	}
	l.match(t)
	if w := atomic.LoadUint64(&t.slot.claim); t.matched && front(w)+back(w) == t.pieces {
		return nil // every piece is claimed: the message wins
	}
	l.giveUp(t)
	p.Driver.Phase = driver.Canceling
	return nil
}

// giveUp forbids further claims. A sender that has posted in the meantime may hold an old copy of the claim word, so
// the slot is not used again before that sender has acknowledged.
func (l *large) giveUp(t *transfer) {
	atomic.OrUint64(&t.slot.claim, claimGiveUp)
	t.used = t.used || atomic.LoadUint64(&t.slot.send.ticket) == t.ticket
	t.gaveUp = true
	l.signal()
}
