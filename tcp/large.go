//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// maxLarge is the longest message of the large track, in bytes.
const maxLarge = 256 << 30

// callBudget is how many bytes one call moves at most: a post and a poll do not block. Tests lower it.
var callBudget = 2 << 20

// readCalls is how many system calls one poll of a connection makes at most: a peer that sends nothing but heads shall
// not keep others waiting.
const readCalls = 256

// The stream of the large track consists of transfers: a head, little-endian, and the bytes of the message, as many as
// there is room for.
//
//	kind u32, 0 u32, tag u64 from the rdv data, bytes that follow u64, length of the message u64
const transferHead = 32

// transfer is such a head.
type transfer struct {
	kind  frameKind
	tag   uint64
	bytes uint64
	total uint64
}

func (t *transfer) put(b *[transferHead]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(t.kind))
	le.PutUint64(b[8:], t.tag)
	le.PutUint64(b[16:], t.bytes)
	le.PutUint64(b[24:], t.total)
}

// parseTransfer reads a head: ok is false if there is none such.
func parseTransfer(b *[transferHead]byte) (t transfer, ok bool) {
	le := binary.LittleEndian
	kind := le.Uint64(b[0:])
	t = transfer{kind: frameKind(kind), tag: le.Uint64(b[8:]), bytes: le.Uint64(b[16:]), total: le.Uint64(b[24:])}
	switch kind {
	case uint64(frameMessage):
		return t, t.total <= maxLarge && t.bytes <= t.total && t.tag&0xff < kit.LargeDepth
	case uint64(framePing), uint64(frameBye):
		return t, t.tag == 0 && t.bytes == 0 && t.total == 0
	}
	return t, false
}

// large is an instance on the large track: bytes are written from the memory of the posted send, and read into that of
// the posted receive. A slot is filled and emptied by the owner; in between it belongs to the holder of rx, or of tx.
type large struct {
	conn
	kit.Large
	mine, theirs uint64 // tokens in rdv data

	in  [kit.LargeDepth]recvSlot
	out [kit.LargeDepth]sendSlot

	// Under rx.
	reading struct {
		head    [transferHead]byte
		got     int // bytes of head
		inside  bool
		t       transfer
		off     uint64
		slot    *recvSlot // nil: the bytes are dropped
		bufs    [maxPieces][]byte
		scratch []byte
	}

	// The owner puts sends into the queue, the holder of tx takes them.
	queue   [kit.LargeDepth]*sendSlot
	queued  atomic.Uint32
	writing struct {
		taken uint32
		slot  *sendSlot // nil: none is under way, or the head is that of a ping or bye
		head  [transferHead]byte
		left  int // bytes of head that were not sent
		off   uint64
		bufs  [maxPieces][]byte
	}
	wantPing, wantBye atomic.Bool
	dirty             atomic.Bool // write has something to do
}

// States of a slot. The owner moves it from slotFree to slotPosted, and at the end back to slotFree.
const (
	slotFree uint32 = iota
	slotPosted
	slotCancel // the owner wants a receive back
	slotDone
)

type recvSlot struct {
	posted
	gen    uint64
	length int // bytes of the memory
	total  int // bytes of the message
	rdv    [kit.RdvBytes]byte
}

type sendSlot struct {
	posted
	n int
	t transfer
}

// posted is the memory of the packet in a slot.
type posted struct {
	state  atomic.Uint32
	buf    []byte        // if it is in one piece
	cursor driver.Cursor // else: at what is to be sent or received next
}

func (m *posted) set(p *driver.Packet) {
	m.buf, _ = p.Contiguous()
	m.cursor = p.Cursor()
}

func (m *posted) clear() {
	m.buf, m.cursor = nil, driver.Cursor{}
	m.state.Store(slotFree)
}

func newLarge() *large {
	l := &large{mine: rand.Uint64()}
	l.Init(&l.Conn, l, maxLarge)
	return l
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
)

func (l *large) token() uint64       { return l.mine }
func (l *large) learn(theirs uint64) { l.theirs = theirs }

// settle takes what has come and sends what can be sent.
func (l *large) settle() {
	flushAllHeld()
	if l.unsent() {
		if l.blocked.Load() {
			l.ctx.takeAll()
		} else {
			l.flush()
		}
	}
	l.receive()
}

func (l *large) Progress(p *driver.Packet, sending bool) {
	if sending {
		s := &l.out[p.Driver.Slot]
		if s.state.Load() != slotDone {
			l.settle()
		}
		l.progressSend(int(p.Driver.Slot))
		return
	}
	s := &l.in[p.Driver.Slot]
	if s.state.Load() != slotDone {
		l.settle()
	}
	l.progressRecv(int(p.Driver.Slot))
}

func (l *large) Pending() bool {
	l.settle()
	for k := range l.out {
		if l.out[k].state.Load() == slotPosted && !l.cannotSend() {
			return true
		}
	}
	return false
}

func (l *large) starts() bool {
	if l.TryEnter() {
		if l.unsent() {
			l.flush()
		}
		l.Leave()
	}
	return true // an owner that is inside flushes
}

// ping implements track. It does not wait for the owner, which may be inside nearly all the time to receive a long
// message.
func (l *large) ping() bool {
	l.wantPing.Store(true)
	l.dirty.Store(true)
	l.flush()
	return true
}

// bye implements track. A transfer that was begun cannot be ended in order: the peer sees that the connection broke.
func (l *large) bye() {
	w := &l.writing
	if w.slot != nil {
		if w.off > 0 || w.left < transferHead {
			l.sendFailed = true
			return
		}
		w.slot, w.left = nil, 0
	}
	w.taken = l.queued.Load()
	l.wantBye.Store(true)
	l.write()
}

func (l *large) drop() {
	for k := range kit.LargeDepth {
		l.in[k].clear()
		l.out[k].clear()
	}
	l.reading.slot, l.writing.slot = nil, nil
	l.writing.taken = l.queued.Load()
}
