package kit

import (
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Small has what instances on the small track do alike: receives that are posted, messages that are lent, buffers that
// the user fills, and sends that wait for credit. A driver embeds it, beside its connection, in its type of instance.
// Init begins it. The driver keeps the common case of SendPost, and of RecvPoll for a receive that has nothing to wait
// for, in its own code; the rest is here. Only the owner calls methods, unless their comment names another caller. They
// allocate only for an error.
type Small struct {
	conn     *Conn
	hooks    SmallHooks
	starter  Starter
	receiver Receiver

	receives receives
	whole    []byte // a message of several pieces that is lent
	buffer   sendBuffer
	waiting  packetQueue // sends that Start has refused
	stalled  atomic.Bool // waiting is not empty
}

// SmallHooks has the driver's part of an instance on the small track. The owner calls it.
type SmallHooks interface {
	// Settle takes what has come for this connection, sends what can be sent ([Small.Push]), and notifies the peer of
	// credit. Polls call it.
	Settle()

	// Longest is the length of the longest message, in bytes, that both sides can.
	Longest() int

	// Room is the buffer that the next message can be written into; nil if there is no credit or none is free.
	Room() []byte

	// Filled sends the first n bytes of the buffer that Room gave; with n < 0 it takes it back unsent. It counts what
	// it sends ([Life.Sent]).
	Filled(buf []byte, n int) error
}

// Receiver is implemented by hooks of a driver that leaves RecvPoll and RecvBufRelease to the kit. Another one has them
// in its own code: it copies messages to the receives that [Small.Receiving] names.
type Receiver interface {
	// First is piece k of the first message that was not received, in memory that is the driver's until Consumed;
	// more reports that another piece follows. It is false if there is no message.
	First(k int) (piece []byte, more, ok bool)

	// Consumed gives the memory of the first message, of n bytes, back to the device.
	Consumed(n int)
}

// Starter is implemented by hooks of a driver whose posted sends may wait for credit.
type Starter interface {
	// Start sends a message, if there is credit and room. The packet is then done: its memory was copied.
	Start(p *driver.Packet) bool

	// Launch hands what was started to the device.
	Launch()
}

// Init begins an instance on a connection.
func (s *Small) Init(c *Conn, hooks SmallHooks) {
	s.conn, s.hooks = c, hooks
	s.starter, _ = hooks.(Starter)
	s.receiver, _ = hooks.(Receiver)
}

// AdmitSend begins SendPost, inside the connection: it checks that p can be sent, and returns its length.
func (s *Small) AdmitSend(p *driver.Packet, longest int) (n int, err error) {
	return s.buffer.Admit(&s.conn.Life, p, longest)
}

// BufferOut reports whether the user fills a buffer: nothing else is sent until it is posted.
func (s *Small) BufferOut() bool { return s.buffer.Out() }

// Later is the rest of SendPost for a packet that was admitted and that Start has refused, or that has others before
// it: it is started once more, or waits.
func (s *Small) Later(p *driver.Packet) error {
	s.hooks.Settle()
	if s.waiting.empty() {
		if s.starter.Start(p) {
			s.starter.Launch()
			return nil
		}
		s.conn.Tally.Waited.Add(1)
	}
	if err := s.waiting.post(&s.conn.Life, p); err != nil {
		return err
	}
	s.stalled.Store(true)
	s.Push() // credit that came before another goroutine could see that sends wait
	return nil
}

// Push starts sends that have waited, or fails them after the connection has ended, and reports whether any is done.
// Settle calls it.
func (s *Small) Push() (did bool) {
	if s.waiting.empty() {
		return false
	}
	if s.conn.State() != StateUp {
		s.waiting.fail(&s.conn.Life, "send")
		s.stalled.Store(false)
		return true
	}
	for !s.waiting.empty() && s.starter.Start(s.waiting.first()) {
		s.waiting.pop()
		did = true
	}
	if s.waiting.empty() {
		s.stalled.Store(false)
	}
	if did {
		s.starter.Launch()
	}
	return did
}

// Stalled reports whether sends wait. Any goroutine may call it.
func (s *Small) Stalled() bool { return s.stalled.Load() }

// Drop forgets posted packets: polls of them then return driver.ErrClosed. It is for [ConnHooks].OnClose.
func (s *Small) Drop() {
	s.waiting = packetQueue{}
	s.stalled.Store(false)
	s.receives.Drop()
}

// SendPoll implements driver.Instance.
func (s *Small) SendPoll(p *driver.Packet) (bool, error) {
	// While sends wait, another goroutine may be at them, between calls.
	if !s.stalled.Load() && p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	return s.settledSend(p)
}

func (s *Small) settledSend(p *driver.Packet) (bool, error) {
	c := s.conn
	if !c.Enter() {
		if c.isClosing() {
			return false, nil
		}
		if p.Driver.Phase == driver.Done {
			return p.Driver.Outcome()
		}
		return c.Over(p, "send")
	}
	s.hooks.Settle()
	done, err := c.Polled("send", p)
	c.Leave()
	return done, err
}

// SendBufGet implements driver.BufferSender.
func (s *Small) SendBufGet(p *driver.Packet) error {
	c := s.conn
	if err := s.buffer.Enter(&c.Life, p); err != nil {
		return err
	}
	defer c.Leave()
	buf := s.room()
	if buf == nil {
		s.hooks.Settle()
		if buf = s.room(); buf == nil {
			return c.Busy()
		}
	}
	s.buffer.Lend(p, buf)
	return nil
}

// room is a buffer for the next message, unless others wait to be sent before it.
func (s *Small) room() []byte {
	if !s.waiting.empty() {
		return nil
	}
	return s.hooks.Room()
}

// SendBufPost implements driver.BufferSender.
func (s *Small) SendBufPost(p *driver.Packet, n int) error {
	c := s.conn
	buf, send, err := s.buffer.Return(&c.Life, p, n, s.hooks.Longest())
	if buf == nil {
		return err
	}
	defer c.Leave()
	if !send {
		_ = s.hooks.Filled(buf, -1)
		return err
	}
	if err := s.hooks.Filled(buf, n); err != nil {
		return err
	}
	p.N = n
	p.Driver.Finish(nil)
	return nil
}

// RecvPost implements driver.Instance.
func (s *Small) RecvPost(p *driver.Packet) error { return s.receives.Post(&s.conn.Life, p) }

// AdmitRecv is RecvPost, inside the connection.
func (s *Small) AdmitRecv(p *driver.Packet) error { return s.receives.admit(&s.conn.Life, p) }

// Receiving is the receive that is to have the first message; nil if none is posted, or a buffer is out. A driver
// without [Receiver] finishes it and calls Received.
func (s *Small) Receiving() *driver.Packet {
	if !s.receives.Want() {
		return nil
	}
	return s.receives.queue.first()
}

// Received takes the receive that Receiving named out of those posted.
func (s *Small) Received() { s.receives.queue.pop() }

// FailReceives fails what is posted, after the connection has ended, unless there is a message.
func (s *Small) FailReceives() { s.receives.Fail(&s.conn.Life) }

// MayLend reports whether p, which is polled, is to have the first message where it is: Lend gives it, until TakeBack.
func (s *Small) MayLend(p *driver.Packet) bool { return s.receives.MayLend(p) }

// Lend gives p a message in the driver's memory.
func (s *Small) Lend(p *driver.Packet, message []byte) { _, _ = s.receives.Lend(p, message) }

// TakeBack begins RecvBufRelease: it takes the message back from p, and enters, unless there is an error.
func (s *Small) TakeBack(p *driver.Packet) error {
	_, err := s.receives.Return(&s.conn.Life, p)
	return err
}

// PolledRecv returns the result of RecvPoll for p, once the messages that have come were given out.
func (s *Small) PolledRecv(p *driver.Packet) (bool, error) { return s.receives.Polled(&s.conn.Life, p) }

// RecvCancel implements driver.Instance.
func (s *Small) RecvCancel(p *driver.Packet) error { return s.receives.Cancel(&s.conn.Life, p) }

// RecvPoll implements driver.Instance.
func (s *Small) RecvPoll(p *driver.Packet) (done bool, err error) {
	c := s.conn
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	if !c.Enter() {
		return c.Over(p, "receive")
	}
	s.hooks.Settle()
	s.fill()
	if message, ok := s.lendable(p); ok {
		done, err = s.receives.Lend(p, message)
	} else {
		done, err = s.receives.Polled(&c.Life, p)
	}
	c.Leave()
	return done, err
}

// fill copies what has come to the receives that are posted.
func (s *Small) fill() {
	c := s.conn
	for s.receives.Want() {
		if !c.HasMessage() {
			if c.State() != StateUp {
				s.receives.Fail(&c.Life)
			}
			return
		}
		piece, more, ok := s.receiver.First(0)
		if !ok {
			return // the goroutine that drains has counted it, and hands it over in a moment
		}
		n := len(piece)
		if more {
			n = s.scatter(piece)
		} else {
			s.receives.Fill(&c.Life, piece)
		}
		s.consumed(n)
	}
}

// scatter copies a message of several pieces and returns its length.
func (s *Small) scatter(piece []byte) (n int) {
	p := s.receives.Next()
	cursor := p.Cursor()
	p.N = 0
	for k, more := 0, true; ; {
		n += len(piece)
		p.N += cursor.Scatter(piece)
		if !more {
			break
		}
		k++
		piece, more, _ = s.receiver.First(k)
	}
	s.receives.Filled(&s.conn.Life, p, n)
	return n
}

// lendable is the first message, if p is to have it where it is.
func (s *Small) lendable(p *driver.Packet) (message []byte, ok bool) {
	if !s.receives.MayLend(p) || !s.conn.HasMessage() {
		return nil, false
	}
	piece, more, ok := s.receiver.First(0)
	if !more {
		return piece, ok
	}
	s.whole = append(s.whole[:0], piece...)
	for k := 1; more; k++ {
		piece, more, _ = s.receiver.First(k)
		s.whole = append(s.whole, piece...)
	}
	return s.whole, true
}

func (s *Small) consumed(n int) {
	s.conn.Taken(n)
	s.receiver.Consumed(n)
}

// RecvBufRelease implements driver.BufferReceiver.
func (s *Small) RecvBufRelease(p *driver.Packet) error {
	n, err := s.receives.Return(&s.conn.Life, p)
	if err != nil {
		return err
	}
	s.consumed(n)
	s.conn.Leave()
	return nil
}
