//go:build linux

package afxdp

import (
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// This driver registers no memory. A prefetched receive gives the sender credit: from the first packet on, the sender
// may have as much under way as the window allows.

var _ driver.Prefetcher = (*large)(nil)

// identity returns a number that distinguishes memory, well enough to notice a post with other memory.
func identity(p *driver.Packet) uint64 {
	c := p.Cursor()
	n := p.Len()
	b := c.Next(1)
	if len(b) == 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(&b[0]))) + uint64(n)<<48 + uint64(n)>>16
}

// matches returns an error if a prefetched packet has other memory now.
func (l *large) matches(p *driver.Packet) error {
	if p.Driver.Phase == driver.Prefetched && p.Driver.Ticket != identity(p) {
		return fmt.Errorf("%w: other memory was prefetched: unfetch first", driver.ErrInvalid)
	}
	return nil
}

func (l *large) Prefetch(p *driver.Packet, sending bool) error {
	p.Driver.Phase, p.Driver.Ticket = driver.Prefetched, identity(p)
	if !sending {
		l.expected.Store(int64(p.Len()))
		l.mark()
		l.ctx.nic.run()
	}
	return nil
}

func (l *large) Unfetch(p *driver.Packet) error {
	if p.Driver.Phase != driver.Prefetched {
		return fmt.Errorf("%w: the packet is not prefetched", driver.ErrInvalid)
	}
	p.Driver.Phase = driver.Idle
	return nil
}
