//go:build linux && !(386 || arm || mips || mipsle)

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
	pieces := m.piece[:m.n]
	parts := pieces
	if l.isCopied(&m, n) {
		parts = nil
	}
	return l.ahead.Begin(l.ctx.cache, p, pieces, parts, regcache.Access(access))
}

func (l *large) Unfetch(p *driver.Packet) error { return l.ahead.Undo(p) }
