package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// sendBuffer is the buffer that is out on an instance of the small track, memory of the driver that the instance's
// user fills, for drivers whose instances have a [Life]. While the user has it, nothing else is sent, so that order is
// kept. The zero value is none. The owner of the Life owns it.
type sendBuffer struct{ p *driver.Packet }

// Out reports whether the buffer is out.
func (b *sendBuffer) Out() bool { return b.p != nil }

// Admit validates p for SendPost, as AdmitSend of Life does.
func (b *sendBuffer) Admit(l *Life, p *driver.Packet, limit int) (n int, err error) {
	if n = p.Len(); l.State() == StateUp && b.p == nil && p.Driver.Phase == driver.Idle && n <= limit {
		return n, nil
	}
	return 0, b.refuse(l, p, n, limit)
}

func (b *sendBuffer) refuse(l *Life, p *driver.Packet, n, limit int) error {
	switch {
	case l.State() != StateUp:
		return l.Failure("send")
	case b.p != nil || p.Driver.Phase != driver.Idle:
		return b.misuse(l, p)
	}
	return l.TooLong("send", n, limit)
}

func (b *sendBuffer) misuse(l *Life, p *driver.Packet) error {
	if b.p == nil || p.Driver.Phase != driver.Idle {
		return l.misuse("send", p)
	}
	return l.Fault("send", fmt.Errorf("%w: a buffer of this instance is out: post it first", driver.ErrInvalid))
}

// Enter begins SendBufGet of [driver.BufferSender]: it enters, unless it fails.
func (b *sendBuffer) Enter(l *Life, p *driver.Packet) error {
	if err := l.enterWith("send", p); err != nil {
		return err
	}
	if b.p != nil {
		l.Leave()
		return b.misuse(l, p)
	}
	return nil
}

// Lend gives p the buffer.
func (b *sendBuffer) Lend(p *driver.Packet, buf []byte) {
	p.Buf, p.Driver.Phase = buf[:len(buf):len(buf)], driver.BufferOut
	b.p = p
}

// Return begins SendBufPost of [driver.BufferSender] with n bytes, of which a message can have limit. It takes the
// buffer back and enters; send reports whether it is to be sent: if not, SendBufPost returns err. Without a buffer it
// has not entered, and SendBufPost returns err.
func (b *sendBuffer) Return(l *Life, p *driver.Packet, n, limit int) (buf []byte, send bool, err error) {
	if p == nil || p != b.p {
		return nil, false, l.Fault("send", fmt.Errorf("%w: the packet holds no buffer of this instance", driver.ErrInvalid))
	}
	if limit = min(limit, len(p.Buf)); n > limit {
		return nil, false, l.TooLong("send", n, limit)
	}
	if !l.Enter() { // a goroutine that closes may be looking at b
		p.Buf, p.Driver = nil, driver.PacketState{}
		return nil, false, l.Failure("send")
	}
	buf = p.Buf
	b.p, p.Buf, p.Driver.Phase = nil, nil, driver.Idle
	if n < 0 {
		return buf, false, nil
	}
	err = l.Failure("send")
	return buf, err == nil, err
}
