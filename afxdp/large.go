//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// large is an instance on the large track. The sender's engine copies from the posted memory into frames, the
// receiver's engine from frames into the posted memory. Each posted receive or send occupies a slot, which the owner
// fills and empties; in between it belongs to the engine.
type large struct {
	conn
	kit.Large
	token  uint64 // identifies this end in rdv data
	theirs uint64
	in     [transferDepth]recvSlot
	out    [transferDepth]sendSlot
	starts ring[uint32] // owner to engine: slots of out
	clears atomic.Int32 // cancelled receives that the engine has not seen

	// The engine's, on a connection to oneself. The connection waits, in the NIC's copies, while more is left.
	copying *sendSlot // nil: none
	copied  uint64    // bytes of it
}

const (
	transferDepth = kit.LargeDepth
	maxMessage    = 256 << 30
)

// States of a slot. The owner changes slotFree to slotPosted, slotPosted to slotCancel, and slotDone or slotCanceled to
// slotFree. The engine makes the other changes.
const (
	slotFree uint32 = iota
	slotPosted
	slotCancel // the owner has cancelled the receive
	slotDone
	slotCanceled
)

type recvSlot struct {
	posted
	gen    uint32
	length int // bytes of the memory
	total  int // bytes of the message; -1: unknown
	got    int
	rdv    [kit.RdvBytes]byte
}

type sendSlot struct {
	posted
	t link.Transfer
	n int
}

// posted is the memory of the packet in a slot.
type posted struct {
	state  atomic.Uint32
	buf    []byte // if it is in one piece
	cursor driver.Cursor
}

func (m *posted) set(p *driver.Packet) {
	m.buf, _ = p.Contiguous()
	m.cursor = p.Cursor()
}

func (m *posted) clear() {
	m.buf, m.cursor = nil, driver.Cursor{}
	m.state.Store(slotFree)
}

func newLarge(*share) *large {
	l := &large{token: rand.Uint64(), starts: newRing[uint32](transferDepth)}
	l.Large.Init(&l.Conn, l, maxMessage)
	for k := range l.out {
		l.out[k].t.User = &l.out[k]
	}
	return l
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
)

func (l *large) hello() []byte { return l.helloOf(l.token) }

func (l *large) up(hello []byte) (err error) {
	l.theirs, err = l.parseHello(hello)
	return err
}

func (l *large) Progress(p *driver.Packet, sending bool) {
	if sending {
		l.progressSend(int(p.Driver.Slot))
	} else {
		l.progressRecv(int(p.Driver.Slot))
	}
}

// over reports whether the engine has ended the connection, and accesses posted memory no more. StateClosed does not say
// so: Close sets it while the engine may copy. OnClose then ends what is posted, with the NIC's lock.
func (l *large) over() bool {
	s := l.State()
	return s == kit.StatePeerClosed || s == kit.StateBroken
}

func (l *large) StartRecv(p *driver.Packet, n int) (slot int, err error) {
	k := l.Receives.Free()
	s := &l.in[k]
	s.gen++
	s.length, s.total, s.got = n, -1, 0
	s.set(p)
	kit.PutRdv(&s.rdv, l.token, uint64(s.gen)<<8|uint64(k), n)
	p.RdvData = s.rdv[:]
	s.state.Store(slotPosted)
	return k, nil
}

func (l *large) place(p *link.Placement) {
	k := p.Tag & 0xff
	if k >= transferDepth {
		l.misbehaved("a transfer to a receive that there cannot be")
		return
	}
	s := &l.in[k]
	// Bytes for a receive that was cancelled may still arrive; they are dropped.
	if s.state.Load() != slotPosted || uint64(s.gen)<<8|k != p.Tag {
		return
	}
	if s.total < 0 {
		if p.Total > maxMessage {
			l.misbehaved("a message that is too long")
			return
		}
		s.total = int(p.Total)
	}
	want := min(s.total, s.length)
	if p.Total != uint64(s.total) || p.Offset > uint64(want) || len(p.Data) > want-int(p.Offset) || s.got+len(p.Data) > want {
		l.misbehaved("bytes outside of a message")
		return
	}
	copyIn(s, int(p.Offset), p.Data)
	if s.got += len(p.Data); s.got == want && s.state.CompareAndSwap(slotPosted, slotDone) {
		l.Wake()
	}
}

func copyIn(s *recvSlot, off int, b []byte) {
	if s.buf != nil || s.length == 0 {
		copy(s.buf[off:], b)
		return
	}
	s.cursor.Seek(off)
	s.cursor.Scatter(b)
}

func (l *large) progressRecv(k int) {
	s := &l.in[k]
	st := s.state.Load()
	if st == slotPosted || st == slotCancel {
		if st == slotCancel {
			l.mark()
		}
		l.ctx.nic.run()
		st = s.state.Load()
	}
	switch {
	case st == slotDone:
		l.endRecv(k, l.Received(k, s.total, s.length))
	case st == slotCanceled:
		l.endRecv(k, driver.ErrCanceled)
	case l.over() && s.state.CompareAndSwap(st, slotCanceled):
		l.endRecv(k, l.Failure("receive")) // the engine does not write to the memory any more
	}
}

func (l *large) endRecv(k int, err error) {
	l.in[k].clear()
	l.EndRecv(k, err)
}

func (l *large) CancelRecv(p *driver.Packet) {
	if l.in[p.Driver.Slot].state.CompareAndSwap(slotPosted, slotCancel) {
		l.clears.Add(1)
		l.mark()
		l.ctx.nic.run()
	}
}

func (l *large) StartSend(p *driver.Packet, n int) (slot int, err error) {
	tag, room, err := kit.ParseRdv(p.RdvData, l.theirs, maxMessage)
	if err != nil {
		return 0, err
	}
	k := l.Sends.Free()
	s := &l.out[k]
	s.n = n
	s.set(p)
	s.t.Tag, s.t.Len, s.t.Total = tag, uint64(min(n, room)), uint64(n)
	s.state.Store(slotPosted)
	l.starts.push(uint32(k))
	l.mark()
	l.ctx.nic.run()
	if l.toSelf && n > selfStep {
		l.ctx.nic.waits.Device.Wake() // the goroutine that sleeps on the device copies the rest
	}
	return k, nil
}

func (c *share) Fill(_ *link.Conn, t *link.Transfer, off uint64, b []byte) {
	s := t.User.(*sendSlot)
	if s.buf != nil {
		copy(b, s.buf[off:])
		return
	}
	s.cursor.Seek(int(off))
	s.cursor.Gather(b)
}

func (c *share) Placed(lc *link.Conn, t *link.Transfer) {
	t.User.(*sendSlot).state.Store(slotDone)
	lc.User.(*conn).Wake()
}

func (l *large) progressSend(k int) {
	s := &l.out[k]
	if s.state.Load() == slotPosted {
		l.ctx.nic.run()
	}
	switch {
	case s.state.Load() == slotDone:
		l.endSend(k, nil)
	case l.over() && s.state.CompareAndSwap(slotPosted, slotDone):
		l.endSend(k, l.Failure("send")) // the engine does not read the memory any more
	}
}

func (l *large) endSend(k int, err error) {
	s := &l.out[k]
	s.clear()
	l.EndSend(k, s.n, int(s.t.Len), err)
}

func (l *large) serve() {
	for k := 0; l.clears.Load() > 0 && k < transferDepth; k++ {
		if l.in[k].state.CompareAndSwap(slotCancel, slotCanceled) {
			l.clears.Add(-1)
			l.Wake()
		}
	}
	if l.State() != kit.StateUp {
		return
	}
	if l.toSelf {
		if !l.waits && l.copyToSelf() {
			l.waits = true
			l.ctx.nic.copies = append(l.ctx.nic.copies, l)
		}
		return
	}
	for k, ok := l.starts.pop(); ok; k, ok = l.starts.pop() {
		l.lc.Start(l.ctx.nic.now, &l.out[k].t)
	}
}

// selfStep is how many bytes of messages to oneself one round copies for an instance: the post that began the message
// does not block, and others wait for the engine. Later rounds, of whatever goroutine, copy the rest.
const selfStep = 1 << 20

// copyToSelf places messages whose receives were posted on the same instance. It reports whether more is left.
func (l *large) copyToSelf() (more bool) {
	var b [4096]byte
	for left := selfStep; left > 0; {
		s := l.copying
		if s == nil {
			k, ok := l.starts.pop()
			if !ok {
				return false
			}
			s = &l.out[k]
			l.copying, l.copied = s, 0
		}
		n := min(s.t.Len-l.copied, uint64(len(b)))
		l.ctx.Fill(nil, &s.t, l.copied, b[:n])
		l.place(&link.Placement{Tag: s.t.Tag, Offset: l.copied, Total: s.t.Total, Data: b[:n]})
		left -= len(b)
		if l.copied += n; l.copied == s.t.Len {
			l.copying = nil
			s.state.Store(slotDone)
			l.Wake()
		}
	}
	return true
}

func (l *large) deliver(f link.Fragment) {
	l.lc.Release(f.ID)
	l.misbehaved("a message of the small track")
}

func (l *large) Pending() bool {
	for k := range l.out {
		if l.out[k].state.Load() == slotPosted {
			return true
		}
	}
	return false
}

// drop implements track. The engine does not use posted memory any more.
func (l *large) drop() {
	for k := range transferDepth {
		l.in[k].clear()
		l.out[k].clear()
	}
}
