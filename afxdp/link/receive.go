package link

const (
	// minShare is how many fragments a peer may send at first, and at least.
	minShare = 16
	// ackDelay is how long an acknowledgement waits for a packet to go with.
	ackDelay = Time(200_000)
	// ackEvery is after how many fragments it does not wait.
	ackEvery = 16
)

// receiver is what came in. Every fragment has a seq, which it keeps when it is sent again.
type receiver struct {
	cum      uint64     // all below have arrived
	top      uint64     // one beyond the highest that has arrived
	consumed uint64     // how many the handler has released, or were placed
	told     uint64     // seqs below may be sent: the credit
	allowed  int        // how far told may be ahead of consumed
	reserved int        // frames of the endpoint that are kept for it
	out      int        // frames that the handler has
	got      []Fragment // by seq: arrived, not delivered
	bits     []uint64   // by seq: arrived, from cum on

	newest      uint64 // packet number
	newestStamp uint32
	newestAt    Time
	owed        int // fragments not acknowledged
	owedSince   Time
	ackNow      bool
	dups        uint8
	fresh       uint64 // fragments since the share was looked at
	freshAt     Time
}

// Frames that a peer may fill are reserved, so that whatever it sends finds one: a
// receive queue that runs empty loses packets of all peers.

func (c *Conn) has(seq uint64) bool {
	k := seq & uint64(len(c.got)-1)
	return c.bits[k/64]&(1<<(k%64)) != 0
}

// data takes a fragment and tells whether its frame is kept.
func (c *Conn) data(h *header, frame uint64, b []byte) (kept bool) {
	e := c.e
	if len(b) < HeaderSize {
		e.stats.Bad++
		return false
	}
	seq := le.Uint64(b[48:])
	if seq >= c.told {
		c.violated("a fragment beyond its credit")
		return false
	}
	if seq < c.cum || c.has(seq) {
		e.stats.Duplicates++
		c.dups++
		c.ackNow = true
		return false
	}
	p := &e.p
	placed := h.flags&flagPlaced != 0
	if placed && !p.parse(b) {
		c.violated("a fragment that is not part of its message")
		return false
	}
	if c.owed == 0 {
		c.owedSince = e.now
	}
	c.owed++
	c.fresh++
	if seq != c.top || h.flags&flagAsk != 0 {
		c.ackNow = true // a gap, or one that is filled, or it is wanted
	}
	c.top = max(c.top, seq+1)
	mask := uint64(len(c.got) - 1)
	k := seq & mask
	c.bits[k/64] |= 1 << (k % 64)
	if placed {
		c.consumed++
		e.handler.Place(c, p)
	} else {
		kept = true
		c.got[k] = Fragment{ID: frame, Data: b[HeaderSize:], More: h.flags&flagMore != 0}
	}
	for c.state == stateUp && c.cum < c.top && c.has(c.cum) {
		k = c.cum & mask
		c.bits[k/64] &^= 1 << (k % 64)
		f := c.got[k]
		c.got[k] = Fragment{}
		c.cum++
		if f.Data != nil {
			c.out++
			e.handler.Deliver(c, f)
		}
	}
	return kept
}

// Release gives back a frame that was delivered: the peer gets credit for another one.
// It may be called after the connection has ended.
func (c *Conn) Release(id uint64) {
	c.e.carrier.Put(id)
	c.out--
	switch c.state {
	case stateUp:
		c.consumed++
		if c.limitDue() {
			c.e.look(c)
		}
	case stateDown:
		c.reserved--
		c.e.spare++
	}
}

// dropArrived frees what was not delivered.
func (c *Conn) dropArrived() {
	for k := range c.got {
		if c.got[k].Data != nil {
			c.e.carrier.Put(c.got[k].ID)
			c.got[k] = Fragment{}
		}
	}
}

// share reserves n frames for what the peer may send at first.
func (c *Conn) share(n int) bool {
	if c.e.spare < n {
		return false
	}
	c.e.spare -= n
	c.reserved, c.allowed, c.told = n, n, uint64(n)
	return true
}

// unshare gives back what is reserved, but for frames that the handler has.
func (c *Conn) unshare() {
	c.e.spare += c.reserved - c.out
	c.reserved = c.out
}

// grant is the credit that the peer could be told: within its share, what the window
// holds, and the frames that there are.
func (c *Conn) grant() uint64 {
	share := min(c.allowed, c.reserved+max(c.e.spare, 0))
	return max(c.told, min(c.consumed+uint64(share), c.cum+uint64(len(c.got))))
}

// limitDue tells whether the peer should be told that it may send more.
func (c *Conn) limitDue() bool { return c.grant()-c.told >= uint64(max(c.allowed/4, 1)) }

// extend tells the peer as much credit as there is. The share grows while it is used up
// within a round trip or so, and shrinks when little is used.
func (c *Conn) extend() {
	c.adapt()
	c.told = c.grant()
	need := int(c.told - c.consumed)
	c.e.spare -= need - c.reserved
	c.reserved = need
}

func (c *Conn) adapt() {
	e := c.e
	if c.freshAt == 0 {
		c.freshAt = e.now
	}
	s := c.allowed
	switch since := e.now - c.freshAt; {
	case c.fresh >= uint64(s) && since <= max(4*c.srtt, Time(5e6)):
		grow := min(s, len(c.got)-s, (e.spare-e.cfg.Frames/4)/2) // some is kept for new peers
		if grow > 0 {
			c.allowed += grow
		}
		c.fresh, c.freshAt = 0, e.now
	case since > Time(100e6):
		if c.fresh < uint64(s)/4 && s > minShare {
			c.allowed = max(s/2, minShare)
		}
		c.fresh, c.freshAt = 0, e.now
	}
}

// acknowledge fills in what a header says about what came in.
func (c *Conn) acknowledge(h *header) {
	e := c.e
	c.extend()
	h.cum, h.credit, h.dups = c.cum, uint32(c.told), c.dups
	h.echo, h.delay = c.newestStamp, 0
	if c.newest != 0 {
		h.delay = uint16(min((e.now-c.newestAt)>>10, 0xffff))
	}
	h.words = 0
	if c.top > c.cum+1 {
		h.words = uint8(min((c.top-c.cum-1+63)/64, uint64(len(c.bits))))
	}
}

// word is the kth word of the bitmap: bit j is seq cum+1+64k+j.
func (c *Conn) word(k int) uint64 {
	n := uint64(len(c.bits))
	at := (c.cum + 1 + 64*uint64(k)) & uint64(len(c.got)-1)
	w := c.bits[at/64] >> (at % 64)
	if at%64 != 0 {
		w |= c.bits[(at/64+1)%n] << (64 - at%64)
	}
	if left := c.top - (c.cum + 1 + 64*uint64(k)); left < 64 {
		w &= 1<<left - 1
	}
	return w
}

// answered: a packet with an acknowledgement has gone out.
func (c *Conn) answered() { c.owed, c.ackNow = 0, false }

// answer sends a packet without data if one is due.
func (c *Conn) answer() {
	every := min(ackEvery, max(c.allowed/4, 1))
	if !c.wantPing && !c.ackNow && c.owed < every && !c.limitDue() {
		if c.owed > 0 {
			c.soon(c.owedSince + ackDelay)
		}
		return
	}
	k := kindAck
	if c.wantPing {
		k = kindPing
	}
	if !c.sendBare(k, 0, 0) {
		c.owedSince = c.e.now
		c.e.look(c)
		return
	}
	if c.wantPing {
		c.wantPing, c.pingAt = false, c.e.now
	}
}

// Expect gives the peer credit for n fragments at once, as far as window and frames allow.
func (c *Conn) Expect(n int) {
	if c.state != stateUp {
		return
	}
	if more := min(n, len(c.got), c.allowed+(c.e.spare-c.e.cfg.Frames/4)/2) - c.allowed; more > 0 {
		c.allowed += more
		c.ackNow = true
		c.e.look(c)
	}
}
