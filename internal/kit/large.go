package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// LargeDepth is the number of packets that can be posted each way on the large track.
const LargeDepth = 16

// Large has what instances on the large track do alike: it admits packets, knows which are posted, and sees that their
// memory is the caller's again. A driver embeds it, beside its connection, in its type of instance. Init begins it.
type Large struct {
	Receives, Sends Slots // what is posted; the owner's

	conn    *Conn
	hooks   LargeHooks
	closing ClosingHooks
	limit   int
}

// LargeHooks has the driver's part of an instance on the large track. The owner calls it, inside the connection.
type LargeHooks interface {
	// StartRecv posts memory of n bytes for a message, fills in p.RdvData, and returns the slot of [Large].Receives
	// that p gets, of which one is free; or it does nothing and returns an error.
	StartRecv(p *driver.Packet, n int) (slot int, err error)

	// StartSend sends n bytes to the receive that p.RdvData names, and returns the slot of [Large].Sends that p gets,
	// of which one is free; or it does nothing and returns an error.
	StartSend(p *driver.Packet, n int) (slot int, err error)

	// Progress takes what has come for p, which is posted, and finishes it ([Large.EndRecv], [Large.EndSend]) if that
	// is the end of it. Nothing reaches the packet's memory any more once it is finished.
	Progress(p *driver.Packet, sending bool)

	// CancelRecv asks for the receive p back. Progress finishes p: received, cancelled or failed.
	CancelRecv(p *driver.Packet)
}

// ClosingHooks is implemented by hooks of a driver whose device may still access the memory of packets after
// the connection was closed on this side.
type ClosingHooks interface {
	// InFlight reports whether the device may still access the memory of p, a send or a receive. It is called without
	// entering the connection.
	InFlight(p *driver.Packet, sending bool) bool
}

// Init begins an instance on a connection, whose messages have at most limit bytes.
func (l *Large) Init(c *Conn, hooks LargeHooks, limit int) {
	l.conn, l.hooks, l.limit = c, hooks, limit
	l.closing, _ = hooks.(ClosingHooks)
}

func (l *Large) slots(sending bool) *Slots {
	if sending {
		return &l.Sends
	}
	return &l.Receives
}

func opName(sending bool) string {
	if sending {
		return "send"
	}
	return "receive"
}

// SendPost implements driver.Instance.
func (l *Large) SendPost(p *driver.Packet) error { return l.post(p, true) }

// RecvPost implements driver.Instance.
func (l *Large) RecvPost(p *driver.Packet) error { return l.post(p, false) }

func (l *Large) post(p *driver.Packet, sending bool) error {
	c, op := l.conn, opName(sending)
	if !c.Enter() {
		return c.Failure(op)
	}
	defer c.Leave()
	n, err := c.Admit(op, p, l.limit)
	if err != nil {
		return err
	}
	slots, slot := l.slots(sending), 0
	if slots.Len() == LargeDepth {
		l.hooks.Progress(slots.packets[0], sending)
	}
	switch {
	case slots.Len() == LargeDepth:
		err = driver.ErrBusy
	case sending:
		slot, err = l.hooks.StartSend(p, n)
	default:
		slot, err = l.hooks.StartRecv(p, n)
	}
	switch err {
	case nil:
		slots.put(slot, p)
		return nil
	case driver.ErrBusy:
		return c.Busy()
	}
	return c.Fault(op, err)
}

// SendPoll implements driver.Instance.
func (l *Large) SendPoll(p *driver.Packet) (bool, error) { return l.poll(p, true) }

// RecvPoll implements driver.Instance.
func (l *Large) RecvPoll(p *driver.Packet) (bool, error) { return l.poll(p, false) }

// poll looks at the packet from inside only: the keep-alive goroutine may be finishing it.
func (l *Large) poll(p *driver.Packet, sending bool) (bool, error) {
	c, op := l.conn, opName(sending)
	if !c.Enter() {
		return l.closed(p, sending)
	}
	defer c.Leave()
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		if l.slots(sending).Holds(p) {
			l.hooks.Progress(p, sending)
			return c.Polled(op, p)
		}
	}
	return true, c.misuse(op+" poll", p)
}

// closed is the poll of a packet whose connection has been closed on this side, or is not established yet.
func (l *Large) closed(p *driver.Packet, sending bool) (bool, error) {
	c := l.conn
	if c.isClosing() {
		return false, nil
	}
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		if c.State() == StateClosed && l.closing != nil && l.closing.InFlight(p, sending) {
			return false, nil // the device may still access the memory
		}
	}
	return c.Over(p, opName(sending))
}

// RecvCancel implements driver.Instance.
func (l *Large) RecvCancel(p *driver.Packet) error {
	c := l.conn
	if posted, err := c.EnterCancel(p); !posted {
		return err
	}
	defer c.Leave()
	if !l.Receives.Holds(p) {
		return c.Fault("cancel", fmt.Errorf("%w: the packet is not posted on this instance", driver.ErrInvalid))
	}
	p.Driver.Phase = driver.Canceling
	l.hooks.CancelRecv(p)
	return nil
}

// Received counts the message for the receive in a slot, which had length bytes of memory: total bytes, of which those
// that fit were copied. The error, which may be nil, is for EndRecv.
func (l *Large) Received(slot, total, length int) error {
	p, t := l.Receives.packets[slot], &l.conn.Tally
	p.N = min(total, length)
	t.Received.Add(1)
	t.BytesReceived.Add(uint64(p.N))
	if total <= length {
		return nil
	}
	t.Truncated.Add(1)
	return &driver.TruncatedError{Message: total, Buffer: length}
}

// EndRecv gives the receive in a slot back to its caller.
func (l *Large) EndRecv(slot int, err error) {
	if err == driver.ErrCanceled {
		l.conn.Tally.Canceled.Add(1)
	}
	l.Receives.take(slot).Driver.Finish(err)
}

// EndSend gives the send in a slot back to its caller. Without an error all n bytes of its message were sent, of which
// the receive had room for taken.
func (l *Large) EndSend(slot, n, taken int, err error) {
	p := l.Sends.take(slot)
	if err == nil {
		p.N = n
		l.conn.Sent(taken)
	}
	p.Driver.Finish(err)
}

// Slots are the packets that are posted one way on an instance of the large track. Each has a slot until it is
// finished, which p.Driver.Slot names. They are the owner's.
type Slots struct {
	packets [LargeDepth]*driver.Packet
	used    int
}

// Len returns the number of posted packets.
func (s *Slots) Len() int { return s.used }

// At is the packet in a slot; nil if it is free.
func (s *Slots) At(slot int) *driver.Packet { return s.packets[slot] }

// Free is the first slot that is free. There is one when [LargeHooks] start a packet.
func (s *Slots) Free() int {
	k := 0
	for s.packets[k] != nil {
		k++
	}
	return k
}

// Holds reports whether p is posted here.
func (s *Slots) Holds(p *driver.Packet) bool {
	k := p.Driver.Slot
	return k < LargeDepth && s.packets[k] == p
}

func (s *Slots) put(slot int, p *driver.Packet) {
	s.packets[slot] = p
	s.used++
	p.Driver = driver.PacketState{Phase: driver.Posted, Slot: uint32(slot)}
}

func (s *Slots) take(slot int) *driver.Packet {
	p := s.packets[slot]
	s.packets[slot] = nil
	s.used--
	return p
}
