//go:build linux

package afxdp

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync/atomic"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// large is an instance on the large track: the sender's engine copies from the
// posted memory into frames, the receiver's from frames into the posted memory. A receive and a send are slots,
// which the owner fills and empties, and in between belong to the engine.
type large struct {
	conn
	token  uint64 // in the rdv data for this end
	theirs uint64
	in     [transferDepth]recvSlot
	out    [transferDepth]sendSlot
	starts ring[uint32] // owner to engine: slots of out
	used   int          // slots of in
	sends  int          // slots of out
	clears atomic.Int32 // receives whose cancel the engine has not seen

	expected atomic.Int64 // bytes of a receive that was prefetched
}

const (
	transferDepth = 16
	maxMessage    = 256 << 30
	rdvBytes      = 32
)

// What a slot is doing. The owner moves it from slotFree to slotPosted and from slotDone or slotCanceled to
// slotFree, the engine the rest.
const (
	slotFree uint32 = iota
	slotPosted
	slotCancel // the owner wants a receive back
	slotDone
	slotCanceled
)

type recvSlot struct {
	state  atomic.Uint32
	p      *driver.Packet // the owner's
	gen    uint32
	length int // of the memory
	total  int // of the message; -1: unknown
	got    int
	buf    []byte // the memory, if it is in one piece
	cursor driver.Cursor
	at     int // of cursor
	rdv    [rdvBytes]byte
}

type sendSlot struct {
	state  atomic.Uint32
	p      *driver.Packet // the owner's
	buf    []byte
	cursor driver.Cursor
	at     int
	t      link.Transfer
	n      int
}

func newLarge(*Context) *large {
	l := &large{token: rand.Uint64(), starts: newRing[uint32](transferDepth)}
	for k := range l.out {
		l.out[k].t.User = &l.out[k]
	}
	return l
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
)

var errRdvDamaged = fmt.Errorf("%w: rdv data is damaged, or of another connection", driver.ErrInvalid)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Rdv data, little-endian: crc32c u32 of what follows, 0 u32, token u64, tag u64, length u64.
func putRdv(b []byte, token, tag uint64, length int) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], 0)
	le.PutUint64(b[8:], token)
	le.PutUint64(b[16:], tag)
	le.PutUint64(b[24:], uint64(length))
	le.PutUint32(b, crc32.Checksum(b[4:rdvBytes], castagnoli))
}

func parseRdv(b []byte, token uint64) (tag uint64, length int, err error) {
	le := binary.LittleEndian
	if len(b) != rdvBytes || le.Uint32(b) != crc32.Checksum(b[4:], castagnoli) || le.Uint32(b[4:]) != 0 || le.Uint64(b[8:]) != token ||
		le.Uint64(b[24:]) > maxMessage {
		return 0, 0, errRdvDamaged
	}
	return le.Uint64(b[16:]), int(le.Uint64(b[24:])), nil
}

func (l *large) hello() []byte { return l.helloOf(l.token) }

func (l *large) up(hello []byte) (err error) {
	l.theirs, err = l.parseHello(hello)
	return err
}

// admit checks that a packet can be posted and returns the length of its memory.
func (l *large) admit(p *driver.Packet, op string, posted int) (int, error) {
	n, err := l.life.Admit(op, p, maxMessage)
	if err == nil {
		err = l.matches(p, op)
	}
	if err == nil && posted == transferDepth {
		err = l.life.Busy()
	}
	return n, err
}

// RecvPost implements driver.Instance.
func (l *large) RecvPost(p *driver.Packet) error {
	if !l.life.Enter() {
		return l.life.Failure("receive")
	}
	defer l.life.Leave()
	n, err := l.admit(p, "receive", l.used)
	if err != nil {
		return err
	}
	k := 0
	for l.in[k].p != nil {
		k++
	}
	s := &l.in[k]
	s.gen++
	s.p, s.length, s.total, s.got, s.at = p, n, -1, 0, 0
	s.cursor = p.Cursor()
	s.buf, _ = p.Contiguous()
	putRdv(s.rdv[:], l.token, uint64(s.gen)<<8|uint64(k), n)
	p.RdvData = s.rdv[:]
	p.Driver.Phase, p.Driver.Slot = driver.Posted, uint32(k)
	l.used++
	s.state.Store(slotPosted)
	return nil
}

// place implements track.
func (l *large) place(p *link.Placement) {
	k := p.Tag & 0xff
	if k >= transferDepth {
		l.misbehaved("a transfer to a receive that there cannot be")
		return
	}
	s := &l.in[k]
	// A receive that was cancelled may still be written to: its bytes go nowhere.
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
		l.wake()
	}
}

func copyIn(s *recvSlot, off int, b []byte) {
	if s.buf != nil || s.length == 0 {
		copy(s.buf[off:], b)
		return
	}
	if s.at != off {
		s.cursor.Seek(off)
	}
	s.at = off + s.cursor.Scatter(b)
}

// RecvPoll implements driver.Instance.
func (l *large) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.life.Enter() {
		return l.life.Over(p, "receive")
	}
	defer l.life.Leave()
	if p.Driver.Phase != driver.Posted && p.Driver.Phase != driver.Canceling {
		return true, l.life.Misuse("receive poll", p)
	}
	s := &l.in[p.Driver.Slot]
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
		p.N = min(s.total, s.length)
		l.life.Tally.Received.Add(1)
		l.life.Tally.BytesReceived.Add(uint64(p.N))
		var err error
		if s.total > s.length {
			err = &driver.TruncatedError{Message: s.total, Buffer: s.length}
			l.life.Tally.Truncated.Add(1)
		}
		l.endRecv(s, err)
	case st == slotCanceled:
		l.life.Tally.Canceled.Add(1)
		l.endRecv(s, driver.ErrCanceled)
	case l.life.State() != kit.StateUp && s.state.CompareAndSwap(st, slotCanceled):
		l.endRecv(s, l.life.Failure("receive")) // the engine does not place any more
	default:
		return false, nil
	}
	return p.Driver.Outcome()
}

func (l *large) endRecv(s *recvSlot, err error) {
	s.p.Driver.Finish(err)
	s.p, s.buf, s.cursor = nil, nil, driver.Cursor{}
	s.state.Store(slotFree)
	l.used--
}

// RecvCancel implements driver.Instance.
func (l *large) RecvCancel(p *driver.Packet) error {
	if posted, err := l.life.EnterCancel(p); !posted {
		return err
	}
	defer l.life.Leave()
	if l.in[p.Driver.Slot].state.CompareAndSwap(slotPosted, slotCancel) {
		p.Driver.Phase = driver.Canceling
		l.clears.Add(1)
		l.mark()
		l.ctx.nic.run()
	}
	return nil
}

// SendPost implements driver.Instance.
func (l *large) SendPost(p *driver.Packet) error {
	if !l.life.Enter() {
		return l.life.Failure("send")
	}
	defer l.life.Leave()
	n, err := l.admit(p, "send", l.sends)
	if err != nil {
		return err
	}
	tag, room, err := parseRdv(p.RdvData, l.theirs)
	if err != nil {
		return l.life.Fault("send", err)
	}
	k := 0
	for l.out[k].p != nil {
		k++
	}
	s := &l.out[k]
	s.p, s.n, s.at = p, n, 0
	s.cursor = p.Cursor()
	s.buf, _ = p.Contiguous()
	s.t.Tag, s.t.Len, s.t.Total = tag, uint64(min(n, room)), uint64(n)
	p.Driver.Phase, p.Driver.Slot = driver.Posted, uint32(k)
	l.sends++
	s.state.Store(slotPosted)
	l.starts.push(uint32(k))
	l.mark()
	l.ctx.nic.run()
	return nil
}

// Fill implements link.Handler.
func (c *Context) Fill(_ *link.Conn, t *link.Transfer, off uint64, b []byte) {
	s := t.User.(*sendSlot)
	if s.buf != nil {
		copy(b, s.buf[off:])
		return
	}
	if s.at != int(off) {
		s.cursor.Seek(int(off))
	}
	s.at = int(off) + s.cursor.Gather(b)
}

// Placed implements link.Handler.
func (c *Context) Placed(lc *link.Conn, t *link.Transfer) {
	t.User.(*sendSlot).state.Store(slotDone)
	lc.User.(*conn).wake()
}

// SendPoll implements driver.Instance.
func (l *large) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !l.life.Enter() {
		return l.life.Over(p, "send")
	}
	defer l.life.Leave()
	if p.Driver.Phase != driver.Posted {
		return true, l.life.Misuse("send poll", p)
	}
	s := &l.out[p.Driver.Slot]
	if s.state.Load() == slotPosted {
		l.ctx.nic.run()
	}
	switch {
	case s.state.Load() == slotDone:
		p.N = s.n
		l.life.Sent(int(s.t.Len))
		l.endSend(s, nil)
	case l.life.State() != kit.StateUp && s.state.CompareAndSwap(slotPosted, slotDone):
		l.endSend(s, l.life.Failure("send")) // the engine does not read any more
	default:
		return false, nil
	}
	return p.Driver.Outcome()
}

func (l *large) endSend(s *sendSlot, err error) {
	s.p.Driver.Finish(err)
	s.p, s.buf, s.cursor = nil, nil, driver.Cursor{}
	s.state.Store(slotFree)
	l.sends--
}

// serve implements track.
func (l *large) serve() {
	for k := 0; l.clears.Load() > 0 && k < transferDepth; k++ {
		if l.in[k].state.CompareAndSwap(slotCancel, slotCanceled) {
			l.clears.Add(-1)
		}
	}
	if l.life.State() != kit.StateUp {
		return
	}
	if n := l.expected.Swap(0); n > 0 && !l.toSelf {
		l.lc.Expect(int(n))
	}
	for k, ok := l.starts.pop(); ok; k, ok = l.starts.pop() {
		if s := &l.out[k]; l.toSelf {
			l.copyToSelf(s)
		} else {
			l.lc.Start(l.ctx.nic.now, &s.t)
		}
	}
}

// copyToSelf places a message whose receive was posted on the same instance.
func (l *large) copyToSelf(s *sendSlot) {
	var b [4096]byte
	for off := uint64(0); ; {
		n := min(s.t.Len-off, uint64(len(b)))
		l.ctx.Fill(nil, &s.t, off, b[:n])
		l.place(&link.Placement{Tag: s.t.Tag, Offset: off, Total: s.t.Total, Data: b[:n]})
		if off += n; off == s.t.Len {
			break
		}
	}
	s.state.Store(slotDone)
	l.wake()
}

func (l *large) deliver(f link.Fragment) {
	l.lc.Release(f.ID)
	l.misbehaved("a message of the small track")
}

// busy implements track.
func (l *large) busy() bool {
	for k := range l.out {
		if s := &l.out[k]; s.p != nil && s.state.Load() == slotPosted {
			return true
		}
	}
	return false
}

// drop implements track: nobody reads or writes posted memory from here on.
func (l *large) drop() {
	for k := range l.in {
		l.in[k].state.Store(slotFree)
		l.in[k].p, l.in[k].buf, l.in[k].cursor = nil, nil, driver.Cursor{}
	}
	for k := range l.out {
		l.out[k].state.Store(slotFree)
		l.out[k].p, l.out[k].buf, l.out[k].cursor = nil, nil, driver.Cursor{}
	}
}

// SendWait implements driver.SendWaiter.
func (l *large) SendWait(ctx context.Context, p *driver.Packet) error {
	return l.ctx.nic.waits.Block(ctx, &l.life, l, p, true)
}

// RecvWait implements driver.RecvWaiter.
func (l *large) RecvWait(ctx context.Context, p *driver.Packet) error {
	return l.ctx.nic.waits.Block(ctx, &l.life, l, p, false)
}
