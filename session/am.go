package session

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// Active is an active message in its handler. Its memory belongs to the session or the driver, and is valid until the
// handler returns.
type Active struct {
	Header []byte
	Data   []byte
}

// actives are the active messages of all peers.
type actives struct {
	handlers [256]func(*Gate, *Active)
	running  int             // handlers
	budget   int             // bytes of long messages that may still arrive
	waiting  []waitingActive // long messages that wait for memory
	resumed  []*Gate         // gates whose messages are to be taken without a report of the driver: see resume
	called   bool            // Session.calls has handlers of long messages

	unhandled [4]uint64 // numbers of messages that had no handler: reported
}

// Handle registers the handler of active messages with that number; nil takes it away. Handlers of one peer's messages
// are called one at a time, in order, by a goroutine that makes progress. A handler may call everything that does not
// block; meanwhile the session takes no other message from that peer. A message for which there is no handler is
// dropped, counted as bad, and reported to Config.OnError, the first one of each number. Long messages lie in memory of
// the session, which counts against the budget of long active messages (Config.Unexpected) until the handler returns.
// Memory for a message of more than 64 KiB is allocated for that message alone.
func (s *Session) Handle(number uint8, f func(*Gate, *Active)) {
	s.mu.lock()
	defer s.mu.unlock()
	s.active.handlers[number] = f
}

// MaxActive returns the longest active message to the peer, in bytes with its header, that needs no rendezvous. It is
// also the limit of AMNow and Prepare. If the driver's packets are shorter at the peer, it shrinks when the peer
// has first answered: longer messages that wait here until then fail with driver.ErrTooLong.
func (g *Gate) MaxActive() int {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.eagerMax()
}

// ActiveOut is an active message to be sent, with all its options.
type ActiveOut struct {
	Number uint8
	Header []byte // at most MaxHeader bytes; copied
	Data   []byte
	Urgent bool // overtakes what still waits here, and is not urgent; see Out
	// Then is called when the message is sent or has failed, instead of a request being waited for; see Out.
	Then func(Status, error)
}

// AM sends an active message: header, at most MaxHeader bytes, which is copied,
// and data. The request is nil if data may be reused at once. Active messages arrive in
// order, also behind other messages to the peer.
//
// A message of more than MaxActive bytes goes by rendezvous into memory of the peer's session, where long active
// messages have a budget of Config.Unexpected bytes; room comes when handlers return. Later active messages that are not
// urgent wait here until the long one has arrived; other messages do not. If header and data exceed the whole budget, the request fails with
// driver.ErrTooLong.
func (g *Gate) AM(number uint8, head, data []byte) (*Request, error) {
	o := ActiveOut{Number: number, Header: head, Data: data}
	return g.am(&o, false)
}

// AMNow sends an active message at once or not at all, and never blocks. It fails with ErrBusy if the gate is not
// connected, if other messages wait before it (it never overtakes), or if the driver has no room; with
// driver.ErrTooLong beyond MaxActive bytes. Data may be reused when it returns.
func (g *Gate) AMNow(number uint8, head, data []byte) error {
	o := ActiveOut{Number: number, Header: head, Data: data}
	_, err := g.am(&o, true)
	return err
}

// AMMsg is AM with options. It does not keep o.
func (g *Gate) AMMsg(o *ActiveOut) (*Request, error) {
	r, err := g.am(o, false)
	if o.Then != nil {
		r = nil
	}
	return r, err
}

func (g *Gate) am(o *ActiveOut, now bool) (*Request, error) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if err := g.ready("active message"); err != nil {
		return nil, err
	}
	n := len(o.Header) + len(o.Data)
	long := n > g.eagerMax()
	if len(o.Header) > MaxHeader {
		return nil, g.fault("active message", fmt.Errorf("%w: header of %d bytes, limit is %d", driver.ErrTooLong, len(o.Header), MaxHeader))
	}
	if long && now {
		return nil, g.fault("active message", fmt.Errorf("%w: %d bytes with the header, limit is MaxActive, %d", driver.ErrTooLong, n, g.eagerMax()))
	}
	if now && (g.state != gateUp || !g.clear || g.queued() > 0 || g.queues.later.n > 0 || g.active.out != nil) {
		if g.state == gateIdle {
			g.connect()
		}
		return nil, ErrBusy
	}
	if long {
		s.stats.Sent++
		msg, r := g.longMsg(&Out{Tag: uint64(o.Number), Header: o.Header, Buf: o.Data, Urgent: o.Urgent, Then: o.Then}, len(o.Data))
		msg.out.active = true
		g.enqueueActive(msg)
		return r, nil
	}
	msg, copied := g.activeMsg(o, now)
	if now {
		if _, taken := g.lead.post(msg); !taken {
			s.recycle(msg)
			return nil, ErrBusy
		}
		s.stats.Sent++
		return nil, g.err
	}
	s.stats.Sent++
	if copied && g.queues.backlog.n+g.queues.later.n+g.active.queue.n < maxBuffered {
		g.enqueueActive(msg)
		if f := o.Then; f != nil {
			s.calls = append(s.calls, func() { f(Status{}, nil) })
		}
		return nil, nil
	}
	r := g.sendRequest(&Out{Then: o.Then})
	msg.req = r
	g.enqueueActive(msg)
	if r.then == nil && r.done && r.err == nil {
		s.free(r)
		return nil, nil
	}
	return r, nil
}

// activeMsg makes the outgoing message of a short active message.
func (g *Gate) activeMsg(o *ActiveOut, copied bool) (*outMsg, bool) {
	copied = copied || len(o.Data) <= copyMax
	at := header.Size + len(o.Header)
	size := at
	if copied {
		size += len(o.Data)
	}
	msg := g.s.newOutMsg(size)
	msg.urgent = o.Urgent
	h := header.Header{Kind: header.AM, Extra: uint16(len(o.Header)), Length: uint32(len(o.Data)), Tag: uint64(o.Number)}
	h.Put(msg.buf)
	copy(msg.buf[header.Size:], o.Header)
	if copied {
		copy(msg.buf[at:], o.Data)
	} else {
		msg.iov[1] = o.Data
	}
	return msg, copied
}

// active calls the handler, without the lock. While the handler runs, nothing is taken from the gate and the link is
// not released.
func (l *link) active(h *header.Header, extra, data []byte) bool {
	s := l.g.s
	f := s.active.handlers[uint8(h.Tag)]
	if f == nil {
		l.g.unhandled(uint8(h.Tag))
		return true
	}
	s.stats.Received++
	l.g.active.handling = true
	l.g.begins(uint8(h.Tag))
	l.pieces++
	s.active.running++
	l.now = Active{Header: extra, Data: data}
	polling := s.progress.polling
	if s.progress.polling = false; polling { // not while the handler runs
		s.callers.leader = nil // one that still waits takes the lead back: see lead
		s.progress.pollers.Add(-1)
		s.handOver()
	}
	s.unlock()
	f(l.g, &l.now)
	s.mu.lock()
	if s.progress.polling = polling; polling {
		s.progress.pollers.Add(1)
	}
	s.active.running--
	if l.g.active.due != nil || l.dead || len(l.g.links) > 1 { // a probe may have reported another rail while the handler ran
		l.g.handled()
	} else {
		l.g.active.handling = false
	}
	if l.pieces--; l.dead {
		s.releaseLink(l)
		return false
	}
	return true
}
