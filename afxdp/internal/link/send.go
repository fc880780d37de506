package link

import "math/bits"

// segment is a fragment that is not acknowledged yet.
type segment struct {
	data  []byte // frame of an ordered fragment; nil: the fragment is placed
	t     *Transfer
	off   uint64 // of a placed fragment: its offset in the message
	frame uint64
	n     int32 // bytes of payload
	w     int32 // units of credit
	state segState
	more  bool
	tried bool
	again bool // sent more than once

	losses  uint8 // up to fewLosses
	part    uint8 // the next one to be sent
	divided bool  // sent in parts
	trial   bool  // longer than others, to see whether it arrives
	sent    Time
}

// size returns the bytes of the segment's packet without tag and bitmap.
func (s *segment) size() int {
	if s.t != nil {
		return placedHeaderSize + int(s.n)
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

// Transfer is a placed message under way. The caller allocates it, and may use it again after Handler.Placed or the end
// of the connection.
type Transfer struct {
	Tag   uint64 // chosen by the receiver
	Len   uint64 // bytes to send
	Total uint64 // bytes of the message as announced to the receiver; at least Len
	User  any

	next    uint64 // offset of the first byte that was not sent yet
	unacked int    // fragments under way
	begun   bool
	later   *Transfer
}

// sender is the state of the sending direction.
type sender struct {
	una    uint64 // all fragments below it are acknowledged
	next   uint64 // the next fragment to be sent
	end    uint64 // the next fragment to be posted
	span   int    // fragments that may be under way
	used   uint64 // units of all fragments below end
	sent   uint64 // units of all fragments below next
	limit  uint64 // the peer's credit: units below it may be sent
	pn     uint64 // number of the last packet
	segs   []segment
	sacked seqSet // those in segAcked

	inflight int // units of segments in segSent
	lost     int // segments in segLost
	lostFrom uint64

	mustProbe bool // one segment is sent whatever window and pace allow

	first, last *Transfer // transfers that are not fully sent
	waited      bool      // the sender has waited for credit since it last sent
	peerDups    uint8
}

func (c *Conn) seg(seq uint64) *segment { return &c.segs[seq&uint64(len(c.segs)-1)] }

// Room returns how many ordered fragments can be posted; 0 if the connection is not established.
func (c *Conn) Room() int {
	if c.state != stateUp {
		return 0
	}
	return c.span - int(c.end-c.una)
}

// Unacknowledged returns how many fragments are posted and not acknowledged yet. All transfers that are not fully sent
// count as one.
func (c *Conn) Unacknowledged() int {
	n := int(c.end - c.una)
	if c.first != nil {
		n++
	}
	return n
}

// Post sends the next fragment of an ordered message. Its n bytes, at most MaxFragment, begin at HeaderSize in the data
// of a frame from the carrier, which belongs to the connection from now on. Post panics without Room, which includes
// connections that are not established, or if n is too large: see Fits. Call Flush after a batch.
func (c *Conn) Post(now Time, f Frame, n int, more bool) {
	c.e.now = max(c.e.now, now)
	if n < 0 || n > c.longest() || c.Room() <= 0 {
		panic("link: Post of a fragment that is too long, or without Room")
	}
	*c.seg(c.end) = segment{data: f.Data, frame: f.ID, n: int32(n), w: 1, more: more}
	c.end++
	c.used++
	c.e.look(c)
}

// Start sends a placed message after those that were started before. t and the memory that Handler.Fill reads belong to
// the connection until Handler.Placed or the connection's end. Call Flush after a batch.
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

// pump sends as much as window, credit, pace and carrier allow.
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
			c.blocked = true
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

// needsCredit reports whether the next fragment takes more credit than is left.
func (c *Conn) needsCredit() bool {
	w := 1
	if c.next < c.end {
		w = int(c.seg(c.next).w)
	} else if t := c.first; t != nil {
		w = c.unitsOf(c.nextPart(t))
	}
	return c.sent+uint64(w) > c.limit
}

// nextPart returns the bytes of a transfer's next fragment.
func (c *Conn) nextPart(t *Transfer) int {
	most := c.MaxPlaced()
	if n := c.trial(); n > 0 {
		most = n - placedHeaderSize - c.overhead()
	}
	return int(min(t.Len-t.next, uint64(most)))
}

// unitsOf returns the credit that a placed fragment of n bytes takes.
func (c *Conn) unitsOf(n int) int { return units(placedHeaderSize+n+c.overhead(), c.peerUnit) }

// fragment makes the next segment of the first transfer.
func (c *Conn) fragment() {
	t := c.first
	n := c.nextPart(t)
	w := c.unitsOf(n)
	trial := n > c.MaxPlaced()
	c.pmtu.trying = c.pmtu.trying || trial
	*c.seg(c.end) = segment{t: t, off: t.next, n: int32(n), w: int32(w), trial: trial}
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

// repeat sends the lowest lost segment.
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
	c.repeated++
	c.e.stats.Retransmits++
	return true
}

// transmit sends a segment that is queued or lost. It reports whether the carrier took it.
func (c *Conn) transmit(seq uint64) bool {
	s := c.seg(seq)
	flags := uint8(0)
	if s.more {
		flags = flagMore
	}
	if s.t != nil {
		flags |= flagPlaced
	}
	if c.ask(int(s.w)) {
		flags |= flagAsk
	}
	send := c.sendWhole
	if c.divides(s) {
		send = c.sendParts
	}
	if !send(seq, s, flags) {
		return false
	}
	s.state, s.sent = segSent, c.e.now
	if seq == c.una && !s.tried {
		c.advancedAt = c.e.now
	}
	s.again = s.tried
	s.tried = true
	c.inflight += int(s.w)
	c.mustProbe = false
	c.spent(int(s.w))
	c.soon(c.probeAt())
	return true
}

// sendWhole sends a segment in one packet. It reports whether the carrier took it.
func (c *Conn) sendWhole(seq uint64, s *segment, flags uint8) bool {
	e := c.e
	f, own := Frame{ID: s.frame, Data: s.data}, s.data != nil && c.sealer == nil
	if !own {
		var ok bool
		if s.size() > e.cfg.Unit { // never if sealed
			f, ok = e.carrier.GetLong()
		} else {
			f, ok = e.carrier.Get()
		}
		if !ok {
			return false
		}
	}
	n := HeaderSize + int(s.n)
	b := f.Data
	if s.t != nil {
		n = placedHeaderSize + int(s.n)
		c.putPlaced(b[56:], s)
		e.handler.Fill(c, s.t, s.off, b[placedHeaderSize:n])
	} else if !own {
		copy(b[HeaderSize:], s.data[HeaderSize:n])
	}
	le.PutUint64(b[48:], seq)
	sent := c.emit(f, n, &header{kind: kindData, flags: flags})
	if !own {
		e.carrier.Put(f.ID)
	}
	return sent
}

// putPlaced writes the header's fields about the message of a placed segment.
func (c *Conn) putPlaced(b []byte, s *segment) {
	le.PutUint64(b, s.t.Tag)
	le.PutUint64(b[8:], s.off)
	le.PutUint64(b[16:], s.t.Total)
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

// emit completes a packet of n bytes and sends it. It has as much of the bitmap as fits: an acknowledgement that needs one,
// beside packets without room for any, is sent in a packet of its own.
func (c *Conn) emit(f Frame, n int, h *header) bool {
	e := c.e
	h.conn, h.pn, h.stamp = c.peer, c.pn+1, uint32(e.now>>10)
	c.acknowledge(h)
	most := c.short
	if h.flags&flagPart != 0 {
		most = min(most, partPacket)
	}
	wanted := h.words
	for n+8*int(h.words)+c.overhead() > most && h.words > 0 {
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
		c.sealer.change(h.pn, e.cfg.keyPackets, e.now, c.newestSent)
		b = c.sealer.seal(b[:n:cap(b)], b, h.pn)
	} else {
		finishPacket(b)
	}
	c.pn = h.pn // used up even if the packet is not sent: a nonce must not be used twice
	if !e.carrier.Send(c.route, f, len(b)) {
		return false
	}
	e.stats.sent++
	if h.words > 0 || wanted == 0 {
		c.answered()
	}
	return true
}

// acknowledged evaluates the fields of a header that report what has arrived at the peer. It returns false if they are
// impossible.
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
			c.sacked.remove(c.una - 1)
		}
		c.lostFrom = max(c.lostFrom, c.una)
		c.advancedAt = c.e.now
		c.e.look(c)
	}
	if len(words) > 0 && h.cum == c.una {
		for k := 0; k < len(words); k += 8 {
			from := h.cum + 1 + 8*uint64(k)
			w := le.Uint64(words[k:]) &^ c.sacked.word(from)
			for ; w != 0 && c.sends(); w &= w - 1 {
				at := from + uint64(bits.TrailingZeros64(w))
				if at >= c.next {
					return false
				}
				newly.add(c.ack(at))
			}
		}
	}
	if c.sends() { // Placed may have closed the connection
		c.measured(h, newly)
	}
	return true
}

// mostCredit bounds by how much the credit may exceed the units sent: no receiver has more frames.
const mostCredit = 1 << 17

// arrival counts what a packet acknowledges for the first time.
type arrival struct{ fragments, units int }

func (a *arrival) add(units int) {
	if units > 0 {
		a.fragments++
		a.units += units
	}
}

// ack handles the acknowledgement of one segment. It returns the segment's units if it is the first one, else 0.
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
	c.sacked.add(seq)
	if n := s.size() + c.overhead(); s.divided {
		c.arrivedDivided(n, s.trial)
	} else {
		c.arrivedWhole(n, s.trial)
	}
	if t := s.t; t != nil {
		s.t = nil
		if t.unacked--; t.unacked == 0 && t.next == t.Len {
			w := int(s.w) // read before Placed, which may close the connection
			c.e.handler.Placed(c, t)
			return w
		}
		return int(s.w)
	}
	c.e.carrier.Put(s.frame)
	s.data = nil
	return int(s.w)
}

// dropSegments forgets all segments that are not acknowledged.
func (c *Conn) dropSegments() {
	for ; c.una < c.end; c.una++ {
		if s := c.seg(c.una); s.state != segAcked && s.data != nil {
			c.e.carrier.Put(s.frame)
		}
		*c.seg(c.una) = segment{}
	}
	clear(c.sacked)
	c.next, c.sent, c.inflight, c.lost, c.first, c.last = c.end, c.used, 0, 0, nil, nil
}
