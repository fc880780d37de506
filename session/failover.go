package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/relay"
)

// failover is the state with which a gate with several rails continues its short messages over another rail: package
// relay counts them, and copies holds those that the peer may not have received. It is unused with one rail.
type failover struct {
	relay.End
	many            bool     // the gate has several rails
	copies          outQueue // numbered messages that were sent and not acknowledged
	bytes           int      // total length of copies
	unreportedBytes int      // bytes received since the last Seen
	due             bool     // a Seen must be sent
	railErr         error    // of a lost rail
}

// Limits of the copies of sent messages, and how much is received before Seen is sent: well before the peer reaches
// its limits.
const (
	maxCopies     = 256
	maxCopyBytes  = 1 << 20
	seenEach      = 64
	seenEachBytes = 128 << 10
)

// full reports whether a message has to wait until the peer acknowledges earlier ones.
func (f *failover) full() bool { return f.copies.n >= maxCopies || f.bytes >= maxCopyBytes }

// settled reports whether all messages of both directions are acknowledged.
func (f *failover) settled() bool { return !f.many || f.copies.n == 0 && !f.due }

// begin resets the state for a newly established connection.
func (f *failover) begin(rails int) {
	*f = failover{many: rails > 1}
	f.Begin(rails)
}

// drop frees all copies.
func (f *failover) drop(s *Session) {
	for msg := f.copies.pop(); msg != nil; msg = f.copies.pop() {
		s.recycle(msg)
	}
	*f = failover{}
}

// keep copies a message that the driver has taken.
func (f *failover) keep(s *Session, msg *outMsg) {
	c := s.newOutMsg(len(msg.buf) + len(msg.iov[1]))
	n := copy(c.buf, msg.buf)
	copy(c.buf[n:], msg.iov[1])
	c.paid = true
	f.copies.push(c)
	f.bytes += len(c.buf)
	f.Sent()
}

// forget frees the oldest n copies.
func (f *failover) forget(s *Session, n int) {
	for range n {
		msg := f.copies.pop()
		f.bytes -= len(msg.buf)
		s.recycle(msg)
	}
}

// taken counts a received message. The count is sent to the peer now and then, and at once after BYE, because the peer
// waits for it.
func (l *link) taken(b []byte) error {
	f := &l.g.relay
	if len(b) == 0 || !header.Kind(b[0]).Numbered() {
		return nil
	}
	if err := f.End.Taken(int(l.rail)); err != nil {
		return err
	}
	if f.unreportedBytes += len(b); f.unreportedBytes >= seenEachBytes || f.Unreported() >= seenEach || header.Kind(b[0]) == header.Bye {
		f.due = true
		l.g.markBusy()
	}
	return nil
}

// useOtherRail has another rail carry short messages if a lost one did.
func (g *Gate) useOtherRail(l *link) {
	if g.relay.Lost(int(l.rail)) {
		g.lead, g.clear, g.credit.grantDue = g.links[g.relay.Lead()], false, !g.close.sent.bye
	}
	g.markBusy()
}

// sendPreamble sends the messages that precede all others: Hello on a rail that carries messages for the first time,
// Resume, Seen and Grant. Other messages may follow once the peer's Resume has arrived.
func (g *Gate) sendPreamble() (moved bool) {
	s := g.s
	if l := g.lead; !l.preambleSent {
		hello := header.Greeting{Rank: uint32(s.rank), Size: uint32(s.size), Incarnation: s.card.incarnation, Era: s.era, Grant: g.grant()}
		h := header.Header{Kind: header.Hello, Extra: header.Version, Tag: g.dialing.begun}
		if g.pausing.kept {
			h.Flags = flagKept
		}
		msg, body := s.control(h, hello.Data())
		hello.Put(body)
		if !l.postUnnumbered(msg) {
			return moved
		}
		l.preambleSent, g.credit.grantDue, moved = true, false, true
	}
	if got, lost, ok := g.relay.Resume(); ok {
		msg, _ := s.control(header.Header{Kind: header.Resume, Tag: got, Flags: lost}, nil)
		if !g.lead.postUnnumbered(msg) {
			return moved
		}
		g.relay.ResumeSent()
		g.relay.due, g.relay.unreportedBytes, moved = false, 0, true
	}
	g.clear = g.relay.Open()
	if g.relay.due && g.clear {
		msg, _ := s.control(header.Header{Kind: header.Seen, Tag: g.relay.Report()}, nil)
		if g.lead.postUnnumbered(msg) {
			g.relay.due, g.relay.unreportedBytes, moved = false, 0, true
		}
	}
	if g.credit.grantDue && g.clear {
		msg, body := s.control(header.Header{Kind: header.Grant}, nil)
		grant := g.grant()
		if grant.Put(body); g.lead.postUnnumbered(msg) {
			g.credit.grantDue, moved = false, true
		}
	}
	return moved
}

// postUnnumbered posts a message that is not numbered. It returns false if the caller has to make the message again:
// the driver has no room, or the rail is lost.
func (l *link) postUnnumbered(msg *outMsg) bool {
	if _, taken := l.post(msg); !taken {
		l.g.s.recycle(msg)
		return false
	}
	return !l.dead
}

// hasPreamble reports whether sendPreamble has a message to send.
func (g *Gate) hasPreamble() bool {
	_, _, resume := g.relay.Resume()
	return g.lead != nil && (!g.lead.preambleSent || resume || g.relay.due || g.credit.grantDue)
}

// seen handles the peer's Seen.
func (l *link) seen(got uint64) error {
	g := l.g
	n, err := g.relay.Seen(got)
	if err != nil || !g.relay.many {
		return relay.ErrProtocol
	}
	g.relay.forget(g.s, n)
	g.markBusy()
	g.tryClose()
	return nil
}

// resume takes the peer's Resume: rails that it has lost are lost here, and what it
// does not have is sent again, before what waits.
func (l *link) resume(got uint64, lost uint8) error {
	g := l.g
	f := &g.relay
	for _, x := range g.links {
		if x != l && lost>>x.rail&1 != 0 && !x.dead {
			x.lost(fmt.Errorf("%w: the peer reports that this rail failed", driver.ErrBroken))
		}
	}
	n, err := f.ResumeReceived(int(l.rail), got, lost)
	if err != nil {
		return err
	}
	f.forget(g.s, n)
	g.queues.replay.prepend(&f.copies)
	f.bytes = 0
	g.markBusy()
	g.push()
	return nil
}
