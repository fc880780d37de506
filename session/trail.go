package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/relay"
)

// trail is what a gate with several rails remembers of its short messages, so that
// they can go on over another rail: package relay counts them, and copies of those
// that the peer may not have are kept. With one rail there is nothing to remember.
type trail struct {
	relay.End
	many   bool        // rails
	copies parcelQueue // of numbered messages that have left
	bytes  int         // of those
	fresh  int         // bytes that were taken and not told
	due    bool        // Seen has to be sent
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
func (t *trail) full() bool { return t.copies.n >= maxCopies || t.bytes >= maxCopyBytes }

// settled reports whether both ends know of everything that the other has taken.
func (t *trail) settled() bool { return !t.many || t.copies.n == 0 && !t.due }

// begin is for a connection that stands.
func (t *trail) begin(rails int) {
	*t = trail{many: rails > 1}
	t.Begin(rails)
}

// drop forgets everything.
func (t *trail) drop(s *Session) {
	for pc := t.copies.pop(); pc != nil; pc = t.copies.pop() {
		s.recycle(pc)
	}
	*t = trail{}
}

// keep copies a message that the driver has taken.
func (t *trail) keep(s *Session, pc *parcel) {
	c := s.parcel(len(pc.buf) + len(pc.iov[1]))
	n := copy(c.buf, pc.buf)
	copy(c.buf[n:], pc.iov[1])
	t.copies.push(c)
	t.bytes += len(c.buf)
	t.Sent()
}

// forget drops the oldest n copies.
func (t *trail) forget(s *Session, n int) {
	for range n {
		pc := t.copies.pop()
		t.bytes -= len(pc.buf)
		s.recycle(pc)
	}
}

// taken counts a message. It is told to the peer now and then, and with BYE at
// once, as the peer waits for it.
func (l *link) taken(b []byte) error {
	t := &l.g.relay
	if len(b) == 0 || !header.Kind(b[0]).Numbered() {
		return nil
	}
	if err := t.End.Taken(int(l.rail)); err != nil {
		return err
	}
	if t.fresh += len(b); t.fresh >= seenEachBytes || t.Untold() >= seenEach || header.Kind(b[0]) == header.Bye {
		t.due = true
		l.g.work()
	}
	return nil
}

// passOn has another rail carry short messages if a lost one did.
func (g *Gate) passOn(l *link) {
	if g.relay.Lost(int(l.rail)) {
		g.lead, g.clear = g.links[g.relay.Lead()], false
	}
	g.work()
}

// hail sends the messages that precede all others: Hello on a rail that carries messages for the first time, Resume,
// and Seen. Then messages may follow, if the peer has said where it goes on.
func (g *Gate) hail() (moved bool) {
	s := g.s
	if l := g.lead; !l.hailed {
		hello := header.Greeting{Rank: uint32(s.rank), Size: uint32(s.size), Incarnation: s.card.incarnation, Era: s.era}
		pc, body := s.control(header.Header{Kind: header.Hello, Extra: header.Version, Tag: g.dials}, hello.Data())
		hello.Put(body)
		if !l.note(pc) {
			return moved
		}
		l.hailed, moved = true, true
	}
	if got, lost, ok := g.relay.Resume(); ok {
		pc, _ := s.control(header.Header{Kind: header.Resume, Tag: got, Flags: lost}, nil)
		if !g.lead.note(pc) {
			return moved
		}
		g.relay.Resumed()
		g.relay.due, g.relay.fresh, moved = false, 0, true
	}
	g.clear = g.relay.Open()
	if g.relay.due && g.clear {
		pc, _ := s.control(header.Header{Kind: header.Seen, Tag: g.relay.Tell()}, nil)
		if g.lead.note(pc) {
			g.relay.due, g.relay.fresh, moved = false, 0, true
		}
	}
	return moved
}

// note posts a message that is not numbered. False if it has to be made again: there
// is no room, or the rail is lost.
func (l *link) note(pc *parcel) bool {
	if _, taken := l.post(pc); !taken {
		l.g.s.recycle(pc)
		return false
	}
	return !l.dead
}

// owes reports whether hail has something to say.
func (g *Gate) owes() bool {
	_, _, resume := g.relay.Resume()
	return g.lead != nil && (!g.lead.hailed || resume || g.relay.due)
}

// seen takes what the peer has seen.
func (l *link) seen(got uint64) error {
	g := l.g
	n, err := g.relay.Seen(got)
	if err != nil || !g.relay.many {
		return relay.ErrProtocol
	}
	g.relay.forget(g.s, n)
	g.work()
	g.tryClose()
	return nil
}

// resume takes the peer's Resume: rails that it has lost are lost here, and what it
// does not have is sent again, before what waits.
func (l *link) resume(got uint64, lost uint8) error {
	g := l.g
	t := &g.relay
	for _, x := range g.links {
		if x != l && lost>>x.rail&1 != 0 && !x.dead {
			x.lost(fmt.Errorf("%w: the peer has lost the rail", driver.ErrBroken))
		}
	}
	n, err := t.Heard(int(l.rail), got, lost)
	if err != nil {
		return err
	}
	t.forget(g.s, n)
	g.replay.prepend(&t.copies)
	t.bytes = 0
	g.work()
	g.push()
	return nil
}
