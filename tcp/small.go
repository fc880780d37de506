//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// maxSmall is the longest message of the small track, in bytes.
const maxSmall = 16 << 10

// How many bytes wait on their way from or to the socket, powers of two.
const (
	inSize  = 128 << 10
	outSize = 64 << 10
)

// window is how many bytes of frames with messages a side may send ahead of the other side's user. Arriving messages
// always have room in the ring, whose rest is for frames of other kinds. The user's side grants further bytes in steps.
const (
	window    = inSize - 16<<10
	grantStep = window / 4
)

// holdLimit is how many bytes are held back at most to go in one system call.
const holdLimit = 16 << 10

// The stream of the small track consists of frames, each a multiple of 4 bytes: a head u32, little-endian, with the
// kind in the upper 8 bits and the length of the message below, and the message, padded with zeros. The head of a grant
// has, in place of the length, how many bytes the peer may send more, in units of 4; no message follows.
const (
	headSize = 4
	lengths  = 1<<24 - 1
	maxFrame = headSize + maxSmall
)

type frameKind uint8

const (
	frameMessage frameKind = iota + 1
	framePing
	frameBye
	frameGrant
)

func frameHead(k frameKind, n int) uint32 { return uint32(k)<<24 | uint32(n) }

// parseHead reads the head of a frame: ok is false if there is none such.
func parseHead(h uint32) (k frameKind, n int, ok bool) {
	k, n = frameKind(h>>24), int(h&lengths)
	switch k {
	case frameMessage:
		return k, n, n <= maxSmall
	case framePing, frameBye:
		return k, 0, n == 0
	case frameGrant:
		return k, 0, n > 0 && 4*n <= window
	}
	return k, 0, false
}

// frameSize is the length of a frame with a message of n bytes.
func frameSize(n int) int { return headSize + (n+3)&^3 }

// small is an instance on the small track. Both rings have one producer and one consumer: the holder of rx fills the
// ring of arriving frames and the owner empties it; the owner fills the ring of leaving frames and the holder of tx
// empties it. Behind each ring there is room for one frame, so that a message lies in one piece also at the end.
type small struct {
	conn
	kit.Small

	in      []byte
	inTail  uint64 // received from the socket; under rx
	inFrame uint64 // the first frame that is not complete; under rx
	gaps    uint64 // bytes of frames without messages before that, if the owner is not past gapEnd; under rx
	gapEnd  uint64
	behind  bool // parse has left frames for the next poll; under rx
	_       [64]byte
	inHead  atomic.Uint64 // taken by the owner
	_       [64]byte

	out        []byte
	outTail    atomic.Uint64 // put in by the owner
	used       uint64        // bytes of frames with messages; the owner's
	ungranted  uint64        // bytes that were taken and not granted again; accessed only by the owner
	sentFrames atomic.Uint64 // used, for the holder of rx
	heldIn     uint32        // the round of drains of the last post; the owner's
	posts      int           // in that round; the owner's
	lent       bool          // the place behind outTail is the user's; the owner's
	_          [64]byte
	outHead    atomic.Uint64 // sent; under tx
	granted    atomic.Uint64 // what used may be; under rx
	inBufs     [2][]byte
	outBufs    [2][]byte
	aside      [headSize]byte // a frame that goes ahead of the ring; under tx
	asideLeft  atomic.Int32   // how many of its bytes were not sent
}

func newSmall() *small {
	s := &small{in: make([]byte, inSize+maxFrame), out: make([]byte, outSize+maxFrame)}
	s.granted.Store(window)
	s.Small.Init(&s.Conn, s)
	return s
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ kit.Starter           = (*small)(nil)
)

func (s *small) token() uint64 { return 0 }
func (s *small) learn(uint64)  {}

func (s *small) read() (more bool) {
	if s.behind {
		s.parse()
		return !s.ended
	}
	asked := s.room()
	if asked == 0 {
		return false
	}
	asked = s.piece(asked)
	n, st := s.wire.read(s.inPieces(asked))
	if n > 0 {
		s.inTail += uint64(n)
		if !s.hasReceived.Load() {
			s.hasReceived.Store(true)
		}
		s.parse()
	}
	switch {
	case s.ended:
	case st == over:
		s.end(s.wire.err)
	case n == asked, s.behind, s.wire.seal.more():
		return true
	}
	return false
}

// room is how many bytes the ring has room for. If there are none, the owner is to call when there are.
func (s *small) room() int {
	free := func() int { return inSize - int(s.inTail-s.inHead.Load()) }
	n := free()
	if n == 0 {
		s.starved.Store(true)
		if n = free(); n == 0 {
			return 0
		}
	}
	if s.starved.Load() {
		s.starved.Store(false)
	}
	return n
}

// piece returns how many of n free bytes one system call shall fill: those up to the end of the ring unless they are
// few, as a call with one piece of memory costs 100 ns less than one with two.
func (s *small) piece(n int) int {
	const few = 8 << 10
	if end := inSize - int(s.inTail%inSize); end >= few {
		return min(n, end)
	}
	return n
}

// inPieces is the free part of the ring, n bytes.
func (s *small) inPieces(n int) [][]byte { return pieces(&s.inBufs, s.in[:inSize], s.inTail, n) }

// pieces is the part of a ring from a position, n bytes.
func pieces(bufs *[2][]byte, ring []byte, from uint64, n int) [][]byte {
	size := len(ring)
	at := int(from % uint64(size))
	if at+n <= size {
		bufs[0] = ring[at : at+n]
		return bufs[:1]
	}
	bufs[0], bufs[1] = ring[at:], ring[:at+n-size]
	return bufs[:2]
}

// parseLimit is how many frames without messages one poll handles: a peer may send any number of them, and the user's
// call that polls must not block. Messages are bounded by the window.
const parseLimit = 2048

// parse announces the messages that are complete. Foreign bytes are checked here, once: the ring is this process's own.
func (s *small) parse() {
	messages, others := 0, 0
	from, dense := s.inFrame, s.manyGaps()
	s.behind = false
	for s.inTail-from >= headSize {
		head := binary.LittleEndian.Uint32(s.in[from%inSize:])
		k, n, ok := parseHead(head)
		if ok && k != frameMessage && others == parseLimit {
			s.behind = true // before a grant is applied: the next poll parses it again
			break
		}
		if !ok || k == frameGrant && !s.grant(head) {
			s.violated("a frame that there cannot be")
			break
		}
		size := uint64(frameSize(n))
		if s.inTail-from < size {
			break
		}
		if k == frameMessage {
			s.inFrame = s.join(from, size, dense) + size
			messages++
			s.Announce()
		} else {
			others++
		}
		if from += size; k == frameBye {
			s.peerClosed()
			break
		}
	}
	rest := s.inTail - from
	s.inFrame = s.join(from, rest, dense || rest == 0)
	s.inTail = s.inFrame + rest
	if messages > 0 {
		s.Wake()
	}
}

// gapLimit is how many bytes of frames without messages are left between messages that wait, at most; the window leaves
// the ring twice as much room for them.
const gapLimit = (inSize - window) / 2

// manyGaps reports whether there are more than gapLimit.
func (s *small) manyGaps() bool {
	if s.gaps > gapLimit && int64(s.inHead.Load()-s.gapEnd) >= 0 {
		s.gaps = 0 // the owner is past them
	}
	return s.gaps > gapLimit
}

// join returns where the n bytes at from are to follow inFrame: frames in between, which have no messages, are handled.
// The owner skips them, unless the bytes are moved in their place.
func (s *small) join(from, n uint64, move bool) uint64 {
	if from == s.inFrame {
		return from
	}
	if !move {
		s.gaps += from - s.inFrame
		s.gapEnd = from
		return from
	}
	for to := s.inFrame; n > 0; {
		t, f := to%inSize, from%inSize
		k := min(n, inSize-t, inSize-f)
		copy(s.in[t:t+k], s.in[f:f+k])
		to, from, n = to+k, from+k, n-k
	}
	return s.inFrame
}

// grant lets the owner send more. It reports whether the peer has been sent so much.
func (s *small) grant(head uint32) bool {
	granted := s.granted.Load() + 4*uint64(head&lengths)
	if granted-window > s.sentFrames.Load() {
		return false
	}
	s.granted.Store(granted)
	if s.Stalled() {
		s.Conn.Wake()
		s.ctx.schedule()
	}
	return true
}

func (s *small) First(int) (piece []byte, more, ok bool) {
	at := s.inHead.Load()
	for {
		k, n, _ := parseHead(binary.LittleEndian.Uint32(s.in[at%inSize:]))
		if k == frameMessage {
			return s.message(int(at%inSize)+headSize, n), false, true
		}
		at += headSize // of another kind, which was handled when it came
		s.inHead.Store(at)
	}
}

// message is one of n bytes at a place of the ring. What lies at the ring's beginning is copied behind its end.
func (s *small) message(at, n int) []byte {
	if over := at + n - inSize; over > 0 {
		copy(s.in[inSize:], s.in[:over])
	}
	return s.in[at : at+n : at+n]
}

func (s *small) Consumed(n int) {
	s.inHead.Add(uint64(frameSize(n)))
	s.ungranted += uint64(frameSize(n))
	if s.ungranted >= grantStep {
		s.repay()
	}
	if s.starved.Load() && !s.receive() {
		s.ctx.drain.requeue(&s.conn)
	}
}

// repay grants the peer what the owner has taken, if there is room for the frame. The owner's.
func (s *small) repay() {
	tail := s.outTail.Load()
	if s.State() != kit.StateUp {
		return
	}
	if s.lent {
		if s.pass(frameHead(frameGrant, int(s.ungranted/4))) {
			s.ungranted = 0
		}
		return
	}
	if outSize-int(tail-s.outHead.Load()) < 2*headSize {
		return
	}
	binary.LittleEndian.PutUint32(s.out[tail%outSize:], frameHead(frameGrant, int(s.ungranted/4)))
	s.outTail.Store(tail + headSize)
	s.ungranted = 0
	s.ctx.drain.hold(&s.conn)
	s.ctx.schedule()
}

func (s *small) Longest() int { return maxSmall }

func (s *small) SendPost(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	_, err := s.AdmitSend(p, maxSmall)
	if err == nil {
		if !s.Stalled() && s.Start(p) {
			s.Launch()
		} else {
			err = s.Later(p)
		}
	}
	s.Leave()
	return err
}

// reserve is room for frames of other kinds than messages.
const reserve = 16 * headSize

// hasRoom reports whether a message of n bytes fits, here and at the peer.
func (s *small) hasRoom(n int) bool {
	size := frameSize(n)
	return outSize-int(s.outTail.Load()-s.outHead.Load()) >= size+reserve && s.used+uint64(size) <= s.granted.Load()
}

func (s *small) Start(p *driver.Packet) bool {
	n := p.Len()
	if !s.hasRoom(n) {
		return false
	}
	tail := s.outTail.Load()
	at := int(tail % outSize)
	b := s.out[at+headSize : at+headSize+n]
	if len(p.IOV) == 1 {
		copy(b, p.IOV[0])
	} else {
		c := p.Cursor()
		c.Gather(b)
	}
	s.publish(tail, n)
	p.N = n
	p.Driver.Finish(nil)
	return true
}

// publish adds the frame of a message of n bytes, which lies in its place already.
func (s *small) publish(tail uint64, n int) {
	s.used += uint64(frameSize(n))
	s.sentFrames.Store(s.used)
	s.put(tail, frameMessage, n)
	s.Sent(n)
}

func (s *small) put(tail uint64, k frameKind, n int) {
	at, size := int(tail%outSize), frameSize(n)
	binary.LittleEndian.PutUint32(s.out[at:], frameHead(k, n))
	clear(s.out[at+headSize+n : at+size])
	if over := at + size - outSize; over > 0 {
		copy(s.out, s.out[outSize:outSize+over])
	}
	s.outTail.Store(tail + uint64(size))
}

// promptPosts is how many messages after a poll are sent at once.
const promptPosts = 4

// Launch implements kit.Starter. The first messages after a poll are sent at once. Further ones, of a
// program that sends without receiving, are held back: they go together when there are enough, with the next poll of
// the program on any context of this driver, or when the keep-alive goroutine polls.
func (s *small) Launch() {
	round := s.ctx.drain.round.Load()
	if s.heldIn != round {
		s.heldIn, s.posts = round, 0
	}
	if s.posts++; s.posts <= promptPosts {
		s.flush()
		return
	}
	if s.outTail.Load()-s.outHead.Load() >= holdLimit {
		s.flush()
		return
	}
	s.ctx.drain.hold(&s.conn)
	s.ctx.schedule()
}

func (s *small) Settle() {
	if s.unsent() {
		if s.blocked.Load() {
			s.ctx.takeAll()
		} else {
			s.flush()
		}
	}
	flushAllHeld()
	s.heldIn = s.ctx.drain.round.Load() - 1
	if s.ungranted >= grantStep {
		s.repay()
	}
	s.Push()
	if s.HasMessage() && !s.Stalled() {
		return // a system call less: the socket is looked at when they are taken
	}
	s.receive()
}

func (s *small) unsent() bool {
	return s.outTail.Load() != s.outHead.Load() || s.asideLeft.Load() > 0 || s.wire.seal.unsent()
}

func (s *small) write() {
	for s.unsent() {
		bufs, aside := s.leaving()
		n, st := s.wire.write(bufs)
		if n > 0 {
			if aside {
				s.asideLeft.Add(int32(-n))
			} else {
				s.outHead.Add(uint64(n))
			}
			if !s.hasSent.Load() {
				s.hasSent.Store(true)
			}
		}
		if !s.sent(st) {
			return
		}
	}
}

// leaving is what write hands over next, and whether that is the frame aside.
func (s *small) leaving() (bufs [][]byte, aside bool) {
	if left := s.asideLeft.Load(); left > 0 {
		s.outBufs[0] = s.aside[headSize-left:]
		return s.outBufs[:1], true
	}
	head := s.outHead.Load()
	return pieces(&s.outBufs, s.out[:outSize], head, int(s.outTail.Load()-head)), false
}

// pass sends a frame without a message while the user holds the buffer behind what waits in the ring. It reports
// whether it did: if the stream is not between two frames, a later call does. The owner's.
func (s *small) pass(head uint32) bool {
	if !s.tx.try() {
		return false
	}
	did := !s.gone && !s.sendFailed && !s.unsent()
	if did {
		binary.LittleEndian.PutUint32(s.aside[:], head)
		s.asideLeft.Store(headSize)
	}
	s.tx.unlock()
	s.flush()
	return did
}

func (s *small) Room() []byte {
	if !s.hasRoom(maxSmall) {
		return nil
	}
	s.lent = true
	at := int(s.outTail.Load()%outSize) + headSize
	return s.out[at : at+maxSmall]
}

func (s *small) Filled(_ []byte, n int) error {
	s.lent = false
	if n >= 0 {
		s.publish(s.outTail.Load(), n)
		s.Launch()
	}
	return nil
}

func (s *small) starts() bool {
	if !s.TryEnter() {
		return !s.Stalled() // credit may have come after the owner's last look
	}
	defer s.Leave()
	if s.ungranted >= grantStep {
		s.repay()
	}
	if s.Stalled() && s.Push() {
		s.Wake()
	}
	return true
}

// ping implements track. While something waits to be sent there is no need for it, or no room.
func (s *small) ping() bool {
	if !s.TryEnter() {
		return false
	}
	defer s.Leave()
	switch {
	case s.unsent():
	case s.lent:
		s.pass(frameHead(framePing, 0))
	default:
		s.put(s.outTail.Load(), framePing, 0)
		s.flush()
	}
	return true
}

func (s *small) bye() {
	if outSize-int(s.outTail.Load()-s.outHead.Load()) < headSize {
		s.sendFailed = true
		return
	}
	s.put(s.outTail.Load(), frameBye, 0)
	s.write()
}

func (s *small) Pending() bool {
	s.Settle()
	return s.Stalled() || s.unsent() && !s.cannotSend()
}

func (i *conn) cannotSend() bool {
	if !i.tx.try() {
		return false
	}
	defer i.tx.unlock()
	return i.sendFailed
}

func (s *small) drop() { s.Drop() }
