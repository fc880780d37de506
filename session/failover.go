package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/relay"
)

// failover is what a gate with several rails remembers of its short messages, so that
// they can go on over another rail: package relay counts them, and copies of those
// that the peer may not have are kept. With one rail there is nothing to remember.
type failover struct {
	relay.End
	many            bool     // rails
	copies          outQueue // of numbered messages that have left
	bytes           int      // of those
	unreportedBytes int      // bytes that were taken and not told
	due             bool     // Seen has to be sent
}

// Limits of the copies of messages that have left, and after how much the peer is told what has come: well before it
// has to wait.
const (
	maxCopies     = 256
	maxCopyBytes  = 1 << 20
	seenEach      = 64
	seenEachBytes = 128 << 10
)

// full reports whether a message has to wait until the peer has seen others.
func (f *failover) full() bool { return f.copies.n >= maxCopies || f.bytes >= maxCopyBytes }

// settled reports whether both ends know of everything that the other has taken.
func (f *failover) settled() bool { return !f.many || f.copies.n == 0 && !f.due }

// begin is for a connection that stands.
func (f *failover) begin(rails int) {
	*f = failover{many: rails > 1}
	f.Begin(rails)
}

// drop forgets everything.
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
	f.copies.push(c)
	f.bytes += len(c.buf)
	f.Sent()
}

// forget drops the oldest n copies.
func (f *failover) forget(s *Session, n int) {
	for range n {
		msg := f.copies.pop()
		f.bytes -= len(msg.buf)
		s.recycle(msg)
	}
}

// taken counts a message. It is told to the peer now and then, and with BYE at
// once, as the peer waits for it.
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
		g.lead, g.clear = g.links[g.relay.Lead()], false
	}
	g.markBusy()
}

// sendPreamble sends the messages that precede all others: Hello on a rail that carries messages for the first time, Resume,
// and Seen. Then messages may follow, if the peer has said where it goes on.
func (g *Gate) sendPreamble() (moved bool) {
	s := g.s
	if l := g.lead; !l.preambleSent {
		hello := header.Greeting{Rank: uint32(s.rank), Size: uint32(s.size), Incarnation: s.card.incarnation, Era: s.era}
		msg, body := s.control(header.Header{Kind: header.Hello, Extra: header.Version, Tag: g.dials}, hello.Data())
		hello.Put(body)
		if !l.postUnnumbered(msg) {
			return moved
		}
		l.preambleSent, moved = true, true
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
	return moved
}

// postUnnumbered posts a message that is not numbered. False if it has to be made again: there
// is no room, or the rail is lost.
func (l *link) postUnnumbered(msg *outMsg) bool {
	if _, taken := l.post(msg); !taken {
		l.g.s.recycle(msg)
		return false
	}
	return !l.dead
}

// hasPreamble reports whether hail has something to say.
func (g *Gate) hasPreamble() bool {
	_, _, resume := g.relay.Resume()
	return g.lead != nil && (!g.lead.preambleSent || resume || g.relay.due)
}

// seen takes what the peer has seen.
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
			x.lost(fmt.Errorf("%w: the peer has lost the rail", driver.ErrBroken))
		}
	}
	n, err := f.ResumeReceived(int(l.rail), got, lost)
	if err != nil {
		return err
	}
	f.forget(g.s, n)
	g.replay.prepend(&f.copies)
	f.bytes = 0
	g.markBusy()
	g.push()
	return nil
}
