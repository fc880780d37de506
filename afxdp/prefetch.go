//go:build linux

package afxdp

import (
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
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

func (l *large) prefetch(p *driver.Packet, op string) error {
	if err := l.EnterWith(op, p); err != nil {
		return err
	}
	defer l.Leave()
	p.Driver.Phase, p.Driver.Ticket = driver.Prefetched, identity(p)
	return nil
}

func (l *large) unfetch(p *driver.Packet, op string) error {
	if l.State() == kit.StateClosed {
		return l.Failure(op)
	}
	if p.Driver.Phase != driver.Prefetched {
		return l.Fault(op, fmt.Errorf("%w: the packet is not prefetched", driver.ErrInvalid))
	}
	p.Driver.Phase = driver.Idle
	return nil
}

// SendPrefetch implements driver.Prefetcher.
func (l *large) SendPrefetch(p *driver.Packet) error { return l.prefetch(p, "prefetch send") }

// SendUnfetch implements driver.Prefetcher.
func (l *large) SendUnfetch(p *driver.Packet) error { return l.unfetch(p, "unfetch send") }

// RecvPrefetch implements driver.Prefetcher.
func (l *large) RecvPrefetch(p *driver.Packet) error {
	if err := l.prefetch(p, "prefetch receive"); err != nil {
		return err
	}
	l.expected.Store(int64(p.Len()))
	l.mark()
	l.ctx.nic.run()
	return nil
}

// RecvUnfetch implements driver.Prefetcher.
func (l *large) RecvUnfetch(p *driver.Packet) error { return l.unfetch(p, "unfetch receive") }
