package link

import "fmt"

// A path may stop to take long packets without a word: a route changes, or a tunnel is put in between. The sender of a
// fragment that was lost as a whole three times sends it in parts, under the number that it has. If parts arrive where
// packets as long did not, the sender makes no longer ones for a while, and then looks with single fragments how long
// they may be (RFC 8899).
//
// The receiver counts a fragment as arrived once it has all its parts. It places parts of placed fragments as they come
// and gathers those of ordered fragments in the frame of the first one. Of each fragment it takes either the whole or
// the parts: each byte is placed once.

const (
	partSize    = 1024        // bytes of payload of each part but the last
	partPacket  = 1200        // bytes that a packet with a part has at most
	partHeader  = 8           // bytes that a part's header has more than a fragment's
	fewLosses   = 3           // of a whole fragment, before it is sent in parts
	pathPeriod  = Time(600e9) // for which the length that was found holds
	trialPause  = Time(10e6)  // between two trials
	trialFinest = 16          // bytes by which the length that is found may be too short
)

// pathMTU is what is known of the longest packets that arrive.
type pathMTU struct {
	divides bool // the peer takes parts, and frames at both ends hold them
	device  int  // the longest packet by the route's MTU
	limit   int  // the longest packet that is sent; at most device
	lost    int  // a longer packet, which does not arrive; 0: none is known
	suspect int  // the shortest packet that was lost fewLosses times since one as long arrived; 0: none
	trying  bool // a fragment that is longer than limit is under way
	tryAt   Time
	freshAt Time // when what is known is forgotten
}

// routed sets the longest packet by the route's MTU, and forgets what was found.
func (c *Conn) routed(n int) {
	c.pmtu = pathMTU{divides: c.pmtu.divides, device: n, limit: n, freshAt: never}
	c.fit(n)
}

// age forgets what was found long ago.
func (c *Conn) age() {
	if c.e.now >= c.pmtu.freshAt {
		c.routed(c.pmtu.device)
	}
}

// arrivedWhole notes that a packet of n bytes, headers included, has arrived in one piece.
func (c *Conn) arrivedWhole(n int, trial bool) {
	p := &c.pmtu
	if p.suspect != 0 && n >= p.suspect {
		p.suspect = 0
	}
	if trial && p.trying {
		p.trying, p.limit, p.tryAt = false, n, c.e.now
		c.fit(n)
	}
}

// arrivedDivided notes that a fragment of n bytes, headers included, has arrived in parts.
func (c *Conn) arrivedDivided(n int, trial bool) {
	p := &c.pmtu
	switch {
	case trial && p.trying:
		p.trying, p.lost, p.tryAt = false, n, c.e.now+trialPause
	case p.suspect != 0 && n >= p.suspect && n <= p.limit:
		p.lost, p.limit, p.suspect = p.suspect, partPacket, 0
		p.tryAt, p.freshAt = c.e.now+trialPause, c.e.now+pathPeriod
		c.fit(p.limit)
	}
}

// trial returns the length of a packet that may show more of the path, or 0.
func (c *Conn) trial() int {
	p := &c.pmtu
	if p.lost == 0 || p.trying || c.e.now < p.tryAt || p.lost-p.limit <= trialFinest {
		return 0
	}
	return (p.limit + p.lost) / 2
}

// divisible reports whether fragments may be sent in parts.
func (c *Conn) divisible() bool { return c.pmtu.divides && c.pmtu.device >= partPacket }

// divides reports whether the segment is sent in parts: then it is until it is acknowledged.
func (c *Conn) divides(s *segment) bool {
	n, p := s.size()+c.overhead(), &c.pmtu
	if s.divided || n <= partPacket || !c.divisible() {
		return s.divided
	}
	most := c.short
	if s.t != nil {
		most = c.mtu
	}
	lost := s.losses >= fewLosses
	if lost && !s.trial && (p.suspect == 0 || n < p.suspect) {
		p.suspect = n
	}
	s.divided = lost || n > most && !s.trial
	return s.divided
}

// suspects is called when a segment is sent again because of a silence. It counts as lost only if the peer has
// answered a later packet: a host that does not run loses nothing. A ping asks for that, where all packets are long.
func (c *Conn) suspects(s *segment) {
	if s.size()+c.overhead() <= partPacket {
		return
	}
	if c.newestSent+stampUnit > s.sent {
		s.losses = min(s.losses+1, fewLosses)
	}
	c.wantPing = true
}

// sendParts sends the parts of a segment from s.part on. It reports whether the carrier took all.
func (c *Conn) sendParts(seq uint64, s *segment, flags uint8) bool {
	e := c.e
	for from := int(s.part) * partSize; from < int(s.n); from += partSize {
		f, ok := e.carrier.Get()
		if !ok {
			return false
		}
		n := min(partSize, int(s.n)-from)
		b := f.Data
		le.PutUint64(b[48:], seq)
		le.PutUint64(b[56:], uint64(s.part)<<16|uint64(s.n))
		h := header{kind: kindData, flags: flags&^flagAsk | flagPart}
		if from+n == int(s.n) {
			h.flags = flags | flagPart
		}
		at := HeaderSize + partHeader
		if s.t != nil {
			at = placedHeaderSize + partHeader
			c.putPlaced(b[64:], s)
			e.handler.Fill(c, s.t, s.off+uint64(from), b[at:at+n])
		} else {
			copy(b[at:], s.data[HeaderSize+from:][:n])
		}
		sent := c.emit(f, at+n, &h)
		e.carrier.Put(f.ID)
		if !sent {
			return false
		}
		s.part++
	}
	s.part = 0
	return true
}

// partial is a fragment of which parts have arrived.
type partial struct {
	got  uint64 // bit k: part k
	size int    // of the fragment's payload; 0: no part has arrived
	id   uint64 // of an ordered fragment: the frame in which it is gathered
	data []byte
}

// partial returns the state of a fragment's parts. The first part of a connection allocates.
func (c *Conn) partial(seq uint64) *partial {
	if c.partials == nil {
		c.partials = make([]partial, len(c.got))
	}
	return &c.partials[seq&uint64(len(c.got)-1)]
}

// begun reports whether parts of a fragment have arrived.
func (c *Conn) begun(seq uint64) bool { return c.partials != nil && c.partial(seq).size != 0 }

// part handles a part of a fragment. It reports whether the frame is kept, and whether the fragment is complete.
func (c *Conn) part(h *header, seq uint64, f Frame, b []byte) (w uint64, kept, complete bool) {
	e := c.e
	placed := h.flags&flagPlaced != 0
	at := HeaderSize + partHeader
	if placed {
		at = placedHeaderSize + partHeader
	}
	if len(b) <= at {
		e.stats.Bad++
		return 0, false, false
	}
	info := le.Uint64(b[56:])
	k, size := int(info>>16), int(info&0xffff)
	from, payload := k*partSize, b[at:]
	if info>>22 != 0 || from+len(payload) != min(from+partSize, size) || size <= partSize {
		c.violated("a part that its fragment does not have")
		return 0, false, false
	}
	w, ok := c.admits(h, seq, b[partHeader:], size-len(payload))
	if !ok {
		return 0, false, false
	}
	p := c.partial(seq)
	if p.size == 0 {
		p.size = size
		c.arrived += w
		if !placed {
			if cap(f.Data) < HeaderSize+size {
				c.violated("an ordered fragment that is longer than a frame")
				return 0, false, false
			}
			p.id, p.data, kept = f.ID, f.Data[:HeaderSize+size], true
		}
	}
	if p.size != size || placed != (p.data == nil) {
		c.violated("parts of different fragments")
		return 0, kept, false
	}
	if p.got>>k&1 != 0 {
		return 0, false, false
	}
	p.got |= 1 << k
	complete = p.got == 1<<((size+partSize-1)/partSize)-1
	if placed {
		e.p.Offset += uint64(from)
		e.handler.Place(c, &e.p)
	} else {
		copy(p.data[HeaderSize+from:], payload)
	}
	return w, kept, complete
}

// gathered takes a fragment all of whose parts have arrived.
func (c *Conn) gathered(h *header, seq, w uint64) {
	p := c.partial(seq)
	f := Fragment{ID: p.id}
	if p.data != nil {
		f.Data, f.More = p.data[HeaderSize:], h.flags&flagMore != 0
	}
	*p = partial{}
	c.take(h, seq, w, f)
	c.deliver()
}

// dropPartials frees the frames of fragments that are not complete.
func (c *Conn) dropPartials() {
	for k := range c.partials {
		if p := &c.partials[k]; p.data != nil {
			c.e.carrier.Put(p.id)
		}
	}
	clear(c.partials)
}

func (p pathMTU) String() string {
	return fmt.Sprintf("packets of %d bytes, %d too long", p.limit, p.lost)
}
