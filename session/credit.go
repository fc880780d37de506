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

// gateCredit is the credit of both directions of a gate.
type gateCredit struct {
	send     credit.Sender   // what this process may send
	unasked  int             // longest message in bytes that it may send at once, with its header
	receive  credit.Receiver // what the peer may send, and what is stored of it
	grantDue bool            // the peer is to be sent a Grant
	short    bool            // other peers have left no memory for this one
	blockage blockedWatch
}

// beginCredit begins the credit of both directions on a new connection, whose longest packet is given.
func (g *Gate) beginCredit(packet int) {
	g.credit.send, g.credit.unasked, g.credit.grantDue = credit.Sender{}, 0, false
	g.s.credit.pool.Peers = len(g.s.gates) - 1 // all but this process
	_, short := g.credit.receive.Begin(&g.s.credit.pool, packet)
	g.lacksCredit(short)
}

// endCredit ends the credit of a connection. What is stored stays reserved.
func (g *Gate) endCredit() {
	s := g.s
	g.credit.receive.End(&s.credit.pool)
	g.credit.send, g.credit.unasked, g.credit.grantDue, g.credit.blockage.on = credit.Sender{}, 0, false, false
	if g.credit.short {
		g.credit.short = false
		i := slices.Index(s.credit.short, g)
		s.credit.short = slices.Delete(s.credit.short, i, i+1)
	}
	s.renewShort()
}

// grant is what this process has granted on this connection.
func (g *Gate) grant() header.Credit {
	return header.Credit{Amount: g.credit.receive.Grant(), Unasked: uint32(g.lead.eager)}
}

// granted takes a grant of the peer.
func (g *Gate) granted(c *header.Credit) {
	g.credit.send.Granted(c.Amount)
	g.credit.unasked = int(c.Unasked)
	if g.queues.backlog.n > 0 {
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
	msg := g.queues.backlog.first
	return msg != nil && msg.needsCredit() && !g.credit.send.Allows(msg.creditCost())
}

// refund takes back the credit for a message that will not reach the peer although the connection goes on.
func (g *Gate) refund(msg *outMsg) {
	if msg.paid {
		msg.paid = false
		g.credit.send.Unsent(msg.creditCost())
	}
}

// hadCredit ends the gate if the peer has sent more than its credit, and returns false then.
func (l *link) hadCredit() bool {
	if l.g.credit.receive.Exceeded() {
		return l.failProtocol(fmt.Errorf("%w: %w: the peer has sent more messages than it was granted "+
			"(limit of the protocol: no option raises it)", ErrBroken, ErrLimit))
	}
	return true
}

// renew grants the peer more credit if it has used most of it.
func (g *Gate) renew() {
	g.s.renewShort() // which have waited for longer
	if g.credit.receive.Low() {
		g.extend()
	} else {
		g.credit.blockage.on = false
	}
}

// extend grants the peer more credit, as far as there is memory.
func (g *Gate) extend() {
	more, short := g.credit.receive.Extend(&g.s.credit.pool)
	if more && !g.close.sent.bye { // after Bye the peer sends nothing, and may be disconnected
		g.credit.grantDue = true
		g.markBusy()
	}
	g.lacksCredit(short)
}

// lacksCredit notes whether the peer may be unable to send: until others leave memory for it, if short is true, or until
// the program receives what is stored.
func (g *Gate) lacksCredit(short bool) {
	s := g.s
	if short && !g.credit.short {
		g.credit.short = true
		s.credit.short = append(s.credit.short, g)
	}
	blocked := g.credit.receive.Blocked() && g.credit.receive.Kept() > 0
	if blocked && !g.credit.blockage.on {
		s.stats.Stalls++
		s.watchProgram()
	}
	g.credit.blockage.on = blocked
}

// renewShort renews the credit of peers for which other peers have left no memory, the longest waiting first.
func (s *Session) renewShort() {
	for len(s.credit.short) > 0 {
		g := s.credit.short[0]
		s.credit.short = append(s.credit.short[:0], s.credit.short[1:]...)
		if g.credit.short = false; g.credit.receive.Low() {
			if g.extend(); g.credit.short {
				return
			}
		}
	}
}
