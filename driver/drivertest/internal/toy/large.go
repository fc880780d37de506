package toy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// rdv data: connection id, ticket, length of the receive, whether an update
// follows, and a checksum. An update: ticket and checksum.
const (
	rdvSize    = 32
	updateSize = 12
)

var errRdv = fmt.Errorf("%w: rdv data is damaged or of another instance", driver.ErrInvalid)

// writeRdv makes the rdv data of a receive. It is called locked.
func (i *instance) writeRdv(p *driver.Packet) {
	i.ticket++
	p.Driver.Ticket = i.ticket
	used := uint32(0)
	for _, o := range i.posted {
		used |= 1 << o.Driver.Slot
	}
	p.Driver.Slot = uint32(bits.TrailingZeros32(^used))
	b := i.rdv[p.Driver.Slot][:rdvSize]
	clear(b)
	binary.LittleEndian.PutUint64(b, i.id)
	binary.LittleEndian.PutUint64(b[8:], i.ticket)
	n := p.Len()
	binary.LittleEndian.PutUint64(b[16:], uint64(n))
	if n >= updateFrom {
		b[24] = 1
		u := binary.LittleEndian.AppendUint64(nil, i.ticket)
		i.updates[p] = binary.LittleEndian.AppendUint32(u, crc32.ChecksumIEEE(u))
	}
	binary.LittleEndian.PutUint32(b[28:], crc32.ChecksumIEEE(b[:28]))
	if i.c.fault == "rdv-oversize" {
		b = b[:2*rdvSize]
	}
	p.RdvData = b
}

// readRdv checks rdv data. h.c says that the message waits for an update.
func (i *instance) readRdv(h *header, b []byte, n int) error {
	if i.c.fault == "rdv-oversize" && len(b) > rdvSize {
		b = b[:rdvSize]
	}
	ok := len(b) == rdvSize && binary.LittleEndian.Uint32(b[28:]) == crc32.ChecksumIEEE(b[:28]) &&
		binary.LittleEndian.Uint64(b) == i.id
	if !ok && i.c.fault != "rdv-trusted" {
		return errRdv
	}
	if len(b) >= 25 {
		h.a = binary.LittleEndian.Uint64(b[8:])
		h.c = uint64(b[24])
	}
	return nil
}

// RecvRdvUpdate implements driver.RdvUpdater.
func (i largeInstance) RecvRdvUpdate(p *driver.Packet) ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == closed {
		return nil, wrap("update", i.peer, driver.ErrClosed)
	}
	u := i.updates[p]
	delete(i.updates, p)
	return u, nil
}

// SendRdvUpdate implements driver.RdvUpdater.
func (i largeInstance) SendRdvUpdate(p *driver.Packet, b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != up {
		return wrap("update", i.peer, i.err)
	}
	good := len(b) == updateSize && crc32.ChecksumIEEE(b[:8]) == binary.LittleEndian.Uint32(b[8:])
	if !good && i.c.fault != "update-trusted" {
		return wrap("update", i.peer, fmt.Errorf("%w: damaged update", driver.ErrInvalid))
	}
	for k := range i.sendq {
		f := &i.sendq[k]
		if f.p == p && (!good || f.h.a == binary.LittleEndian.Uint64(b)) {
			f.h.c = 0
			i.work.Signal()
			return nil
		}
	}
	return wrap("update", i.peer, fmt.Errorf("%w: no send waits for it", driver.ErrInvalid))
}

// prefetched is the memory that a prefetch named.
type prefetched struct {
	first unsafe.Pointer
	n     int
}

func memoryOf(p *driver.Packet) prefetched {
	c := p.Cursor()
	return prefetched{unsafe.Pointer(unsafe.SliceData(c.Next(1))), p.Len()}
}

// checkPrefetch refuses a post of other memory than was prefetched.
func checkPrefetch(p *driver.Packet) error {
	if p.Driver.Phase != driver.Prefetched {
		return nil
	}
	if m, ok := p.Driver.Prefetch.(prefetched); ok && m == memoryOf(p) {
		return nil
	}
	return fmt.Errorf("%w: other memory was prefetched; unfetch first", driver.ErrInvalid)
}

func (i largeInstance) prefetch(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.usable(p); err != nil {
		return wrap("prefetch", i.peer, err)
	}
	if i.state == gone {
		return wrap("prefetch", i.peer, i.err)
	}
	if p.Driver.Phase == driver.Prefetched {
		return wrap("prefetch", i.peer, driver.ErrInvalid)
	}
	p.Driver.Phase, p.Driver.Prefetch = driver.Prefetched, memoryOf(p)
	return nil
}

func (i largeInstance) unfetch(p *driver.Packet) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == closed {
		return wrap("unfetch", i.peer, driver.ErrClosed)
	}
	if p.Driver.Phase != driver.Prefetched {
		return wrap("unfetch", i.peer, driver.ErrInvalid)
	}
	if i.c.fault == "unfetch-stuck" {
		p.Driver.Phase = driver.BufferOut
		return nil
	}
	p.Driver.Phase, p.Driver.Prefetch = driver.Idle, nil
	return nil
}

// SendPrefetch implements driver.Prefetcher.
func (i largeInstance) SendPrefetch(p *driver.Packet) error { return i.prefetch(p) }

// SendUnfetch implements driver.Prefetcher.
func (i largeInstance) SendUnfetch(p *driver.Packet) error { return i.unfetch(p) }

// RecvPrefetch implements driver.Prefetcher.
func (i largeInstance) RecvPrefetch(p *driver.Packet) error { return i.prefetch(p) }

// RecvUnfetch implements driver.Prefetcher.
func (i largeInstance) RecvUnfetch(p *driver.Packet) error { return i.unfetch(p) }
