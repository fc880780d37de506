package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// receives are those posted on an instance of the small track, and the message that is out in the driver's
// memory, for drivers whose instances have a [Life]. The zero value is empty. The owner of the Life owns it; methods
// are called inside, between Enter and Leave, except those whose comment says that they enter. They allocate only for
// an error.
type receives struct {
	queue packetQueue
	lent  *driver.Packet // its Buf is the first message
}

// Post is RecvPost of [driver.Instance]. It enters.
func (r *receives) Post(l *Life, p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure("receive")
	}
	err := r.admit(l, p)
	l.Leave()
	return err
}

// admit is Post, inside.
func (r *receives) admit(l *Life, p *driver.Packet) error {
	if l.State() == StateUp && p.Driver.Phase == driver.Idle && !r.queue.full() {
		p.Driver.Phase = driver.Posted
		r.queue.push(p)
		return nil
	}
	return r.postLate(l, p)
}

// postLate posts while there are messages from before the end, or returns why not.
func (r *receives) postLate(l *Life, p *driver.Packet) error {
	switch st := l.State(); {
	case st != StateUp && !(st == StatePeerClosed && l.hasLate()):
		return l.Failure("receive")
	case p.Driver.Phase != driver.Idle:
		return l.misuse("receive", p)
	}
	return r.queue.post(l, p)
}

// Want reports whether a posted receive is to have the first message.
func (r *receives) Want() bool { return r.lent == nil && !r.queue.empty() }

// Next takes the receive that is to have the first message, for a driver that copies it in pieces; see Want. Fill does
// so for one that lies in one piece.
func (r *receives) Next() *driver.Packet { return r.queue.pop() }

// Fill copies the first message to the receive that is to have it; see Want.
func (r *receives) Fill(l *Life, message []byte) {
	p := r.queue.pop()
	if len(p.IOV) == 1 && len(p.IOV[0]) >= len(message) {
		p.N = copy(p.IOV[0], message)
		p.Driver.Finish(nil)
		return
	}
	c := p.Cursor()
	p.N = c.Scatter(message)
	r.Filled(l, p, len(message))
}

// Filled ends a receive that Next gave, to which p.N bytes of a message of n were copied.
func (r *receives) Filled(l *Life, p *driver.Packet, n int) {
	var err error
	if p.N < n {
		err = &driver.TruncatedError{Message: n, Buffer: p.N}
		l.Tally.Truncated.Add(1)
	}
	p.Driver.Finish(err)
}

// Fail fails what is posted, after the connection has ended, unless there is a message.
func (r *receives) Fail(l *Life) {
	if !l.hasLate() {
		r.queue.fail(l, "receive")
	}
}

// MayLend reports whether p, which is polled, is to have the first message without a copy.
func (r *receives) MayLend(p *driver.Packet) bool {
	return p.Driver.Phase == driver.Idle && r.lent == nil && r.queue.empty()
}

// Lend gives p the first message, in the driver's memory, until Return, and returns what its poll returns.
func (r *receives) Lend(p *driver.Packet, message []byte) (bool, error) {
	p.Buf, p.N = message[:len(message):len(message)], len(message)
	p.Driver.Phase = driver.BufferOut
	r.lent = p
	return true, nil
}

// Polled returns the result of RecvPoll for p, once the messages that have come were given out.
func (r *receives) Polled(l *Life, p *driver.Packet) (bool, error) {
	if p.Driver.Phase == driver.Done {
		return p.Driver.Outcome()
	}
	return r.pending(l, p)
}

// pending is Polled of a receive that is not done.
func (r *receives) pending(l *Life, p *driver.Packet) (bool, error) {
	switch p.Driver.Phase {
	case driver.Posted, driver.BufferOut:
		return false, nil
	case driver.Idle:
		switch {
		case r.lent != nil:
			return true, l.Fault("receive", fmt.Errorf("%w: a buffer of this instance is out: release it first", driver.ErrInvalid))
		case !r.queue.empty() || l.State() == StateUp || l.hasLate():
			return false, nil
		}
		return true, l.Failure("receive")
	}
	return true, l.misuse("receive poll", p)
}

// Return begins RecvBufRelease of [driver.BufferReceiver]: it takes the buffer back, whose message had n bytes, and
// enters. With an error it has not entered.
func (r *receives) Return(l *Life, p *driver.Packet) (n int, err error) {
	if p == nil || p != r.lent {
		return 0, l.Fault("release", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	r.lent = nil
	n = p.N
	p.Buf, p.Driver.Phase = nil, driver.Idle
	if !l.Enter() {
		return 0, l.Failure("release")
	}
	return n, nil
}

// Cancel is RecvCancel of [driver.Instance]. It enters.
func (r *receives) Cancel(l *Life, p *driver.Packet) error {
	if posted, err := l.EnterCancel(p); !posted {
		return err
	}
	defer l.Leave()
	if r.queue.remove(p) {
		l.Tally.Canceled.Add(1)
		p.Driver.Finish(driver.ErrCanceled)
	}
	return nil
}

// Drop forgets posted receives: polls of them then return driver.ErrClosed.
func (r *receives) Drop() { r.queue = packetQueue{} }
