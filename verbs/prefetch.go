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
	return l.ahead.Begin(l.ctx.cache, p, m.piece[:m.n], access, !m.isCopied(n))
}

func (l *large) Unfetch(p *driver.Packet) error { return l.ahead.Undo(p) }
