package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// queueDepth is how many packets can be posted each way on the small track.
const queueDepth = 64

// fifo is a queue of posted packets.
type fifo struct {
	p          [queueDepth]*driver.Packet
	head, tail uint32
}

func (q *fifo) empty() bool           { return q.head == q.tail }
func (q *fifo) full() bool            { return q.tail-q.head == queueDepth }
func (q *fifo) first() *driver.Packet { return q.p[q.head%queueDepth] }
func (q *fifo) push(p *driver.Packet) { q.p[q.tail%queueDepth] = p; q.tail++ }
func (q *fifo) pop() (p *driver.Packet) {
	p = q.first()
	q.p[q.head%queueDepth] = nil
	q.head++
	return p
}

// remove takes out p, wherever it is.
func (q *fifo) remove(p *driver.Packet) {
	for i := q.head; i != q.tail; i++ {
		if q.p[i%queueDepth] != p {
			continue
		}
		for ; i+1 != q.tail; i++ {
			q.p[i%queueDepth] = q.p[(i+1)%queueDepth]
		}
		q.tail--
		q.p[q.tail%queueDepth] = nil
		return
	}
}

// small is an instance on the small track.
type small struct {
	*conn
	send    producer
	recv    consumer
	sends   fifo // that found the ring full
	recvs   fifo
	partial int // bytes of the message at the head that were copied out

	sendBuf *driver.Packet // has a buffer out
	recvBuf *driver.Packet
	arrived arrival // what recvBuf was given

	named     uint32         // a probe has named what is at the head
	deathSaid bool           // a probe has named the end; guarded by the prober
	waitFor   *driver.Packet // of the wait under way
	sending   bool
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ driver.OneSided       = (*small)(nil)
)

func (s *small) attach() {
	out, in := s.side, 1-s.side
	if s.toSelf {
		in = out
	}
	s.send = newProducer(s.seg.ring[out])
	s.recv = newConsumer(s.seg.ring[in])
	s.ctx.prober.add(s)
}

func (s *small) detach() {
	s.releasePeer()
}

// fail implements trackEnd. The peer never writes to posted memory here.
func (s *small) fail() bool {
	s.ctx.prober.remove(s)
	s.sends, s.recvs = fifo{}, fifo{}
	s.oneSided = opQueue{}
	return true
}

func finish(p *driver.Packet, err error) {
	p.Driver.Err = err
	p.Driver.Phase = driver.Done
}

// Path implements driver.Instance.
func (s *small) Path() string {
	if s.opPath != "" {
		return s.opPath
	}
	return "ring"
}

// Disconnect implements driver.Instance.
func (s *small) Disconnect() error {
	pending := false
	if s.enter() {
		s.push()
		pending = !s.sends.empty()
		s.leave()
	}
	return s.disconnect(pending)
}

// notify wakes the peer if it sleeps; called after each message.
func (s *small) notify() {
	if s.asym && load32(&s.send.cons.armed)|load32(&s.bell.raised) == 0 {
		return
	}
	s.notifySlow()
}

func (s *small) notifySlow() {
	if raised(&s.send.cons.armed, s.asym) {
		atomic.StoreUint32(&s.send.cons.armed, 0)
		wake(&s.theirs.seq)
		s.tally.woke.Add(1)
	}
	if raised(&s.bell.raised, s.asym) {
		atomic.StoreUint32(&s.bell.raised, 0)
		wake(&s.bell.seq)
		s.tally.woke.Add(1)
	}
}

// SendPost implements driver.Instance.
func (s *small) SendPost(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("send")
	}
	err := s.post(p)
	s.leave()
	return err
}

func (s *small) post(p *driver.Packet) error {
	if s.state.Load() != stateUp {
		return s.failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.misuse("send", p)
	}
	if len(p.IOV) == 1 && s.sends.empty() {
		// The common case, in one look.
		b := p.IOV[0]
		if len(b) <= inlineMax {
			if ok, _ := s.send.room(len(b)); ok {
				s.send.sendInline(b)
				s.sent(p, len(b))
				return nil
			}
		}
	}
	n := p.Len()
	if n > maxSmall {
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: fmt.Errorf("%w: %d bytes, the small track carries %d", driver.ErrTooLong, n, maxSmall)}
	}
	if !s.sends.empty() {
		s.push()
	}
	if s.sends.empty() && s.trySend(p, n) {
		return nil
	}
	if s.sends.full() {
		s.tally.busy.Add(1)
		return driver.ErrBusy
	}
	s.tally.waited.Add(1)
	p.Driver.Phase = driver.Posted
	s.sends.push(p)
	return nil
}

func (s *small) misuse(op string, p *driver.Packet) error {
	what := "a buffer of this instance is out: post or release it first"
	switch {
	case p.Driver.Phase == driver.BufferOut:
		what = "the packet holds a buffer"
	case p.Driver.Phase != driver.Idle:
		what = "the packet is posted already, or its outcome was not polled"
	}
	return &driver.Error{Driver: Name, Peer: s.peerURL, Op: op, Err: fmt.Errorf("%w: %s", driver.ErrInvalid, what)}
}

// sent finishes a packet whose n bytes are in the ring.
func (s *small) sent(p *driver.Packet, n int) {
	p.N = n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
	if s.opPath != "" {
		s.opPath = ""
	}
	s.tally.sent.Add(1)
	s.tally.bytesSent.Add(uint64(n))
	s.notify()
}

func (s *small) trySend(p *driver.Packet, n int) bool {
	ok, bad := s.send.room(n)
	if !ok {
		if bad {
			s.misbehaved("progress beyond what was sent")
		}
		return false
	}
	c := p.Cursor()
	s.send.sendGather(&c, n)
	s.sent(p, n)
	return true
}

// push sends what waits for room.
func (s *small) push() {
	for !s.sends.empty() {
		p := s.sends.first()
		if !s.trySend(p, p.Len()) {
			break
		}
		s.sends.pop()
	}
	if st := s.state.Load(); st != stateUp && !s.sends.empty() {
		err := s.failure("send")
		if st == statePeerClosed {
			err = &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: driver.ErrClosed}
		}
		for !s.sends.empty() {
			finish(s.sends.pop(), err)
		}
	}
}

// outcome takes the result out of a packet that is done.
func outcome(p *driver.Packet) (bool, error) {
	p.Driver.Phase = driver.Idle
	return true, p.Driver.Err
}

// SendPoll implements driver.Instance.
func (s *small) SendPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return outcome(p)
	}
	if !s.enter() {
		return s.ended(p, "send")
	}
	s.push()
	s.leave()
	switch p.Driver.Phase {
	case driver.Done:
		return outcome(p)
	case driver.Posted:
		return false, nil
	}
	return true, s.misuse("send poll", p)
}

// ended answers a poll on an instance that was closed or does not stand. What is
// posted is not given back before the peer has left its memory.
func (n *conn) ended(p *driver.Packet, op string) (bool, error) {
	switch p.Driver.Phase {
	case driver.Done:
		return outcome(p)
	case driver.Posted, driver.Canceling:
		if n.closing.Load() {
			return false, nil
		}
		p.N, p.RdvData = 0, nil
		p.Driver.Phase = driver.Idle
	}
	return true, n.failure(op)
}

// SendBufGet implements driver.BufferSender.
func (s *small) SendBufGet(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("send")
	}
	defer s.leave()
	if s.state.Load() != stateUp {
		return s.failure("send")
	}
	if p.Driver.Phase != driver.Idle || s.sendBuf != nil {
		return s.misuse("send", p)
	}
	s.push()
	ok, bad := s.send.room(maxSmall)
	if bad {
		s.misbehaved("progress beyond what was sent")
	}
	if !ok || !s.sends.empty() {
		s.tally.busy.Add(1)
		return driver.ErrBusy
	}
	p.Buf = unsafe.Slice((*byte)(s.send.dataAt()), maxSmall)
	p.Driver.Phase = driver.BufferOut
	s.sendBuf = p
	return nil
}

// SendBufPost implements driver.BufferSender.
func (s *small) SendBufPost(p *driver.Packet, n int) error {
	if p != s.sendBuf || n > maxSmall {
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "send", Err: fmt.Errorf("%w: no such buffer is out, or %d bytes are more than it has", driver.ErrInvalid, n)}
	}
	if !s.enter() {
		return s.failure("send")
	}
	defer s.leave()
	s.sendBuf = nil
	b := p.Buf
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if n < 0 {
		return nil
	}
	if s.state.Load() != stateUp {
		return s.failure("send")
	}
	if n <= inlineMax {
		s.send.sendInline(b[:n])
	} else {
		s.send.publishData(n)
	}
	s.sent(p, n)
	return nil
}

// RecvPost implements driver.Instance.
func (s *small) RecvPost(p *driver.Packet) error {
	if !s.enter() {
		return s.failure("receive")
	}
	err := s.postRecv(p)
	s.leave()
	return err
}

func (s *small) postRecv(p *driver.Packet) error {
	if st := s.state.Load(); st == stateUp || st == statePeerClosed && s.hasArrived() {
		if p.Driver.Phase != driver.Idle {
			return s.misuse("receive", p)
		}
		if s.recvs.full() {
			s.tally.busy.Add(1)
			return driver.ErrBusy
		}
		p.Driver.Phase = driver.Posted
		s.recvs.push(p)
		return nil
	}
	return s.failure("receive")
}

// hasArrived tells whether a message is there, which can be received after the
// connection has ended too.
func (s *small) hasArrived() bool {
	var a arrival
	ok, bad := s.recv.peek(&a)
	return ok && !bad && a.there == a.n
}

// RecvPoll implements driver.Instance.
func (s *small) RecvPoll(p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return outcome(p)
	}
	if !s.enter() {
		return s.ended(p, "receive")
	}
	if p.Driver.Phase == driver.Idle {
		done, err := s.pollBuffer(p)
		s.leave()
		return done, err
	}
	s.drain()
	s.leave()
	switch p.Driver.Phase {
	case driver.Done:
		return outcome(p)
	case driver.Posted, driver.Canceling:
		return false, nil
	}
	return true, s.misuse("receive poll", p)
}

// drain fills posted receives with what has arrived.
func (s *small) drain() {
	var a arrival
	for !s.recvs.empty() && s.recvBuf == nil {
		ok, bad := s.recv.peek(&a)
		if !ok {
			if bad {
				s.misbehaved("malformed message header")
			}
			if s.state.Load() != stateUp {
				s.drainEnd()
			}
			return
		}
		p := s.recvs.first()
		if a.kind == kindInline && len(p.IOV) == 1 && len(p.IOV[0]) >= a.n {
			takeInline(p, &a)
		} else if !s.fill(p, &a) {
			if s.state.Load() != stateUp {
				s.drainEnd()
			}
			return
		}
		s.recvs.pop()
		s.consumed(&a)
	}
}

// drainEnd fails the posted receives after the connection has ended. What was
// sent before the end was seen may have become visible just now.
func (s *small) drainEnd() {
	var a arrival
	if ok, _ := s.recv.peek(&a); ok && a.there == a.n {
		return
	}
	err := s.failure("receive")
	if s.state.Load() == statePeerClosed {
		err = &driver.Error{Driver: Name, Peer: s.peerURL, Op: "receive", Err: driver.ErrClosed}
	}
	for !s.recvs.empty() {
		finish(s.recvs.pop(), err)
	}
	s.partial = 0
}

// takeInline is fill for the message that latency is measured by.
func takeInline(p *driver.Packet, a *arrival) {
	if a.n == 8 {
		*(*[8]byte)(p.IOV[0]) = *(*[8]byte)(a.at)
	} else {
		copy(p.IOV[0], unsafe.Slice((*byte)(a.at), a.n))
	}
	p.N = a.n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
}

// fill copies what is there of a message to a packet. True when all is.
func (s *small) fill(p *driver.Packet, a *arrival) bool {
	if len(p.IOV) == 1 {
		room := p.IOV[0]
		if a.there > s.partial && s.partial < len(room) {
			move(room[s.partial:], unsafe.Slice((*byte)(unsafe.Add(a.at, s.partial)), a.there-s.partial))
		}
		s.partial = a.there
		if a.there < a.n {
			return false
		}
		s.received(p, a, len(room))
		return true
	}
	if a.there > s.partial {
		c := p.Cursor()
		c.Seek(s.partial)
		c.Scatter(unsafe.Slice((*byte)(unsafe.Add(a.at, s.partial)), a.there-s.partial))
	}
	s.partial = a.there
	if a.there < a.n {
		return false
	}
	s.received(p, a, p.Len())
	return true
}

// received finishes a packet with room for a message of a.n bytes.
func (s *small) received(p *driver.Packet, a *arrival, room int) {
	s.partial = 0
	p.N = a.n
	p.Driver.Err = nil
	p.Driver.Phase = driver.Done
	if a.n > room {
		p.N = room
		p.Driver.Err = &driver.TruncatedError{Message: a.n, Buffer: room}
		s.tally.truncated.Add(1)
	}
}

// consumed moves past a message.
func (s *small) consumed(a *arrival) {
	published := s.recv.pop(a)
	s.tally.received.Add(1)
	s.tally.bytesReceived.Add(uint64(a.n))
	if load32(&s.named) != 0 {
		store32(&s.named, 0)
	}
	if published {
		s.signal()
	}
}

// pollBuffer receives into the ring itself.
func (s *small) pollBuffer(p *driver.Packet) (bool, error) {
	if s.recvBuf != nil {
		return true, s.misuse("receive", p)
	}
	if !s.recvs.empty() {
		s.drain()
		return false, nil
	}
	var a arrival
	ok, bad := s.recv.peek(&a)
	if ok && a.there == a.n {
		p.Buf = unsafe.Slice((*byte)(a.at), a.n)
		p.N = a.n
		p.Driver.Phase = driver.BufferOut
		s.recvBuf, s.arrived = p, a
		return true, nil
	}
	if bad {
		s.misbehaved("malformed message header")
	}
	if s.state.Load() == stateUp {
		return false, nil
	}
	if ok, _ := s.recv.peek(&a); ok && a.there == a.n {
		return false, nil // it came just before the end
	}
	if s.state.Load() == statePeerClosed {
		return true, &driver.Error{Driver: Name, Peer: s.peerURL, Op: "receive", Err: driver.ErrClosed}
	}
	return true, s.failure("receive")
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *small) RecvBufRelease(p *driver.Packet) error {
	if p != s.recvBuf {
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "release", Err: fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid)}
	}
	s.recvBuf = nil
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !s.enter() {
		return s.failure("release")
	}
	s.consumed(&s.arrived)
	s.leave()
	return nil
}

// RecvCancel implements driver.Instance.
func (s *small) RecvCancel(p *driver.Packet) error {
	switch p.Driver.Phase {
	case driver.Done, driver.Canceling:
		return nil
	case driver.Posted:
	default:
		if s.state.Load() == stateClosed {
			return s.failure("cancel")
		}
		return &driver.Error{Driver: Name, Peer: s.peerURL, Op: "cancel", Err: fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid)}
	}
	if !s.enter() {
		return s.failure("cancel")
	}
	defer s.leave()
	if s.partial > 0 && s.recvs.first() == p {
		// Half of a message is in it: that message wins.
		p.Driver.Phase = driver.Canceling
		return nil
	}
	s.recvs.remove(p)
	s.tally.canceled.Add(1)
	finish(p, driver.ErrCanceled)
	return nil
}

// ready, arm and disarm implement waiter for the packet in waitFor.
func (s *small) ready() (bool, error) {
	if s.sending {
		return s.SendPoll(s.waitFor)
	}
	return s.RecvPoll(s.waitFor)
}

func (s *small) arm() {
	if s.enter() {
		if s.sending {
			raise(&s.mine.sleeping, s.asym)
		} else {
			raise(&s.recv.cons.armed, s.asym)
		}
		s.leave()
	}
}

func (s *small) disarm() {
	if s.enter() {
		if s.sending {
			atomic.StoreUint32(&s.mine.sleeping, 0)
		} else {
			atomic.StoreUint32(&s.recv.cons.armed, 0)
		}
		s.leave()
	}
}

func (s *small) wait(ctx context.Context, p *driver.Packet, sending bool) error {
	s.waitFor, s.sending = p, sending
	return s.conn.block(ctx, s)
}

// SendWait implements driver.SendWaiter.
func (s *small) SendWait(ctx context.Context, p *driver.Packet) error { return s.wait(ctx, p, true) }

// RecvWait implements driver.RecvWaiter.
func (s *small) RecvWait(ctx context.Context, p *driver.Packet) error { return s.wait(ctx, p, false) }
