package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// Prepared is a message that the program writes directly into the session's memory, so that sending neither copies it
// nor has to be waited for. One goroutine uses it, and sends or frees it once; neither it nor its memory may be touched
// afterwards: the next Prepare returns them again.
type Prepared struct {
	Header []byte // room for the user's header, of the length that was asked for
	Data   []byte // room for the data; it may be cut at its end before it is sent

	g  *Gate
	pc *outMsg
}

// Prepare allocates session memory for a message with head bytes of header, at most MaxHeader, and n bytes of data: up
// to twice as many bytes, which the session uses again, and as many messages as the program asks for. It fails with
// driver.ErrTooLong if both together exceed MaxActive, and with the gate's error if the gate is closed or broken.
func (g *Gate) Prepare(head, n int) (*Prepared, error) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if err := g.ready("prepare"); err != nil {
		return nil, err
	}
	if head < 0 || n < 0 || head > MaxHeader || head+n > g.eagerMax() {
		return nil, g.fault("prepare", fmt.Errorf("%w: %d bytes with a header of %d", driver.ErrTooLong, n, head))
	}
	msg := s.newOutMsg(header.Size + head + n)
	p := &msg.prepared
	at := header.Size + head
	*p = Prepared{g: g, pc: msg, Header: msg.buf[header.Size:at:at], Data: msg.buf[at:]}
	return p, nil
}

// Free gives the memory back without sending the message.
func (p *Prepared) Free() {
	if g, msg := p.take(); msg != nil {
		g.s.mu.lock()
		g.s.recycle(msg)
		g.s.leave()
	}
}

func (p *Prepared) take() (*Gate, *outMsg) {
	g, msg := p.g, p.pc
	p.g, p.pc = nil, nil
	return g, msg
}

// Send sends the message with a tag. It never blocks: the message leaves at once or waits in the session's memory, in
// order with other messages, also on a gate that is not connected yet. It fails with ErrBusy if 256 messages wait for
// the peer: then nothing was taken, and the program sends the message again after it has made progress, or frees it. It
// fails with driver.ErrTooLong, and nothing was taken either, if MaxActive has shrunk below the message's length; a
// message that waits for the first connection when that happens breaks the gate. It fails with ErrInvalid if Data is
// neither the slice of Prepare nor the beginning of it.
func (p *Prepared) Send(tag uint64) error {
	return p.send(header.Header{Kind: header.Eager, Tag: tag})
}

// AM sends the message as an active message; otherwise it is like Send.
func (p *Prepared) AM(number uint8) error {
	return p.send(header.Header{Kind: header.AM, Tag: uint64(number)})
}

func (p *Prepared) send(h header.Header) error {
	head, data := p.Header, p.Data
	at := header.Size + len(head)
	if p.pc == nil || len(p.pc.buf) < at+len(data) || len(head) > 0 && &head[0] != &p.pc.buf[header.Size] || len(data) > 0 && &data[0] != &p.pc.buf[at] {
		return &Error{Peer: -1, Op: "send", Err: fmt.Errorf("%w: a message that was sent or freed, or Data that is not its memory", ErrInvalid)}
	}
	s := p.g.s
	s.mu.lock()
	defer s.leave()
	if g := p.g; g.queues.backlog.n+g.queues.later.n+g.active.queue.n >= maxBuffered && g.ready("send") == nil {
		s.pushAll()
		if g.queues.backlog.n+g.queues.later.n+g.active.queue.n >= maxBuffered {
			return ErrBusy
		}
	}
	if n := len(head) + len(data); n > p.g.eagerMax() && p.g.ready("send") == nil {
		return p.g.fault("send", fmt.Errorf("%w: %d bytes with the header, the peer takes %d", driver.ErrTooLong, n, p.g.eagerMax()))
	}
	g, msg := p.take()
	if err := g.ready("send"); err != nil {
		s.recycle(msg)
		return err
	}
	h.Extra, h.Length = uint16(len(head)), uint32(len(data))
	msg.buf = msg.buf[:at+len(data)]
	h.Put(msg.buf)
	s.stats.Sent++
	if h.Kind == header.AM {
		g.enqueueActive(msg)
	} else {
		g.enqueue(msg)
	}
	return nil
}
