package session

import (
	"fmt"
	"slices"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/credit"
	"github.com/bywash/bywash/session/internal/header"
)

// A message that arrives before its receive takes memory of the receiver, out of Config.Unexpected. So whoever sends
// messages that are matched (Eager, Sync, RTS) needs credit of the receiver: package credit. Without credit messages
// wait in the backlog of the sender, where a context ends the wait, and what keeps its order with them waits behind them.
// All else is sent meanwhile: what belongs to transfers under way, answers, and grants.
//
// The first grant is in Hello. Later ones are messages of their own, sent before others; they are not numbered for the
// case that a rail is lost, since the newest one says all.

// beginCredit begins the credit of both directions on a new connection, whose longest packet is given.
func (g *Gate) beginCredit(packet int) {
	g.credit, g.unasked, g.grantDue = credit.Sender{}, 0, false
	g.s.pool.Peers = len(g.s.gates) - 1 // all but this process
	g.received.Begin(&g.s.pool, packet)
}

// endCredit ends the credit of a connection. What is stored stays reserved.
func (g *Gate) endCredit() {
	s := g.s
	g.received.End(&s.pool)
	g.credit, g.unasked, g.grantDue, g.blockage.on = credit.Sender{}, 0, false, false
	if g.short {
		g.short = false
		i := slices.Index(s.short, g)
		s.short = slices.Delete(s.short, i, i+1)
	}
	s.renewShort()
}

// grant is what this process has granted on this connection.
func (g *Gate) grant() header.Credit {
	return header.Credit{Amount: g.received.Grant(), Unasked: uint32(g.lead.eager)}
}

// granted takes a grant of the peer.
func (g *Gate) granted(c *header.Credit) {
	g.credit.Granted(c.Amount)
	g.unasked = int(c.Unasked)
	if g.backlog.n > 0 {
		g.markBusy()
	}
}

// needsCredit reports whether the receiver may have to store the message. A long active message has memory of its own,
// and a copy for another rail has had its credit.
func (msg *outMsg) needsCredit() bool {
	switch header.Kind(msg.buf[0]) {
	case header.Eager, header.Sync:
		return !msg.paid
	case header.RTS:
		return !msg.paid && msg.out != nil && !msg.out.active
	}
	return false
}

// rtsCost is the credit that each RTS takes: that of the longest one. The rail on which it leaves adds its key.
var rtsCost = credit.Cost(header.Size + header.BodySize(header.RTS) + MaxHeader + driver.MaxRemoteKey)

// creditCost returns how much credit the message takes.
func (msg *outMsg) creditCost() int {
	if msg.out != nil {
		return rtsCost
	}
	return credit.Cost(len(msg.buf) + len(msg.iov[1]))
}

// waitsForCredit reports whether the oldest message in the backlog waits for credit.
func (g *Gate) waitsForCredit() bool {
	msg := g.backlog.first
	return msg != nil && msg.needsCredit() && !g.credit.Allows(msg.creditCost())
}

// refund takes back the credit for a message that will not reach the peer although the connection goes on.
func (g *Gate) refund(msg *outMsg) {
	if msg.paid {
		msg.paid = false
		g.credit.Unsent(msg.creditCost())
	}
}

// hadCredit ends the gate if the peer has sent more than its credit, and returns false then.
func (l *link) hadCredit() bool {
	if l.g.received.Exceeded() {
		return l.failProtocol(fmt.Errorf("%w: %w: the peer has sent more messages than it was granted "+
			"(limit of the protocol: no option raises it)", ErrBroken, ErrLimit))
	}
	return true
}

// renew grants the peer more credit if it has used most of it, as far as there is memory.
func (g *Gate) renew() {
	if !g.received.Low() {
		g.blockage.on = false
		return
	}
	s := g.s
	more, short := g.received.Extend(&s.pool)
	if more && !g.byeSent { // after Bye the peer sends nothing, and may be disconnected
		g.grantDue = true
		g.markBusy()
	}
	if short && !g.short {
		g.short = true
		s.short = append(s.short, g)
	}
	blocked := g.received.Blocked() && g.received.Kept() > 0
	if blocked && !g.blockage.on {
		s.stats.Stalls++
		s.watchProgram()
	}
	g.blockage.on = blocked
}

// renewShort renews the credit of peers for which other peers have left no memory, the longest waiting first.
func (s *Session) renewShort() {
	for len(s.short) > 0 {
		g := s.short[0]
		s.short = append(s.short[:0], s.short[1:]...)
		if g.short = false; g.received.Low() {
			if g.renew(); g.short {
				return
			}
		}
	}
}
