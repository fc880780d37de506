package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/header"
)

// Active is an active message in its handler. The memory belongs to the session,
// may be the driver's, and is valid until the handler returns.
type Active struct {
	Header []byte
	Data   []byte
}

// Handle registers the handler of active messages with that number; nil takes it
// away. Handlers of one peer's messages are called one at a time, in order, by
// whoever makes progress. A handler may call everything that does not block;
// while it runs nothing more is taken from that peer. A message for which there
// is no handler is dropped, and counted as bad.
func (s *Session) Handle(number uint8, f func(*Gate, *Active)) {
	s.mu.lock()
	defer s.mu.unlock()
	s.handlers[number] = f
}

// MaxActive is how many bytes an active message to the peer can have, its header
// included.
func (g *Gate) MaxActive() int {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.eagerMax()
}

// AM sends an active message: header, at most MaxHeader bytes, which is copied,
// and data. The request is nil if data may be reused at once. Active messages arrive in
// order, also with other messages to the peer.
func (g *Gate) AM(number uint8, head, data []byte) (*Request, error) {
	return g.am(number, head, data, false)
}

// AMNow sends an active message at once or not at all: ErrBusy if the connection
// does not stand yet, if others wait before it (it never overtakes), or if the
// driver has no room. Data may be reused afterwards.
func (g *Gate) AMNow(number uint8, head, data []byte) error {
	_, err := g.am(number, head, data, true)
	return err
}

func (g *Gate) am(number uint8, head, data []byte, now bool) (*Request, error) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if err := g.ready("active message"); err != nil {
		return nil, err
	}
	if n := len(head) + len(data); len(head) > MaxHeader || n > g.eagerMax() {
		return nil, g.fault("active message", fmt.Errorf("%w: %d bytes with a header of %d", driver.ErrTooLong, n, len(head)))
	}
	if now && (g.state != gateUp || !g.clear || g.backlog.n > 0) {
		if g.state == gateIdle {
			g.connect()
		}
		return nil, ErrBusy
	}
	copied := now || len(data) <= copyMax
	at := header.Size + len(head)
	size := at
	if copied {
		size += len(data)
	}
	pc := s.parcel(size)
	h := header.Header{Kind: header.AM, Extra: uint16(len(head)), Length: uint32(len(data)), Tag: uint64(number)}
	h.Put(pc.buf)
	copy(pc.buf[header.Size:], head)
	if copied {
		copy(pc.buf[at:], data)
	} else {
		pc.iov[1] = data
	}
	if now {
		if _, taken := g.lead.post(pc); !taken {
			s.recycle(pc)
			return nil, ErrBusy
		}
		s.stats.Sent++
		return nil, g.err
	}
	s.stats.Sent++
	if copied && g.backlog.n+g.later.n < maxBuffered {
		g.enqueue(pc)
		return nil, nil
	}
	r := g.sendRequest(&Out{})
	pc.req = r
	g.enqueue(pc)
	if r.done && r.err == nil {
		s.free(r)
		return nil, nil
	}
	return r, nil
}

// active calls the handler, without the lock. Meanwhile nothing is taken from the gate,
// and the link is not let go of.
func (l *link) active(h *header.Header, extra, data []byte) bool {
	s := l.g.s
	f := s.handlers[uint8(h.Tag)]
	if f == nil {
		s.stats.Bad++
		return true
	}
	s.stats.Received++
	l.g.handling = true
	l.pieces++
	s.running++
	l.now = Active{Header: extra, Data: data}
	s.mu.unlock()
	f(l.g, &l.now)
	s.mu.lock()
	s.running--
	l.g.handling = false
	if l.pieces--; l.dead {
		s.bury(l)
		return false
	}
	return true
}
