//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import "github.com/bywash/bywash/driver"

func (l *large) Prefetch(p *driver.Packet, sending bool) error {
	n := p.Len()
	access := l.recvAccess(n)
	if sending {
		access = sendAccess
	}
	var m memory
	m.collect(p, n)
	pieces := m.piece[:m.n]
	switch {
	case m.isCopied(n):
		return l.ahead.Begin(l.ctx.cache, p, pieces, nil, access)
	case isUncached(&m):
		var parts memory
		parts.cut(pieces[0], partSize(n))
		return l.ahead.Begin(l.ctx.cache, p, pieces, parts.piece[:parts.n], access)
	}
	return l.ahead.Begin(l.ctx.cache, p, pieces, pieces, access)
}

func (l *large) Unfetch(p *driver.Packet) error { return l.ahead.Undo(p) }
