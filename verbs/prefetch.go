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
	if !l.life.Enter() {
		return l.life.Failure("prefetch")
	}
	defer l.life.Leave()
	if l.life.State() != driver.StateUp {
		return l.life.Failure("prefetch")
	}
	if p.Driver.Phase != driver.Idle {
		return l.life.Misuse("prefetch", p)
	}
	n := p.Len()
	var m memory
	m.collect(p, n)
	copied := n <= bounceSize && !(m.n == 1 && inArena(m.piece[0]))
	if err := l.ahead.Begin(l.ctx.cache, p, m.piece[:m.n], access, !copied); err != nil {
		l.life.Tally.Busy.Add(1)
		return driver.ErrBusy
	}
	return nil
}

func (l *large) unfetch(p *driver.Packet) error {
	if err := l.ahead.Undo(p); err != nil {
		return l.life.Fault("unfetch", err)
	}
	return nil
}
