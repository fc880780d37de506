package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/match"
	"github.com/bywash/bywash/session/internal/rdv"
)

// outgoing is the sending half of a long message, with the memory that drivers use.
type outgoing struct {
	rdv.Sender
	id        uint64
	req       *Request
	g         *Gate
	peer      uint64 // id of the receiving half, once it has answered
	buf       []byte
	layout    driver.Layout
	total     int
	err       error
	next      int // mode Null: bytes that were cut into fragments
	limit     int
	frags     int // fragments that have not left
	region    driver.Region
	early     *piece // prefetched
	releasing bool   // the region is still in use
	active    bool   // an active message
	rtsTaken  bool   // a driver has taken the RTS; counted in Gate.held
	parked    bool   // the RTS waits for the next connection
	kept      bool   // a pause has kept it: the RTS left over an earlier connection
	rail      uint8  // of the key
	keyLen    int    // bytes of the key in the RTS
	nextFree  *outgoing
}

// incoming is the receiving half of a long message.
type incoming struct {
	rdv.Receiver
	id       uint64
	req      *Request
	g        *Gate
	peer     uint64 // id of the sending half
	total    int
	want     int
	mode     rdv.Mode
	choice   *choice   // to which the message's time counts; nil: to none
	began    time.Time // with choice
	err      error
	moved    int    // mode Null: bytes of the chunk under way
	confirm  bool   // the sender waits for DONE
	asked    uint32 // RTRs
	key      []byte // mode Get
	nextFree *incoming

	before, after *incoming // in Gate.in
}

func (s *Session) newOutgoing() *outgoing {
	o := s.spare.outs
	if o == nil {
		return new(outgoing)
	}
	s.spare.outs, o.nextFree = o.nextFree, nil
	return o
}

// freeOut frees a message that has ended. It keeps no memory of the program alive.
func (s *Session) freeOut(o *outgoing) {
	o.req.out = nil
	*o = outgoing{nextFree: s.spare.outs}
	s.spare.outs = o
}

func (s *Session) newIncoming() *incoming {
	in := s.spare.ins
	if in == nil {
		return new(incoming)
	}
	s.spare.ins = in.nextFree
	*in = incoming{Receiver: in.Receiver, key: in.key[:0]}
	return in
}

// addIn puts a message on the list of those that arrive from the peer.
func (g *Gate) addIn(in *incoming) {
	if in.after = g.in.first; in.after != nil {
		in.after.before = in
	}
	g.in.first = in
}

func (g *Gate) removeIn(in *incoming) {
	if in.after != nil {
		in.after.before = in.before
	}
	if in.before != nil {
		in.before.after = in.after
	} else {
		g.in.first = in.after
	}
	in.before, in.after = nil, nil
}

// modes are those that this side can do on a connection as a sender.
func (l *link) modes() rdv.Set {
	set := rdv.Set(0).With(rdv.Null)
	if l.large != nil {
		set = set.With(rdv.Cooperative)
	}
	if l.one != nil && l.nic.reg != nil {
		set = set.With(rdv.Put).With(rdv.Get)
	}
	return set
}

// longMsg makes the RTS of a message.
func (g *Gate) longMsg(o *Out, n int) (*outMsg, *Request) {
	s := g.s
	r := g.sendRequest(o)
	out := s.newOutgoing()
	out.req, out.g, out.buf, out.layout, out.total = r, g, o.Buf, o.Layout, n
	out.id = s.transfers.outs.add(out)
	r.out = out
	out.Begin(n)
	msg := s.newOutMsg(header.Size + header.BodySize(header.RTS) + len(o.Header))
	h := header.Header{Kind: header.RTS, Tag: o.Tag, Extra: uint16(len(o.Header))}
	h.Put(msg.buf)
	copy(msg.buf[header.Size+header.BodySize(header.RTS):], o.Header)
	msg.out, msg.id, msg.urgent = out, out.id, o.Urgent
	return msg, r
}

// flagConfirm, in an RTS, asks for a DONE when all has arrived.
const flagConfirm = 1 << 0

// offer completes an RTS when it is about to leave and the rail is known: it adds the modes of the sender, and the key
// of mode Get if that was asked for.
func (o *outgoing) offer(l *link, msg *outMsg) {
	s := o.g.s
	modes := l.modes()
	if !contiguous(o.layout) {
		modes &^= rdv.Set(0).With(rdv.Put).With(rdv.Get)
	}
	if f := s.cfg.Mode; f == nil || *f != rdv.Get {
		modes &^= rdv.Set(0).With(rdv.Get)
	} else if o.region == nil && modes.Has(rdv.Get) && o.total > 0 && o.register(l) != nil {
		modes &^= rdv.Set(0).With(rdv.Get)
	}
	var h header.Header
	h.Kind, h.Extra = header.RTS, uint16(len(msg.buf)-header.Size-header.BodySize(header.RTS))
	if o.keyLen > 0 { // offered before: the driver had no room
		h.Extra -= uint16(o.keyLen)
		msg.buf = msg.buf[:len(msg.buf)-o.keyLen]
		o.keyLen = 0
	}
	h.Tag = header.Uint64(msg.buf[8:])
	if o.region != nil {
		key := o.region.Key()
		o.keyLen = len(key)
		msg.buf = append(msg.buf, key...)
		h.Length = uint32(len(key))
	}
	if o.Confirm(len(o.g.links) > 1 || o.active); o.Confirmable() {
		h.Flags = flagConfirm
	}
	if o.active {
		h.Flags |= flagActive
	}
	h.Put(msg.buf)
	req := header.Request{ID: o.id, Total: uint64(o.total), Modes: uint8(modes), Rail: o.rail}
	req.Put(msg.buf[header.Size:])
	if modes.Has(rdv.Cooperative) {
		o.prefetch(l)
	}
}

// register makes the message readable for the peer.
func (o *outgoing) register(l *link) (err error) {
	o.region, err = l.nic.reg.Register(span(o.buf, o.layout, 0, o.total), driver.RemoteRead)
	o.rail = l.rail
	return err
}

// releaseMemory releases the registrations that were made for the message on this connection: the prefetched one, and
// that of the key. If the peer still accesses the region, deregistration goes on in the background (o.releasing).
func (o *outgoing) releaseMemory() {
	o.unfetch()
	r := o.region
	if r == nil {
		return
	}
	o.region = nil
	if free, _ := tryDeregister(r); !free { // a peer still accesses the region, or died while it did
		s := o.g.s
		o.releasing = true
		pc := s.newPiece(nil)
		pc.kind, pc.posted, pc.out, pc.region = pieceRelease, true, o, r
		s.addPiece(pc)
	}
}

// receiveLong begins to receive a message by rendezvous.
func (s *Session) receiveLong(r *Request, g *Gate, h *header.Header, req *header.Request, extra, key []byte) error {
	tag := h.Tag
	r.status.From, r.status.Tag = g, tag
	if len(extra) > 0 {
		r.status.Header = copy(r.head, extra)
	}
	if g.lead == nil {
		s.complete(r, g.fault("receive", ErrClosed))
		return nil
	}
	s.stats.Received++
	s.stats.Long++
	l := g.lead
	in := s.newIncoming()
	in.req, in.g, in.peer, in.total = r, g, req.ID, int(req.Total)
	in.want = min(in.total, r.room())
	in.id = s.transfers.ins.add(in)
	g.addIn(in)
	g.charge(incomingCost)
	r.in = in
	offered := rdv.Set(req.Modes)
	if !contiguous(r.layout) {
		offered &^= rdv.Set(0).With(rdv.Put).With(rdv.Get)
	}
	mode, err := l.choose(offered, in)
	if err != nil {
		in.err = err
		in.Fail()
	}
	in.mode = mode
	if g.in.prefetchMissed = mode != rdv.Cooperative; g.in.prefetchMissed {
		r.unfetch()
	}
	if mode == rdv.Get {
		if l = g.rail(req.Rail); l == nil { // that on which it was offered: it may be lost since
			l = g.lead
			in.err = rdv.ErrProtocol
		}
		in.key = append(in.key, key...)
	}
	in.confirm = h.Flags&flagConfirm != 0
	var rails [rdv.MaxRails]rdv.Rail
	own := &rails[l.rail]
	*own = l.plan(mode, in.want)
	own.Usable = !l.dead
	if mode == rdv.Cooperative && in.confirm && len(g.links) > 1 {
		g.stripe(in.want, &rails)
	}
	in.Begin(in.want, rails[:]...)
	if in.err != nil {
		in.Fail()
	}
	s.advance(in)
	return nil
}

// choose takes the mode of a message: the forced one, else what the capabilities allow and is the fastest by what was
// measured, or by the profile.
func (l *link) choose(offered rdv.Set, in *incoming) (rdv.Mode, error) {
	mine, n := l.modes()&offered, in.want
	if f := l.g.s.cfg.Mode; f != nil {
		if !mine.Has(*f) {
			return rdv.Null, fmt.Errorf("%w: transfer mode %v is not supported by driver %s", driver.ErrUnsupported, *f, l.nic.Driver)
		}
		return *f, nil
	}
	switch {
	case mine.Has(rdv.Cooperative) && n >= l.nic.longFrom:
		if in.choice = l.choiceFor(in.req, n); in.choice == nil {
			return rdv.Cooperative, nil
		}
		in.began = time.Now()
		return in.choice.next(), nil
	case mine.Has(rdv.Cooperative):
		return rdv.Null, nil
	case mine.Has(rdv.Put):
		return rdv.Put, nil
	}
	return rdv.Null, nil
}

// longFrom returns from how many bytes on the large track is faster: there the time that its bandwidth saves equals
// the time that its latency costs. It is 0 if both have the same bandwidth.
func longFrom(small, large *driver.Profile) int {
	saved := 1/max(small.Bandwidth, 1) - 1/max(large.Bandwidth, 1) // seconds a byte
	if saved <= 0 {
		return 0
	}
	return int(large.Latency.Seconds() / saved)
}

// plan chooses chunk length and window of a message on this rail.
func (l *link) plan(mode rdv.Mode, n int) rdv.Rail {
	r := rdv.Rail{Usable: true, Chunk: max(n, 1), Window: 1}
	limit := func(most int) {
		if most > 0 && most < r.Chunk {
			r.Chunk, r.Window = most, 4
		}
	}
	switch mode {
	case rdv.Cooperative:
		limit(l.nic.lcaps.MaxMessage)
	case rdv.Put, rdv.Get:
		if one := l.nic.oneSided(); one != nil {
			limit(one.MaxPut)
			limit(one.MaxGet)
		}
	}
	if most := l.g.s.cfg.Chunk; mode != rdv.Null {
		limit(most)
	}
	return r
}

// stripe cuts a message so that several rails share it, at first in proportion to their bandwidth. Afterwards each
// rail gets the next chunk when it has finished one.
func (g *Gate) stripe(n int, rails *[rdv.MaxRails]rdv.Rail) {
	const least, most = 128 << 10, 4 << 20
	sum := 0.0
	for _, l := range g.links {
		if !l.dead && l.large != nil {
			sum += l.bandwidth()
		}
	}
	for i, l := range g.links {
		if l.dead || l.large == nil {
			continue
		}
		r := l.plan(rdv.Cooperative, n)
		if n > least {
			share := int(float64(n) / 4 * l.bandwidth() / sum)
			r.Chunk, r.Window = min(r.Chunk, max(least, min(share, most))), 2
		}
		rails[i] = r
	}
}

func (l *link) bandwidth() float64 { return max(l.nic.large.Properties().Profile.Bandwidth, 1) }

// rail is the link of that number; nil if there is none.
func (g *Gate) rail(n uint8) *link {
	if int(n) >= len(g.links) {
		return nil
	}
	return g.links[n]
}

func (n *nic) oneSided() *driver.OneSidedCapabilities {
	if n.lcaps != nil && n.lcaps.OneSided != nil {
		return n.lcaps.OneSided
	}
	return n.caps.OneSided
}

// advance posts and requests as many chunks as possible, and ends the message if it is over.
func (s *Session) advance(in *incoming) {
	for in.Hold() == 0 || !in.g.nearQuota() {
		c, ok := in.Next()
		if !ok && in.err == nil && in.Stuck() && in.reroute() {
			continue
		}
		if !ok {
			break
		}
		if err := s.begin(in, c); err != nil {
			in.Failed(c.ID)
			if l := in.g.rail(c.Rail); l != nil && in.continuesWithout(l, err) {
				continue
			}
			in.fail(err)
		}
	}
	s.settleIn(in)
}

// fail makes the message fail: the first reason counts.
func (in *incoming) fail(err error) {
	if in.err == nil {
		in.err = err
	}
	in.Fail()
}

// Status of DONE.
const (
	statusDone = iota
	statusFailed
	statusWithdrawn // by the sender, before anything has moved; the tag is the sender's
	statusTooLong   // by the receiver, which takes no message so long
)

// settleIn completes a receive that is complete, or has failed.
func (s *Session) settleIn(in *incoming) {
	complete := in.err == nil && in.Complete()
	if !complete && !in.Over() || !s.transfers.ins.has(in.id) {
		return
	}
	g, r := in.g, in.req
	s.transfers.ins.remove(in.id) // sending Done may end the gate, and everything that is pending at it
	g.removeIn(in)
	status := uint8(statusDone)
	if !complete {
		status = statusFailed
	}
	if !complete || in.mode == rdv.Get || in.want == 0 || in.confirm {
		g.done(in.peer, status, true)
	}
	g.charge(-incomingCost)
	if in.mode == rdv.Null {
		s.stats.Fragmented++
	}
	if l := g.lead; in.choice != nil && complete && l != nil {
		now := time.Now()
		if l.lastLong.After(in.began) {
			in.began = l.lastLong
		}
		in.choice.took(in.mode, now.Sub(in.began))
		l.lastLong = now
	}
	in.nextFree, s.spare.ins = s.spare.ins, in
	g.ended()
	r.in = nil
	if errors.Is(in.err, errWithdrawn) && r.active == nil && !r.probed {
		s.repost(r, g)
		return
	}
	r.status.Len = in.want
	switch {
	case !complete:
		r.status.Len = 0
		s.complete(r, g.fault("receive", in.err))
	case in.want < in.total:
		s.complete(r, g.fault("receive", &driver.TruncatedError{Message: in.total, Buffer: in.want}))
	default:
		s.complete(r, nil)
	}
}

var (
	errWithdrawn = fmt.Errorf("%w: the sender cancelled the message", ErrCanceled)
	errRefused   = fmt.Errorf("%w: the other end could not continue the transfer", ErrCanceled)
)

// repost posts a receive again whose message the sender, the peer of g, has cancelled. It keeps its place among the other
// receives.
func (s *Session) repost(r *Request, g *Gate) {
	r.status = Status{}
	var from *Gate
	if r.recv.From != match.Any {
		from = s.gates[r.recv.From]
	}
	if s.closed || r.recv.From != match.Any && from != g { // closed or forgotten while the driver had the memory
		s.complete(r, g.fault("receive", ErrClosed))
		return
	}
	s.pair(r, from, s.table.PostAgain(&r.recv))
}

// ended continues closing, which may have waited for a transfer or an operation that has ended.
func (g *Gate) ended() {
	if g.closing() {
		g.markBusy()
	}
}

// settleOut completes the request of a send that is done or has failed.
func (s *Session) settleOut(o *outgoing) {
	if o.frags > 0 || o.releasing || !o.Complete() && !o.Over() || !s.transfers.outs.has(o.id) {
		return
	}
	if o.releaseMemory(); o.releasing {
		return
	}
	s.dropOut(o)
	o.g.activeSent(o)
	r, g, err := o.req, o.g, o.err
	s.freeOut(o)
	g.ended()
	s.complete(r, g.fault("send", err))
}

// fail makes the message fail.
func (o *outgoing) fail(err error) {
	if o.err == nil {
		o.err = err
	}
	o.Fail()
}

// withdraw cancels a message that the receiver has not answered.
func (s *Session) withdraw(o *outgoing) bool {
	if o.Matched() || o.region != nil && o.rtsTaken || o.releasing {
		return false
	}
	g := o.g
	if o.releaseMemory(); o.releasing {
		return false
	}
	s.dropOut(o) // see settleIn
	queued := false
	for _, q := range []*outQueue{&g.queues.backlog, &g.queues.later, &g.active.queue} {
		if msg := q.remove(func(msg *outMsg) bool { return msg.out == o }); msg != nil {
			s.recycle(msg)
			queued = true
		}
	}
	if !queued {
		g.sendPart(header.Done, o.id, header.Part{Status: statusWithdrawn, All: true}, nil)
	}
	g.unblock()
	g.activeSent(o)
	s.freeOut(o)
	g.ended()
	return true
}

// dropLong fails the long messages of a gate. Messages whose memory a driver still holds fail when it gives the memory
// back.
func (s *Session) dropLong(g *Gate, err error) {
	s.failOuts(g, func(*outgoing) bool { return true }, err)
	s.failIns(g, err)
}

// failIns fails the gate's long messages that are arriving.
func (s *Session) failIns(g *Gate, err error) {
	var ins []*incoming // copied, because the end of one message may end others
	for in := g.in.first; in != nil; in = in.after {
		ins = append(ins, in)
	}
	for _, in := range ins {
		if in.g == g && s.transfers.ins.has(in.id) {
			in.abort(err)
		}
	}
}

// abort fails a message of which the sender sends nothing more.
func (in *incoming) abort(err error) {
	in.fail(err)
	if in.mode == rdv.Null { // no driver uses its memory
		for k := uint32(0); in.Hold() > 0; k++ {
			in.Failed(k)
		}
	}
	s := in.g.s
	s.cancelPieces(in)
	s.settleIn(in)
}

// failOuts fails the gate's outgoing long messages that f selects and that are not parked.
func (s *Session) failOuts(g *Gate, f func(*outgoing) bool, err error) {
	s.transfers.outs.each(func(_ uint64, o *outgoing) {
		if o.g == g && !o.parked && f(o) {
			o.fail(err)
			s.settleOut(o)
		}
	})
}
