package driver

// Packet is one message on its way through a driver. The caller allocates it
// (once: packets are meant to be reused) and names the bytes in exactly
// one of three forms.
type Packet struct {
	// Buf is memory of the driver, in buffer sends and buffer receives.
	Buf []byte

	// IOV is memory of the caller, in pieces. Nil entries and empty ones are
	// allowed. The slice itself belongs to the driver while posted.
	IOV [][]byte

	// Data is memory of the caller, described by a layout. It is used if IOV
	// is nil.
	Data Layout

	// RdvData is filled in by RecvPost on the large track, in memory of the
	// receiving driver that is valid until the packet completes. The sending
	// side sets it before SendPost; it must stay valid until that packet
	// completes.
	RdvData []byte

	// N is the number of bytes sent or received, valid when the packet is
	// done.
	N int

	// User is the caller's, e.g. the request this packet belongs to.
	User any

	// Driver belongs to the driver.
	Driver PacketState
}

// PacketState is the room a driver has in a packet. Callers leave it alone.
type PacketState struct {
	Phase    Phase
	Slot     uint32 // of a queue
	Ticket   uint64 // generation or sequence number of that slot
	Prefetch any    // what SendPrefetch or RecvPrefetch began
	Err      error  // outcome, once Phase is Done
}

// Finish makes err, or nil, the outcome that the next poll takes.
func (s *PacketState) Finish(err error) { s.Err, s.Phase = err, Done }

// Outcome gives the packet back to its caller: what a poll returns.
func (s *PacketState) Outcome() (bool, error) {
	s.Phase = Idle
	return true, s.Err
}

// Phase is the stage of a packet's life.
type Phase uint8

const (
	Idle       Phase = iota // the caller's
	Posted                  // the driver's
	Canceling               // cancel was asked for, the buffer may still be in use
	Done                    // the outcome waits to be polled
	BufferOut               // the caller fills or reads a driver's buffer
	Prefetched              // registration was begun
)

// Len is the length of the memory that the packet names, in bytes.
func (p *Packet) Len() int {
	if p.IOV != nil {
		n := 0
		for _, b := range p.IOV {
			n += len(b)
		}
		return n
	}
	if p.Data != nil {
		return p.Data.Len()
	}
	return 0
}

// Contiguous returns the packet's memory if it lies in one piece. An empty
// packet is contiguous.
func (p *Packet) Contiguous() (b []byte, ok bool) {
	if p.IOV != nil {
		if len(p.IOV) == 1 {
			return p.IOV[0], true
		}
		for _, s := range p.IOV {
			if len(s) == 0 {
				continue
			}
			if b != nil {
				return nil, false
			}
			b = s
		}
		return b, true
	}
	if p.Data == nil {
		return nil, true
	}
	switch p.Data.Segments() {
	case 0:
		return nil, true
	case 1:
		return p.Data.Segment(0), true
	}
	return nil, false
}

// Pieces puts the runs of the packet's first n bytes, which it has, into dst and returns how many there are.
// False: they are more than dst has room for.
func (p *Packet) Pieces(dst [][]byte, n int) (pieces int, ok bool) {
	for c := p.Cursor(); n > 0; pieces++ {
		if pieces == len(dst) {
			return 0, false
		}
		dst[pieces] = c.Next(n)
		n -= len(dst[pieces])
	}
	return pieces, true
}

// Cursor returns a cursor at the first byte of the packet's memory.
func (p *Packet) Cursor() Cursor {
	return Cursor{iov: p.IOV, data: p.Data}
}

// Cursor walks the memory of a packet in runs that are contiguous. It is a
// value; copying it saves the place.
type Cursor struct {
	iov  [][]byte
	data Layout
	seg  int
	skip int // bytes of segment seg already passed
	pos  int // bytes passed
}

// Next returns the next run of at most limit bytes and moves past it. It is
// empty at the end only.
func (c *Cursor) Next(limit int) []byte {
	for {
		var s []byte
		switch {
		case c.iov != nil:
			if c.seg >= len(c.iov) {
				return nil
			}
			s = c.iov[c.seg]
		case c.data != nil:
			if c.seg >= c.data.Segments() {
				return nil
			}
			s = c.data.Segment(c.seg)
		default:
			return nil
		}
		s = s[c.skip:]
		if len(s) == 0 {
			c.seg++
			c.skip = 0
			continue
		}
		if len(s) > limit {
			s = s[:limit]
		}
		c.skip += len(s)
		c.pos += len(s)
		return s
	}
}

// Seek moves to byte off, counted from the start. A cursor that only moves on takes one step a piece over the whole packet;
// to start elsewhere it asks Packet.Data, and walks through Packet.IOV.
func (c *Cursor) Seek(off int) {
	if c.iov == nil && c.data != nil && (off < c.pos || c.pos == 0 && off > 0) {
		c.seg, c.skip = c.data.At(off)
		c.pos = off
		return
	}
	if off < c.pos {
		c.seg, c.skip, c.pos = 0, 0, 0
	}
	for c.pos < off && len(c.Next(off-c.pos)) > 0 {
	}
}

// Gather copies from the packet's memory to dst and returns how much: less
// than len(dst) at the end only.
func (c *Cursor) Gather(dst []byte) int {
	n := 0
	for n < len(dst) {
		s := c.Next(len(dst) - n)
		if len(s) == 0 {
			break
		}
		n += copy(dst[n:], s)
	}
	return n
}

// Scatter copies src to the packet's memory and returns how much: less than
// len(src) if that is full.
func (c *Cursor) Scatter(src []byte) int {
	n := 0
	for n < len(src) {
		s := c.Next(len(src) - n)
		if len(s) == 0 {
			break
		}
		n += copy(s, src[n:])
	}
	return n
}
