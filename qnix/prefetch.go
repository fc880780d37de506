package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/qnix/nic"
)

func (l *large) Prefetch(p *driver.Packet, sending bool) error {
	access := nic.Write
	if sending {
		access = nic.Read
	}
	var m memory
	n := p.Len()
	m.collect(p, n)
	return l.ahead.Begin(l.ctx.cache, p, m.piece[:m.n], regcache.Access(access), !l.isCopied(&m, n))
}

func (l *large) Unfetch(p *driver.Packet) error { return l.ahead.Undo(p) }
