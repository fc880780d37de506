package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// LargeDepth is how many packets can be posted each way on the large track.
const LargeDepth = 16

// Large has what instances on the large track do alike: it admits packets, and sees that their memory is the caller's
// again. A driver embeds it, beside its connection, in its type of instance. Init begins it.
type Large struct {
	conn     *Conn
	hooks    LargeHooks
	lingerer Lingerer
	limit    int
}

// LargeHooks is what a driver does for an instance on the large track. The owner calls it, inside the connection.
type LargeHooks interface {
	// Posted is how many sends or receives are posted and not finished.
	Posted(sending bool) int

	// Holds reports whether p, a send or a receive, is posted on this instance.
	Holds(p *driver.Packet, sending bool) bool

	// StartRecv posts memory of n bytes for a message, fills in p.RdvData, and makes p posted, or does nothing and
	// returns an error.
	StartRecv(p *driver.Packet, n int) error

	// StartSend sends n bytes to the receive that p.RdvData names, and makes p posted, or does nothing and returns an
	// error.
	StartSend(p *driver.Packet, n int) error

	// Progress takes what has come for p, which is posted, and finishes it if that is the end of it. Nothing reaches
	// the packet's memory any more once it is finished.
	Progress(p *driver.Packet, sending bool)

	// CancelRecv asks for p, a receive, back. Progress finishes it, whatever became of it.
	CancelRecv(p *driver.Packet)
}

// Lingerer is implemented by hooks of a driver whose device may be inside the memory of packets after the connection
// was closed on this side.
type Lingerer interface {
	// Lingers reports whether the device may still reach the memory of p, a send or a receive. It is called without
	// the connection.
	Lingers(p *driver.Packet, sending bool) bool
}

// Init begins an instance on a connection, whose messages have at most limit bytes.
func (l *Large) Init(c *Conn, hooks LargeHooks, limit int) {
	l.conn, l.hooks, l.limit = c, hooks, limit
	l.lingerer, _ = hooks.(Lingerer)
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
	switch {
	case l.hooks.Posted(sending) == LargeDepth:
		err = driver.ErrBusy
	case sending:
		err = l.hooks.StartSend(p, n)
	default:
		err = l.hooks.StartRecv(p, n)
	}
	switch err {
	case nil:
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

// poll looks at the packet from inside only: a keeper may be finishing it.
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
		if l.hooks.Holds(p, sending) {
			l.hooks.Progress(p, sending)
			return c.Polled(op, p)
		}
	}
	return true, c.Misuse(op+" poll", p)
}

// closed is the poll of a packet whose connection has been closed on this side, or does not stand yet.
func (l *Large) closed(p *driver.Packet, sending bool) (bool, error) {
	c := l.conn
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		if c.State() == StateClosed && l.lingerer != nil && l.lingerer.Lingers(p, sending) {
			return false, nil // the device has not let go of the memory
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
	if !l.hooks.Holds(p, false) {
		return c.Fault("cancel", fmt.Errorf("%w: the packet is not posted on this instance", driver.ErrInvalid))
	}
	p.Driver.Phase = driver.Canceling
	l.hooks.CancelRecv(p)
	return nil
}
