package link

import "math/bits"

// segment is a fragment that was not acknowledged yet.
type segment struct {
	data  []byte // frame of an ordered fragment; nil: placed
	t     *Transfer
	off   uint64 // of a placed fragment in its message
	frame uint64
	n     int32 // bytes of payload
	w     int32 // units of credit that it takes
	state segState
	more  bool
	tried bool
	again bool // sent more than once
	sent  Time
}

// size is that of its packet, without a tag.
func (s *segment) size() int {
	if s.t != nil {
		return PlacedHeaderSize + int(s.n)
	}
	return HeaderSize + int(s.n)
}

type segState uint8

const (
	segQueued segState = iota
	segSent
	segLost // to be sent again
	segAcked
)

// Transfer is a placed message on its way. The caller allocates it and may use
// it again once Handler.Placed has been called, or the connection has ended.
type Transfer struct {
	Tag   uint64 // which the receiver chose
	Len   uint64 // bytes to be sent
	Total uint64 // bytes of the message, which the receiver is told; at least Len
	User  any

	next    uint64 // of what was not sent yet
	unacked int    // fragments under way
	begun   bool
	later   *Transfer
}

// sender is what goes out.
type sender struct {
	una   uint64 // all below are acknowledged
	next  uint64 // of what is sent first
	end   uint64 // of what is posted first
	span  int    // seqs that may be under way
	used  uint64 // units of all below end
	sent  uint64 // units of all below next
	limit uint64 // the peer's credit: units below may be sent
	pn    uint64 // of the last packet
	segs  []segment

	inflight int // units of segments in segSent
	lost     int // segments in segLost
	lostFrom uint64

	mustProbe bool // one segment goes out whatever window and pace say

	first, last *Transfer // not all sent
	waited      bool      // for credit, since something was sent
	peerDups    uint8
}

func (c *Conn) seg(seq uint64) *segment { return &c.segs[seq&uint64(len(c.segs)-1)] }

// Room is how many ordered fragments can be posted.
func (c *Conn) Room() int {
	if c.state != stateUp {
		return 0
	}
	return c.span - int(c.end-c.una)
}

// Unacknowledged is how many fragments were posted and not acknowledged yet,
// counting a transfer that was not sent at all as one.
func (c *Conn) Unacknowledged() int {
	n := int(c.end - c.una)
	if c.first != nil {
		n++
	}
	return n
}

// Post sends the next fragment of an ordered message, with n bytes (at most
// MaxFragment) that begin at HeaderSize in the data of a frame from the carrier, which is the
// connection's from now on. It panics where there is no Room, as on a connection that does
// not stand, or n is too much. Call Flush after a batch.
func (c *Conn) Post(now Time, f Frame, n int, more bool) {
	c.e.now = max(c.e.now, now)
	if n < 0 || n > c.MaxFragment() || c.Room() <= 0 {
		panic("link: Post of a fragment that is too long, or without Room")
	}
	*c.seg(c.end) = segment{data: f.Data, frame: f.ID, n: int32(n), w: 1, more: more}
	c.end++
	c.used++
	c.e.look(c)
}

// Start sends a placed message after those that were started before. Call Flush after a batch.
func (c *Conn) Start(now Time, t *Transfer) {
	c.e.now = max(c.e.now, now)
	t.Total = max(t.Total, t.Len)
	t.next, t.unacked, t.begun, t.later = 0, 0, false, nil
	if c.first == nil {
		c.first = t
	} else {
		c.last.later = t
	}
	c.last = t
	c.e.look(c)
}

// pump sends what window, credit, pace and carrier allow.
func (c *Conn) pump() {
	e := c.e
	for c.sends() {
		switch {
		case c.lost == 0 && c.next == c.end && c.first == nil:
			return
		case !c.mustProbe && (c.inflight >= c.window() || !c.paced()):
			return
		case c.lost > 0:
			if !c.repeat() {
				e.look(c)
				return
			}
			continue
		case c.next == c.end && c.Room() == 0:
			c.soon(c.probeAt())
			return
		case c.needsCredit():
			if !c.waited {
				c.waited, c.progressAt = true, e.now
				e.stats.Waited++
			}
			c.soon(c.probeAt())
			return
		}
		if c.next == c.end {
			c.fragment()
		}
		if !c.transmit(c.next) {
			e.look(c)
			return
		}
		c.sent += uint64(c.seg(c.next).w)
		c.next++
		c.waited = false
	}
}

// needsCredit reports whether what is sent next takes more credit than there is.
func (c *Conn) needsCredit() bool {
	w := 1
	if c.next < c.end {
		w = int(c.seg(c.next).w)
	} else if t := c.first; t != nil {
		w = c.unitsOf(c.nextPart(t))
	}
	return c.sent+uint64(w) > c.limit
}

// nextPart is how many bytes of a transfer its next fragment has.
func (c *Conn) nextPart(t *Transfer) int { return int(min(t.Len-t.next, uint64(c.maxPlaced()))) }

// unitsOf is how much credit a placed fragment of n bytes takes.
func (c *Conn) unitsOf(n int) int { return units(PlacedHeaderSize+n+c.overhead(), c.peerUnit) }

// fragment makes the next segment of the first transfer.
func (c *Conn) fragment() {
	t := c.first
	n := c.nextPart(t)
	w := c.unitsOf(n)
	*c.seg(c.end) = segment{t: t, off: t.next, n: int32(n), w: int32(w)}
	c.end++
	c.used += uint64(w)
	t.next += uint64(n)
	t.unacked++
	t.begun = true
	if t.next == t.Len {
		if c.first = t.later; c.first == nil {
			c.last = nil
		}
	}
}

// repeat sends the lowest segment that was lost.
func (c *Conn) repeat() bool {
	for c.lostFrom = max(c.lostFrom, c.una); c.seg(c.lostFrom).state != segLost; {
		c.lostFrom++
	}
	s := c.seg(c.lostFrom)
	if s.data != nil && c.e.carrier.Sending(s.frame) { // not lost: it has not left yet
		s.state, s.sent = segSent, c.e.now
		c.lost--
		c.inflight += int(s.w)
		c.mustProbe = false
		return true
	}
	if !c.transmit(c.lostFrom) {
		return false
	}
	c.lost--
	c.e.stats.Retransmits++
	return true
}

// transmit sends a segment that is queued or lost.
func (c *Conn) transmit(seq uint64) bool {
	e := c.e
	s := c.seg(seq)
	f, own := Frame{ID: s.frame, Data: s.data}, s.data != nil && c.sealer == nil
	if !own {
		var ok bool
		if s.size() > e.cfg.Unit { // sealed ones never are
			f, ok = e.carrier.GetLong()
		} else {
			f, ok = e.carrier.Get()
		}
		if !ok {
			return false
		}
	}
	h := header{kind: kindData}
	if s.more {
		h.flags = flagMore
	}
	if c.ask(int(s.w)) {
		h.flags |= flagAsk
	}
	n := HeaderSize + int(s.n)
	b := f.Data
	if s.t != nil {
		h.flags |= flagPlaced
		n = PlacedHeaderSize + int(s.n)
		le.PutUint64(b[56:], s.t.Tag)
		le.PutUint64(b[64:], s.off)
		le.PutUint64(b[72:], s.t.Total)
		e.handler.Fill(c, s.t, s.off, b[PlacedHeaderSize:n])
	} else if !own {
		copy(b[HeaderSize:], s.data[HeaderSize:n])
	}
	le.PutUint64(b[48:], seq)
	sent := c.emit(f, n, &h)
	if !own {
		e.carrier.Put(f.ID)
	}
	if !sent {
		return false
	}
	s.state, s.sent = segSent, e.now
	s.again = s.tried
	s.tried = true
	c.inflight += int(s.w)
	c.mustProbe = false
	c.spent(int(s.w))
	c.soon(c.probeAt())
	return true
}

// sendBare sends a packet without data.
func (c *Conn) sendBare(k kind, flags uint8, seq uint64) bool {
	f, ok := c.e.carrier.Get()
	if !ok {
		return false
	}
	n := ackSize
	if k == kindClose || k == kindClosed {
		n = HeaderSize
		le.PutUint64(f.Data[48:], seq)
	}
	sent := c.emit(f, n, &header{kind: k, flags: flags})
	c.e.carrier.Put(f.ID)
	return sent
}

// emit completes a packet of n bytes, and sends it. A long one has no bitmap: one that is due goes by itself.
func (c *Conn) emit(f Frame, n int, h *header) bool {
	e := c.e
	h.conn, h.pn, h.stamp = c.peer, c.pn+1, uint32(e.now>>10)
	c.acknowledge(h)
	complete := n <= c.short || h.words == 0
	for n+8*int(h.words)+c.overhead() > c.short && h.words > 0 {
		h.words--
	}
	b := f.Data
	putHeader(b, h)
	for k := range int(h.words) {
		le.PutUint64(b[n:], c.word(k))
		n += 8
	}
	b = b[:n]
	if c.sealer != nil {
		c.sealer.change(h.pn, e.cfg.KeyPackets, e.now, c.newestSent)
		b = c.sealer.seal(b[:n:cap(b)], b, h.pn)
	} else {
		finishPacket(b)
	}
	c.pn = h.pn // spent even if it is not sent: nothing else is sealed with it
	if !e.carrier.Send(c.route, f, len(b)) {
		return false
	}
	e.stats.Sent++
	if complete {
		c.answered()
	}
	return true
}

// acknowledged takes what a header says about what went out. False: it makes no sense.
func (c *Conn) acknowledged(h *header, words []byte) bool {
	if !c.sends() {
		return true
	}
	if h.cum > c.next {
		return false
	}
	if limit := expand(c.limit, h.credit); limit > c.limit && limit <= c.sent+mostCredit {
		if c.starved() {
			c.backoff = 0
		}
		c.limit = limit
		c.e.look(c)
	}
	var newly arrival
	if h.cum > c.una {
		for c.una < h.cum && c.sends() {
			c.una++
			newly.add(c.ack(c.una - 1))
		}
		c.lostFrom = max(c.lostFrom, c.una)
		c.e.look(c)
	}
	if len(words) > 0 && h.cum == c.una {
		for k := 0; k < len(words); k += 8 {
			w := le.Uint64(words[k:])
			for ; w != 0 && c.sends(); w &= w - 1 {
				at := h.cum + 1 + 8*uint64(k) + uint64(bits.TrailingZeros64(w))
				if at >= c.next {
					return false
				}
				newly.add(c.ack(at))
			}
		}
	}
	if c.sends() { // Placed may have closed it
		c.measured(h, newly)
	}
	return true
}

// mostCredit is how far the credit may be ahead of what was sent: more frames than any receiver has.
const mostCredit = 1 << 17

// arrival is how much a packet has acknowledged.
type arrival struct{ fragments, units int }

func (a *arrival) add(units int) {
	if units > 0 {
		a.fragments++
		a.units += units
	}
}

// ack takes the acknowledgement of one segment, and returns its units if it is the first.
func (c *Conn) ack(seq uint64) int {
	s := c.seg(seq)
	switch s.state {
	case segAcked:
		return 0
	case segSent:
		c.inflight -= int(s.w)
	case segLost:
		c.lost--
	}
	s.state = segAcked
	if t := s.t; t != nil {
		s.t = nil
		if t.unacked--; t.unacked == 0 && t.next == t.Len {
			w := int(s.w) // it may close the connection
			c.e.handler.Placed(c, t)
			return w
		}
		return int(s.w)
	}
	c.e.carrier.Put(s.frame)
	s.data = nil
	return int(s.w)
}

// dropSegments forgets what was not acknowledged.
func (c *Conn) dropSegments() {
	for ; c.una < c.end; c.una++ {
		if s := c.seg(c.una); s.state != segAcked && s.data != nil {
			c.e.carrier.Put(s.frame)
		}
		*c.seg(c.una) = segment{}
	}
	c.next, c.sent, c.inflight, c.lost, c.first, c.last = c.end, c.used, 0, 0, nil, nil
}
