package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/qnix/nic"
)

// SendPrefetch implements driver.Prefetcher.
func (l *large) SendPrefetch(p *driver.Packet) error { return l.prefetch(p, nic.Read) }

// RecvPrefetch implements driver.Prefetcher.
func (l *large) RecvPrefetch(p *driver.Packet) error { return l.prefetch(p, nic.Write) }

// SendUnfetch implements driver.Prefetcher.
func (l *large) SendUnfetch(p *driver.Packet) error { return l.unfetch(p) }

// RecvUnfetch implements driver.Prefetcher.
func (l *large) RecvUnfetch(p *driver.Packet) error { return l.unfetch(p) }

func (l *large) prefetch(p *driver.Packet, access nic.Access) error {
	if err := l.EnterWith("prefetch", p); err != nil {
		return err
	}
	defer l.Leave()
	var m memory
	n := p.Len()
	m.collect(p, n)
	if err := l.ahead.Begin(l.ctx.cache, p, m.piece[:m.n], regcache.Access(access), !l.isCopied(&m, n)); err != nil {
		return l.Busy()
	}
	return nil
}

func (l *large) unfetch(p *driver.Packet) error {
	if err := l.ahead.Undo(p); err != nil {
		return l.Fault("unfetch", err)
	}
	return nil
}
