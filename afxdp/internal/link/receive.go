package link

import (
	"fmt"
	"time"
)

const (
	// minShare is the first and least credit of a peer in units, unless two of the longest packets take more.
	minShare = 16
	// messageShare is the credit up to which a share grows for a single message, whose frames the handler releases when
	// it is complete: 8 KiB in packets of MinMTU are 41 fragments.
	messageShare = 64
	// ackDelay is how long an acknowledgement waits for a packet that can carry it.
	ackDelay = Time(50 * time.Microsecond)
	// ackEvery is the number of fragments after which an acknowledgement does not wait.
	ackEvery = 16
)

// receiver is the state of the receiving direction. A fragment keeps its seq when it is sent again.
type receiver struct {
	cum      uint64     // all fragments below it have arrived
	top      uint64     // one beyond the highest fragment that has arrived
	arrived  uint64     // units of all fragments that have arrived
	consumed uint64     // units that the handler has released, or that were placed
	granted  uint64     // the credit: the peer may send units below it
	unit     int        // bytes of a packet per unit
	peerUnit int        // the peer's
	full     int        // units of the longest packet that is sent
	widest   int        // units of the longest packet that the peer may send
	allowed  int        // the most by which granted may exceed consumed
	reserved int        // frames of the pool that are reserved for the connection
	out      int        // frames that the handler holds
	partly   int        // of them, those of a message that is not complete
	got      []Fragment // by seq: arrived, not delivered
	bits     seqSet     // arrived; from cum on
	partials []partial  // by seq; nil until a part arrives

	newest      uint64 // packet number
	newestStamp uint32
	newestAt    Time
	toAck       int // units not acknowledged
	toAckSince  Time
	ackNow      bool
	dups        uint8
	fresh       uint64 // units since the share was looked at
	freshAt     Time
}

// A frame is reserved for each unit of credit, and a packet takes as many units as it can occupy frames. So every
// packet that a peer may send finds a frame: a receive queue that runs empty would lose the packets of all peers.

// share returns the least number of frames that are reserved for a connection.
func (cfg *Config) share() int { return Share(cfg.MTU, cfg.Unit) }

// admits checks a fragment, of which more bytes follow in further pieces or parts, against credit and window. It
// returns the fragment's units, and false if it is dropped.
func (c *Conn) admits(h *header, seq uint64, b []byte, more int) (w uint64, ok bool) {
	e := c.e
	w = uint64(units(len(b)+more+c.overhead(), c.unit))
	begun := c.begun(seq)
	placed := h.flags&flagPlaced != 0
	switch {
	case seq >= c.granted || seq >= c.cum+uint64(len(c.got)):
		c.violated("a fragment beyond its credit")
	case seq < c.cum || c.bits.has(seq):
		e.stats.duplicates++
		c.dups++
		c.ackNow = true
	case begun && h.flags&flagPart == 0: // its parts arrive, too
	case !begun && c.arrived+w > c.granted:
		c.violated("more bytes than its credit")
	case placed && !e.p.parse(b, more):
		c.violated("a fragment that is not part of its message")
	case !placed && w > 1:
		c.violated("a long fragment that is not placed")
	default:
		return w, true
	}
	return 0, false
}

// data handles a fragment and reports whether its frame is kept.
func (c *Conn) data(h *header, f Frame, b []byte, rest [][]byte) (kept bool) {
	e := c.e
	if len(b) < HeaderSize {
		e.stats.Bad++
		return false
	}
	seq := le.Uint64(b[48:])
	if h.flags&flagPart != 0 {
		w, kept, complete := c.part(h, seq, f, b)
		if complete && c.state == stateUp {
			c.gathered(h, seq, w)
		}
		return kept
	}
	more := 0
	for _, r := range rest {
		more += len(r)
	}
	w, ok := c.admits(h, seq, b, more)
	if !ok {
		return false
	}
	c.arrived += w
	if h.flags&flagPlaced != 0 {
		c.take(h, seq, w, Fragment{})
		c.scatter(rest)
	} else {
		kept = true
		c.take(h, seq, w, Fragment{ID: f.ID, Data: b[HeaderSize:], More: h.flags&flagMore != 0})
	}
	c.deliver()
	return kept
}

// discard acknowledges a fragment of an ordered message that arrives after Close: the peer, which may have been closed,
// too, waits for that.
func (c *Conn) discard(h *header, b []byte) {
	if len(b) < HeaderSize || h.flags&(flagPart|flagPlaced) != 0 {
		return
	}
	seq := le.Uint64(b[48:])
	if w, ok := c.admits(h, seq, b, 0); ok {
		c.arrived += w
		c.consumed += w
		c.take(h, seq, w, Fragment{})
		c.deliver()
	}
}

// take notes that a fragment has arrived. f is empty if the fragment is placed or dropped.
func (c *Conn) take(h *header, seq, w uint64, f Fragment) {
	e := c.e
	if c.toAck == 0 {
		c.toAckSince = e.now
	}
	c.toAck += int(w)
	c.fresh += w
	if seq != c.top || h.flags&flagAsk != 0 {
		c.ackNow = true // a gap begins or is filled, or the peer asks
	}
	c.top = max(c.top, seq+1)
	c.bits.add(seq)
	c.got[seq&uint64(len(c.got)-1)] = f
	if h.flags&flagPlaced != 0 {
		c.consumed += w
	}
}

// deliver hands over the ordered fragments that have arrived, up to the first gap.
func (c *Conn) deliver() {
	mask := uint64(len(c.got) - 1)
	for c.sends() && c.cum < c.top && c.bits.has(c.cum) {
		c.bits.remove(c.cum)
		k := c.cum & mask
		f := c.got[k]
		c.got[k] = Fragment{}
		c.cum++
		if f.Data != nil {
			c.out++
			if c.partly++; !f.More {
				c.partly = 0
			}
			c.e.handler.Deliver(c, f)
		}
	}
}

// scatter hands over a placed fragment, piece by piece.
func (c *Conn) scatter(rest [][]byte) {
	p := &c.e.p
	if len(p.Data) > 0 || len(rest) == 0 {
		c.e.handler.Place(c, p)
	}
	for _, r := range rest {
		if c.state != stateUp { // Place has closed it
			return
		}
		p.Offset += uint64(len(p.Data))
		p.Data = r
		c.e.handler.Place(c, p)
	}
}

// Release gives back a frame that was delivered, and with it the peer gets credit for another one. It may also be
// called after the connection has ended.
func (c *Conn) Release(id uint64) {
	c.e.carrier.Put(id)
	c.out--
	switch c.state {
	case stateUp, stateDraining:
		c.consumed++
		if c.limitDue() {
			c.e.look(c)
		}
	case stateDown:
		c.reserved--
		c.e.pool.spare++
	}
}

// dropArrived frees the frames that were not delivered.
func (c *Conn) dropArrived() {
	for k := range c.got {
		if c.got[k].Data != nil {
			c.consumed++
			c.e.carrier.Put(c.got[k].ID)
			c.got[k] = Fragment{}
		}
	}
	c.dropPartials()
}

// share reserves the first frames of a connection, which keeps them for its life.
func (c *Conn) share() error {
	n, p := c.e.cfg.share(), c.e.pool
	if p.spare < n {
		return fmt.Errorf("%w: it needs %d frames, %d of %d are left", errFull, n, p.spare, p.frames)
	}
	p.spare -= n
	p.shares += n
	c.reserved, c.allowed, c.granted = n, n, uint64(n)
	return nil
}

// unshare gives back all reserved frames but those that the handler holds.
func (c *Conn) unshare() {
	c.e.pool.spare += c.reserved - c.out
	c.e.pool.shares -= c.e.cfg.share()
	c.reserved = c.out
}

// grant returns the credit that the peer may have now: within its share and the frames of the pool.
func (c *Conn) grant() uint64 {
	share := c.allowed
	if share > c.reserved { // seldom: most packets need no look at the pool
		share = min(share, c.reserved+max(c.e.pool.more(), 0))
	}
	return max(c.granted, c.consumed+uint64(share))
}

// most returns the largest useful share: it fills the window.
func (c *Conn) most() int { return len(c.got) * c.widest }

// limitDue reports whether the peer should be notified that it may send more.
func (c *Conn) limitDue() bool { return c.grant()-c.granted >= uint64(max(c.allowed/4, 1)) }

// extend raises the credit as far as possible. The share grows while the peer uses it up within about a round trip, and
// shrinks when the peer uses little of it.
func (c *Conn) extend() {
	c.adapt()
	c.granted = c.grant()
	need := int(c.granted - c.consumed)
	c.e.pool.spare -= need - c.reserved
	c.reserved = need
}

func (c *Conn) adapt() {
	e := c.e
	if c.freshAt == 0 {
		c.freshAt = e.now
	}
	if c.arrived == c.granted && 2*c.partly > c.allowed && c.allowed < messageShare {
		// Without more credit the message would never be complete. It may come out of what is kept for new connections.
		grow := min(c.allowed, messageShare-c.allowed, e.pool.spare)
		c.allowed += grow
		c.reserved += grow
		e.pool.spare -= grow
	}
	s := c.allowed
	switch since := e.now - c.freshAt; {
	case c.fresh >= uint64(s):
		grow := min(s, c.most()-s, e.pool.more()/2)                       // the other half is for other connections
		if grow > 0 && since <= max(4*c.srtt, Time(5e6)/Time(c.widest)) { // a larger share would not stay in the caches
			c.allowed += grow
		}
		c.fresh, c.freshAt = 0, e.now
	case since > Time(100e6):
		if least := max(minShare, 2*c.widest); c.fresh < uint64(s)/4 && s > least {
			c.allowed = max(s/2, least)
		}
		c.fresh, c.freshAt = 0, e.now
	}
}

// acknowledge fills in the fields of a header that report what has arrived.
func (c *Conn) acknowledge(h *header) {
	e := c.e
	c.extend()
	h.cum, h.credit, h.dups = c.cum, uint32(c.granted), c.dups
	h.echo, h.delay = c.newestStamp, 0
	if c.newest != 0 {
		h.delay = uint16(min((e.now-c.newestAt)>>10, 0xffff))
	}
	h.words = 0
	if c.top > c.cum+1 {
		h.words = uint8(min((c.top-c.cum-1+63)/64, uint64(len(c.bits))))
	}
}

// word returns the kth word of the bitmap: bit j is seq cum+1+64k+j.
func (c *Conn) word(k int) uint64 {
	at := c.cum + 1 + 64*uint64(k)
	w := c.bits.word(at)
	if left := c.top - at; left < 64 {
		w &= 1<<left - 1
	}
	return w
}

// answered notes that a packet with a complete acknowledgement was sent.
func (c *Conn) answered() { c.toAck, c.ackNow = 0, false }

// answer sends a packet without data if one is due.
func (c *Conn) answer() {
	every := min(max(ackEvery, 2*c.widest), max(c.allowed/4, 1))
	if !c.wantPing && !c.ackNow && c.toAck < every && !c.limitDue() {
		if c.toAck > 0 {
			c.soon(c.toAckSince + ackDelay)
		}
		return
	}
	k := kindAck
	if c.wantPing {
		k = kindPing
	}
	if !c.sendBare(k, 0, 0) {
		c.toAckSince = c.e.now
		c.e.look(c)
		return
	}
	if c.wantPing {
		c.wantPing, c.pingAt = false, c.e.now
	}
}
