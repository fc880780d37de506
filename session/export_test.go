package session

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// KeyHeader is how long the key of a region is that no driver knows.
const KeyHeader = keyHeader

// Awaiting reports whether a call sleeps until some condition of the session holds.
func (s *Session) Awaiting() bool {
	s.mu.lock()
	defer s.mu.unlock()
	return len(s.awaiters) > 0
}

// CancelAndFree cancels a request and gives it back in one step, so that nobody sees it done.
func (r *Request) CancelAndFree() bool {
	s := r.s
	s.mu.lock()
	defer s.leave()
	if r.done || !s.cancel(r) {
		return false
	}
	s.free(r)
	return true
}

// Oversubscribe has waiters yield their CPU, as where ranks outnumber the CPUs.
func (s *Session) Oversubscribe(on bool) { s.oversubscribed = on }

// NoDriver is the error of a process without a driver that works.
var NoDriver = noDriver

// CloseRail closes the contexts of one rail, as if its device had gone away; between messages, as closing takes away
// the memory in which they lie.
func (s *Session) CloseRail(k int) {
	s.mu.lock()
	defer s.mu.unlock()
	s.nics[k].close()
}

// ConnectRequest lets this session receive a connect request of another session for the connection with that number. It
// reports whether the gate to there is idle after it.
func (s *Session) ConnectRequest(from *Session, number uint64) (idle bool) {
	k := connectRequest{rank: uint32(from.rank), from: from.card.incarnation, to: s.card.incarnation, dial: number}
	s.requested(k.append(nil, s.key))
	s.mu.lock()
	defer s.mu.unlock()
	return s.gates[from.rank].state == gateIdle
}

// Pending is what the session still has of messages and operations; empty if there is nothing.
func (s *Session) Pending() string {
	s.mu.lock()
	defer s.leave()
	var what string
	count := func(name string, n int) {
		if n != 0 {
			what += fmt.Sprintf("%d %s; ", n, name)
		}
	}
	outs, ins, syncs, ops := 0, 0, 0, 0
	s.outs.each(func(uint64, *outgoing) { outs++ })
	s.ins.each(func(uint64, *incoming) { ins++ })
	s.syncs.each(func(uint64, *Request) { syncs++ })
	s.ops.each(func(uint64, *Op) { ops++ })
	count("long messages that leave", outs)
	count("long messages that arrive", ins)
	count("acknowledgements", syncs)
	count("operations by message", ops)
	count("operations", len(s.liveOps))
	count("pieces", len(s.pieces))
	count("receives", s.table.Posted())
	count("messages kept", s.table.Waiting())
	count("bytes of the budget", s.cfg.Unexpected-s.budget)
	count("bytes of the budget of active messages", s.cfg.Unexpected-s.activeBudget)
	count("peers held up", len(s.stalled))
	count("handlers", s.running)
	count("calls", len(s.calls))
	count("regions", len(s.regions))
	for _, g := range s.gates {
		if g != nil && g.state != gateUp {
			count("links, operations and others of a gate that does not stand", len(g.links)+g.ops+g.live+len(g.postponed)+g.backlog.n+g.later.n)
		}
	}
	for _, l := range s.links {
		if l.g.state != gateUp {
			count("link of no gate", 1)
		}
	}
	return what
}

// ForgeActive tells the peer of n long active messages of that length, none of which ever comes.
func (g *Gate) ForgeActive(n int, total uint64) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	for k := range n {
		msg, body := s.control(header.Header{Kind: header.RTS, Flags: flagActive, Tag: 9}, nil)
		req := header.Request{ID: 1<<40 + uint64(k), Total: total, Modes: uint8(rdv.Set(0).With(rdv.Null))}
		req.Put(body)
		g.sendControl(msg)
	}
}

// ForgeMalformed sends a message that has a body which makes no sense.
func (g *Gate) ForgeMalformed() {
	g.s.mu.lock()
	defer g.s.leave()
	msg, body := g.s.control(header.Header{Kind: header.Done, Tag: 1}, nil)
	body[7] = 9
	g.sendControl(msg)
}

// InDriver is how many packets the drivers of the gate hold.
func (g *Gate) InDriver() (n int) {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	for _, l := range g.links {
		n += l.sending.n
	}
	return n
}

// ProbeRail asks one rail who has sent something, and takes it. It reports whether somebody was named.
func (s *Session) ProbeRail(k int) bool {
	s.mu.lock()
	defer s.leave()
	i, err := s.nics[k].prober.RecvProbeAny()
	if err == nil {
		s.named(i)
	}
	return err == nil
}

// ForgeGets posts n requests for some bytes of a region of the peer, as many as there is room for, and takes no
// answers. It tells how many.
func (g *Gate) ForgeGets(region *Region, length, n int) (posted int) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	for posted < n && g.lead != nil {
		msg := s.newOutMsg(header.Size + header.BodySize(header.Op))
		h := header.Header{Kind: header.Op}
		h.Put(msg.buf)
		op := header.Operation{ID: 1 << 40, Region: region.id, Length: uint32(length), What: opGet}
		op.Put(msg.buf[header.Size:])
		if _, taken := g.lead.post(msg); !taken {
			s.recycle(msg)
			break
		}
		posted++
	}
	return posted
}

// Waiting is how many messages to the peer wait for room.
func (g *Gate) Waiting() int {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.queued() + g.later.n
}

// HoldRegistrations has the drivers say until release that a peer is inside of the region, whenever they are to let
// go of the registrations that it has now.
func (r *Region) HoldRegistrations() (release func()) {
	r.s.mu.lock()
	defer r.s.mu.unlock()
	held := new(bool)
	*held = true
	for i, reg := range r.native {
		if reg != nil {
			r.native[i] = heldRegion{reg, held}
		}
	}
	return func() {
		r.s.mu.lock()
		defer r.s.mu.unlock()
		*held = false
	}
}

type heldRegion struct {
	driver.Region
	held *bool // guarded by the lock
}

func (r heldRegion) Deregister() error {
	if *r.held {
		return driver.ErrBusy
	}
	return r.Region.Deregister()
}

// Stop keeps everybody from making progress until resumePostponed is called.
func (s *Session) Stop() (goOn func()) {
	s.mu.lock()
	return s.leave
}

// Current reports whether what the key says of drivers is taken to hold on the connection that stands.
func (r *Remote) Current() bool {
	r.g.s.mu.lock()
	defer r.g.s.mu.unlock()
	return r.era == r.g.peerEra
}

// Forge sends a message of the session's protocol as it is.
func (g *Gate) Forge(b []byte) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	msg := s.newOutMsg(len(b))
	copy(msg.buf, b)
	g.sendControl(msg)
}

// Inject has the gate's session take a message as if the peer had sent it; not while it takes none.
func (g *Gate) Inject(b []byte) {
	g.s.mu.lock()
	defer g.s.leave()
	l := g.lead
	if l == nil || l.bufferOut || g.handling || l.rp.Driver.Phase == driver.BufferOut {
		return
	}
	l.rp.Buf = append([]byte(nil), b...)
	l.handle(l.rp.Buf)
}

// Foreign is how many gates to processes of other sessions there are, and how many there have been at a time.
func (s *Session) Foreign() (now, most int) {
	s.mu.lock()
	defer s.mu.unlock()
	for _, g := range s.gates[s.size:] {
		if g != nil {
			now++
		}
	}
	return now, len(s.gates) - s.size
}

// Posted is how many receives wait.
func (s *Session) Posted() int {
	s.mu.lock()
	defer s.mu.unlock()
	return s.table.Posted()
}

// PostRaw sends a message of the session's protocol as it is, and takes nothing that arrives. False: there is no room.
func (g *Gate) PostRaw(b []byte) bool {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if g.lead == nil {
		return false
	}
	g.push()
	msg := s.newOutMsg(len(b))
	copy(msg.buf, b)
	if _, taken := g.lead.post(msg); !taken {
		s.recycle(msg)
		return false
	}
	return true
}

// Unanswered is how many messages have left that the peer has not answered.
func (g *Gate) Unanswered() (syncs, longs int) {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.syncs, g.longs
}

// HeldBytes is how many bytes the gate costs beside unexpected messages.
func (g *Gate) HeldBytes() int {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.heldBytes
}

// PoolBytes is how many bytes the session has for messages that will be kept.
func (s *Session) PoolBytes() (n int) {
	s.mu.lock()
	defer s.mu.unlock()
	for _, u := range s.unexpectedPool {
		for ; u != nil; u = u.next {
			n += unexpectedCost + cap(u.buf)
		}
	}
	return n
}

// Done reports whether the request is done, and makes no progress.
func (r *Request) Done() bool {
	r.s.mu.lock()
	defer r.s.mu.unlock()
	return r.done
}

// Reseal authenticates a card that was changed.
func Reseal(card, secret []byte) []byte {
	k, err := handshake.OptionalKey(secret)
	if err != nil {
		panic(err)
	}
	return seal(card[:len(card)-handshake.MACSize], k)
}

// Reseal does it with the session's secret.
func (s *Session) Reseal(card []byte) []byte { return Reseal(card, s.secret) }

// SetNoticeTime sets how long something holds a peer up before the program is told, and returns what it was.
func SetNoticeTime(d time.Duration) (before time.Duration) {
	before, noticeTime = noticeTime, d
	return before
}
