package verbs

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
)

// SendPrefetch implements driver.Prefetcher.
func (l *large) SendPrefetch(p *driver.Packet) error { return l.prefetch(p, sendAccess) }

// RecvPrefetch implements driver.Prefetcher.
func (l *large) RecvPrefetch(p *driver.Packet) error { return l.prefetch(p, l.recvAccess()) }

// SendUnfetch implements driver.Prefetcher.
func (l *large) SendUnfetch(p *driver.Packet) error { return l.unfetch(p) }

// RecvUnfetch implements driver.Prefetcher.
func (l *large) RecvUnfetch(p *driver.Packet) error { return l.unfetch(p) }

func (l *large) prefetch(p *driver.Packet, access regcache.Access) error {
	if err := l.EnterWith("prefetch", p); err != nil {
		return err
	}
	defer l.Leave()
	n := p.Len()
	var m memory
	m.collect(p, n)
	copied := n <= bounceSize && !(m.n == 1 && inArena(m.piece[0]))
	if err := l.ahead.Begin(l.ctx.cache, p, m.piece[:m.n], access, !copied); err != nil {
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
