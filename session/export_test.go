//go:build linux && !(386 || arm || mips || mipsle)

package session

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// KeyHeader is the length of the key of a region that no driver has registered.
const KeyHeader = keyHeader

// Awaiting reports whether a call sleeps until some condition of the session holds.
func (s *Session) Awaiting() bool {
	s.mu.lock()
	defer s.mu.unlock()
	return len(s.callers.awaiters) > 0
}

// Waited reports whether a call waits for the request, and sleeps.
func (r *Request) Waited() bool {
	r.s.mu.lock()
	defer r.s.mu.unlock()
	return r.sleep.on
}

// MaxCalling is how deep callbacks nest at most.
const MaxCalling = maxCalling

// Led reports whether a caller polls for all that wait.
func (s *Session) Led() bool {
	s.mu.lock()
	defer s.mu.unlock()
	return s.callers.leader != nil
}

// LongestPause returns for how long the background of any rail may sleep at a time while callers make progress.
func (s *Session) LongestPause() time.Duration {
	s.mu.lock()
	defer s.mu.unlock()
	var longest time.Duration
	for _, n := range s.nics {
		longest = max(longest, n.pause)
	}
	return longest
}

// CancelAndFree cancels a request and gives it back in one step, so that no other goroutine sees it done.
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

// Oversubscribe sets whether waiters yield their CPU, as if ranks outnumbered the CPUs.
func (s *Session) Oversubscribe(on bool) { s.host.oversubscribed = on }

// Yield is what a waiter does between two batches of polls. It returns how many yields the next batches skip.
func (s *Session) Yield() (skip uint32) {
	s.yield()
	return s.host.skip.Load()
}

const (
	IdleYield = idleYield
	MaxSkip   = maxSkip
)

// FastestYield returns how long a yield of the CPU takes if no other process wants it.
func FastestYield() time.Duration {
	fastest := time.Hour
	for range 1000 {
		start := time.Now()
		yieldCPU()
		fastest = min(fastest, time.Since(start))
	}
	return fastest
}

// NoDriver is the error of a process without a driver that works.
var NoDriver = noDriver

// CloseRail closes the contexts of one rail, as if its device had gone away; between messages, as closing takes away
// the memory in which they lie.
func (s *Session) CloseRail(k int) {
	s.mu.lock()
	defer s.mu.unlock()
	s.nics[k].close()
}

// DriverRequest lets a driver of this session name a process of another session that asks for a connection.
func (s *Session) DriverRequest(from *Session) error {
	u, err := driver.ParseURL(from.card.rails[0].small, maxCardURL)
	s.answer(u.Incarnation, 0)
	return err
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

// Pending lists the messages and operations that the session still has; empty if there are none.
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
	s.transfers.outs.each(func(uint64, *outgoing) { outs++ })
	s.transfers.ins.each(func(uint64, *incoming) { ins++ })
	s.transfers.syncs.each(func(uint64, *Request) { syncs++ })
	s.oneSided.ops.each(func(uint64, *Op) { ops++ })
	count("long messages that leave", outs)
	count("long messages that arrive", ins)
	count("acknowledgements", syncs)
	count("operations by message", ops)
	count("operations", len(s.oneSided.live)-s.oneSided.holes)
	count("pieces", len(s.transfers.pieces))
	count("receives", s.table.Posted())
	count("unexpected messages", s.table.Waiting())
	reserved := s.cfg.Unexpected - s.credit.pool.Free()
	for _, g := range s.gates {
		if g != nil {
			count("stored messages", g.credit.receive.Kept())
			if g.state == gateUp || g.state == gateClosing {
				reserved = 0 // the peer's credit
			}
		}
	}
	count("bytes reserved for unexpected messages", reserved)
	count("bytes of the budget of active messages", s.cfg.Unexpected-s.active.budget)
	count("long active messages that wait for memory", len(s.active.waiting))
	count("handlers", s.active.running)
	count("calls", len(s.calls))
	count("regions", len(s.oneSided.regions))
	for _, g := range s.gates {
		if g != nil && g.state != gateUp {
			count("links, operations and others of a gate that is not connected", len(g.links)+g.ops.live+len(g.pausing.postponed)+g.queues.backlog.n+g.queues.later.n)
		}
	}
	for _, l := range s.links {
		if l.g.state != gateUp {
			count("link of no gate", 1)
		}
	}
	return what
}

// ForgeActive sends the peer the RTS of n long active messages of that length, none of which is ever sent.
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

// ForgeMalformed sends a message with an invalid body.
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

// ProbeRail probes one rail for a message, and takes it. It reports whether there was one.
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
// answers. It returns how many.
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
	return g.queued() + g.queues.later.n
}

// HoldRegistrations makes the region's current registrations fail Deregister with ErrBusy until release is called, as
// if a peer accessed the region.
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

// Stop keeps all goroutines from making progress until goOn is called.
func (s *Session) Stop() (goOn func()) {
	s.mu.lock()
	return s.leave
}

// Current reports whether the key's data of drivers is valid on the established connection.
func (r *Remote) Current() bool {
	r.g.s.mu.lock()
	defer r.g.s.mu.unlock()
	return r.era == r.g.dialing.peerEra
}

// Forge sends these bytes as a message of the session's protocol.
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
	if l == nil || g.active.handling || l.rp.Driver.Phase == driver.BufferOut {
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

// PostRaw posts these bytes as a message of the session's protocol, without receiving anything. It returns false if
// there is no room or no credit.
func (g *Gate) PostRaw(b []byte) bool { return g.postRaw(b, false) }

// PostUnpaid is PostRaw without credit.
func (g *Gate) PostUnpaid(b []byte) bool { return g.postRaw(b, true) }

func (g *Gate) postRaw(b []byte, unpaid bool) bool {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if g.lead != nil {
		g.push()
	}
	if g.lead == nil {
		return false
	}
	msg := s.newOutMsg(len(b))
	copy(msg.buf, b)
	msg.paid = unpaid
	if _, taken := g.lead.post(msg); !taken {
		s.recycle(msg)
		return false
	}
	return true
}

// Unanswered returns how many sent messages the peer has not answered.
func (g *Gate) Unanswered() (syncs, longs int) {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.held.syncs, g.held.longs
}

// Leaves reports whether a Leave was sent on this connection.
func (g *Gate) Leaves() bool {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.close.sent.leave
}

// HeldBytes returns the memory in bytes that is charged to the gate, beside unexpected messages.
func (g *Gate) HeldBytes() int {
	g.s.mu.lock()
	defer g.s.mu.unlock()
	return g.held.bytes
}

// PoolBytes returns how many bytes of memory for unexpected messages are pooled.
func (s *Session) PoolBytes() (n int) {
	s.mu.lock()
	defer s.mu.unlock()
	for _, u := range s.spare.unexpected {
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

// SetNoticeTime sets how long a peer is blocked before that is reported to the program, and returns the previous
// value.
func SetNoticeTime(d time.Duration) (before time.Duration) {
	before, noticeTime = noticeTime, d
	return before
}
