//go:build linux

package toy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// rdv data: connection id, ticket, length of the receive, whether an update
// follows, and a checksum. An update: ticket and checksum.
const (
	rdvSize    = 32
	updateSize = 12
)

var errRdv = fmt.Errorf("%w: rdv data is damaged or of another instance", driver.ErrInvalid)

// large is an instance on the large track: the writer takes a message from the memory of its packet, and the owner
// copies what came.
type large struct {
	conn
	kit.Large
	kit.Prefetcher
	ticket  uint64
	tickets [depth]uint64 // of receives; guarded by mu
	rdv     [depth][2 * rdvSize]byte
	updates [depth][]byte
}

func (l *large) StartRecv(p *driver.Packet, n int) (slot int, err error) {
	if err := l.prefetched(p); err != nil {
		return 0, err
	}
	k := l.Receives.Free()
	l.ticket++
	b := l.rdv[k][:rdvSize]
	clear(b)
	binary.LittleEndian.PutUint64(b, l.id)
	binary.LittleEndian.PutUint64(b[8:], l.ticket)
	binary.LittleEndian.PutUint64(b[16:], uint64(n))
	l.updates[k] = nil
	if n >= updateFrom {
		b[24] = 1
		u := binary.LittleEndian.AppendUint64(nil, l.ticket)
		l.updates[k] = binary.LittleEndian.AppendUint32(u, crc32.ChecksumIEEE(u))
	}
	binary.LittleEndian.PutUint32(b[28:], crc32.ChecksumIEEE(b[:28]))
	if l.c.fault == "rdv-oversize" {
		b = b[:2*rdvSize]
	}
	p.RdvData = b
	l.mu.Lock()
	l.tickets[k] = l.ticket
	l.mu.Unlock()
	return k, nil
}

// readRdv checks rdv data. h.c means that the message waits for an update.
func (l *large) readRdv(h *header, b []byte) error {
	if l.c.fault == "rdv-oversize" && len(b) > rdvSize {
		b = b[:rdvSize]
	}
	ok := len(b) == rdvSize && binary.LittleEndian.Uint32(b[28:]) == crc32.ChecksumIEEE(b[:28]) &&
		binary.LittleEndian.Uint64(b) == l.id
	if !ok && l.c.fault != "rdv-trusted" {
		return errRdv
	}
	if len(b) >= 25 {
		h.a = binary.LittleEndian.Uint64(b[8:])
		h.c = uint64(b[24])
	}
	return nil
}

func (l *large) StartSend(p *driver.Packet, n int) (slot int, err error) {
	k := l.Sends.Free()
	f := frame{h: header{kind: msgFrame, len: uint32(n)}, p: p, slot: k}
	if err := l.prefetched(p); err != nil {
		return 0, err
	}
	if err := l.readRdv(&f.h, p.RdvData); err != nil {
		return 0, err
	}
	l.mu.Lock()
	l.written[k] = false
	l.sendq = append(l.sendq, f)
	l.work.Signal()
	l.mu.Unlock()
	return k, nil
}

func (l *large) Progress(p *driver.Packet, sending bool) {
	k := int(p.Driver.Slot)
	l.mu.Lock()
	if sending {
		done, over := l.written[k], l.over
		l.mu.Unlock()
		switch {
		case done:
			l.EndSend(k, p.Len(), p.Len(), nil)
		case over:
			l.EndSend(k, 0, 0, l.Failure("send"))
		}
		return
	}
	m, ok := l.take(l.tickets[k])
	ends := ok || p.Driver.Phase == driver.Canceling || l.State() != kit.StateUp
	if ends {
		l.tickets[k] = 0
	}
	l.mu.Unlock()
	switch {
	case ok:
		l.late(m.data)
		c := p.Cursor()
		err := l.Received(k, len(m.data), c.Scatter(m.data))
		l.free(m.data)
		l.EndRecv(k, err)
	case p.Driver.Phase == driver.Canceling:
		l.remember(p)
		l.EndRecv(k, driver.ErrCanceled)
	case ends:
		l.EndRecv(k, l.Failure("receive"))
	}
}

// CancelRecv implements kit.LargeHooks: Progress does it.
func (l *large) CancelRecv(*driver.Packet) {}

// InFlight implements kit.ClosingHooks: the writer may read the memory of a send until it ends.
func (l *large) InFlight(p *driver.Packet, sending bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sending && l.Sends.Holds(p) && !l.written[p.Driver.Slot] && !l.over
}

func (l *large) awaits(ticket uint64) bool {
	return ticket != 0 && slices.Contains(l.tickets[:], ticket)
}

func (l *large) wrote() {}

func (l *large) Pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending := l.opsBusy > 0
	for k, done := range l.written {
		pending = pending || l.Sends.At(k) != nil && !done
	}
	return pending
}

func (l *large) RecvRdvUpdate(p *driver.Packet) (u []byte, err error) {
	if !l.Enter() {
		return nil, l.Failure("update")
	}
	defer l.Leave()
	if l.Receives.Holds(p) {
		k := p.Driver.Slot
		u, l.updates[k] = l.updates[k], nil
	}
	return u, nil
}

func (l *large) SendRdvUpdate(p *driver.Packet, b []byte) error {
	if l.State() != kit.StateUp {
		return l.Failure("update")
	}
	good := len(b) == updateSize && crc32.ChecksumIEEE(b[:8]) == binary.LittleEndian.Uint32(b[8:])
	if !good && l.c.fault != "update-trusted" {
		return l.Fault("update", fmt.Errorf("%w: damaged update", driver.ErrInvalid))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.sendq {
		f := &l.sendq[k]
		if f.p == p && (!good || f.h.a == binary.LittleEndian.Uint64(b)) {
			f.h.c = 0
			l.work.Signal()
			return nil
		}
	}
	return l.Fault("update", fmt.Errorf("%w: no send waits for it", driver.ErrInvalid))
}

// memory returns what a prefetch named.
type memory struct {
	first unsafe.Pointer
	n     int
}

func memoryOf(p *driver.Packet) memory {
	c := p.Cursor()
	return memory{unsafe.Pointer(unsafe.SliceData(c.Next(1))), p.Len()}
}

// prefetched refuses a post of other memory than was prefetched.
func (l *large) prefetched(p *driver.Packet) error {
	if p.Driver.Phase != driver.Prefetched || l.c.fault == "prefetch-any-layout" {
		return nil
	}
	if m, ok := p.Driver.Prefetch.(memory); ok && m.first == memoryOf(p).first && m.n >= p.Len() {
		return nil
	}
	return fmt.Errorf("%w: other memory was prefetched; unfetch first", driver.ErrInvalid)
}

func (l *large) Prefetch(p *driver.Packet, _ bool) error {
	p.Driver.Phase, p.Driver.Prefetch = driver.Prefetched, memoryOf(p)
	return nil
}

func (l *large) Unfetch(p *driver.Packet) error {
	switch {
	case p.Driver.Phase != driver.Prefetched:
		return fmt.Errorf("%w: the packet is not prefetched", driver.ErrInvalid)
	case l.c.fault == "unfetch-stuck":
		p.Driver.Phase = driver.BufferOut
		return nil
	}
	p.Driver.Phase, p.Driver.Prefetch = driver.Idle, nil
	return nil
}

// From here on methods add faults to those of the kit.

func (l *large) SendPost(p *driver.Packet) error { return l.post(p, l.Large.SendPost) }

func (l *large) RecvPost(p *driver.Packet) error { return l.post(p, l.Large.RecvPost) }

func (l *large) RecvPoll(p *driver.Packet) (bool, error) { return l.polled(p, l.Large.RecvPoll) }

func (l *large) RecvCancel(p *driver.Packet) error {
	return l.canceled(p, l.Large.RecvCancel)
}
