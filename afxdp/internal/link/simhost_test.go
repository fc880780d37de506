package link

// The hosts of the simulated network are carriers and handlers that check what is promised to them.

func (h *simHost) Get() (Frame, bool) {
	h.reap()
	if len(h.free) == 0 {
		return Frame{}, false
	}
	id := h.free[len(h.free)-1]
	h.free = h.free[:len(h.free)-1]
	h.lent[id] = true
	return Frame{ID: id, Data: h.mem[id]}, true
}

func (h *simHost) GetLong() (Frame, bool) {
	h.reap()
	if h.e.cfg.MTU <= h.e.cfg.Unit {
		h.s.fail("host %d: a long frame is wanted, MTU is %d, unit %d", h.n, h.e.cfg.MTU, h.e.cfg.Unit)
	}
	if len(h.long) == 0 {
		return Frame{}, false
	}
	id := h.long[len(h.long)-1]
	h.long = h.long[:len(h.long)-1]
	h.lent[id] = true
	return Frame{ID: id, Data: h.mem[id]}, true
}

// freed takes a frame back.
func (h *simHost) freed(id uint64) {
	if id >= uint64(h.shorts) {
		h.long = append(h.long, id)
	} else {
		h.free = append(h.free, id)
	}
}

func (h *simHost) reap() {
	if h.s.w.slowTx == 0 {
		return
	}
	for len(h.going) > 0 && h.busy[h.going[0]] <= h.s.now {
		id := h.going[0]
		h.going = h.going[1:]
		h.busy[id] = 0
		h.txq--
		if h.back[id] {
			h.back[id] = false
			h.freed(id)
		}
	}
}

func (h *simHost) Sending(id uint64) bool { h.reap(); return id < rxIDs && h.busy[id] != 0 }

func (h *simHost) Address(r Route) []byte { return addressOf(int(r) - 1) }

// addressOf is the address of a host.
func addressOf(n int) []byte { return []byte{byte(n), byte(n >> 8)} }

// rxIDs and above name frames of arrived packets.
const rxIDs = 1 << 32

func (h *simHost) Put(id uint64) {
	if id >= rxIDs {
		h.rxHeld--
		if h.rxHeld < 0 {
			h.s.fail("host %d: more frames given back than were kept", h.n)
		}
		return
	}
	if !h.lent[id] {
		h.s.fail("host %d: frame %d was put twice", h.n, id)
	}
	h.lent[id] = false
	if h.busy[id] != 0 {
		h.back[id] = true
		return
	}
	h.freed(id)
}

func (h *simHost) Send(r Route, f Frame, n int) bool {
	s := h.s
	to := uint64(r) - 1
	if r == Reply {
		to = h.arrive
	}
	if most := min(h.e.cfg.MTU, s.hosts[to].e.cfg.MTU); n > most {
		s.fail("host %d sends %d bytes, MTU is %d", h.n, n, most)
	}
	if s.w.slowTx > 0 {
		h.reap()
		if h.txq >= s.w.txRoom {
			return false
		}
		if h.busy[f.ID] != 0 {
			s.fail("host %d changed frame %d while it was being sent", h.n, f.ID)
		}
		h.busy[f.ID] = s.now + s.w.slowTx
		h.going = append(h.going, f.ID)
		h.txq++
	}
	s.carry(h.n, int(to), f.Data[:n])
	return true
}

func (h *simHost) Up(c *Conn) {
	x := c.User.(*simConn)
	x.up = true
	x.called("up")
}

// called checks that a method of the handler may be called, and closes in it if that was asked for.
func (x *simConn) called(method string) {
	if x.closed || x.err != nil {
		x.h.s.fail("conn %d: %s after the end", x.name, method)
	}
	if method == x.closeIn {
		if x.closeAfter--; x.closeAfter < 0 {
			x.c.Close(x.h.s.now, false)
			x.closed = true
		}
	}
}

func (h *simHost) Down(c *Conn, err error) {
	x := c.User.(*simConn)
	if x.err != nil || x.closed {
		h.s.fail("conn %d went down twice: %v, %v", x.name, x.err, err)
	}
	x.err = err
}

func (h *simHost) Gone(c *Conn) {
	x := c.User.(*simConn)
	if !x.closed || x.gone {
		h.s.fail("conn %d is gone, closed %v, for the second time %v", x.name, x.closed, x.gone)
	}
	x.gone = true
}

func (h *simHost) Deliver(c *Conn, f Fragment) {
	x := c.User.(*simConn)
	s := h.s
	x.held = append(x.held, heldFrame{f.ID})
	defer x.called("deliver")
	x.partial = append(x.partial, f.Data...)
	if f.More {
		return
	}
	if x.gotMsgs >= len(x.expect) {
		s.fail("conn %d: a message that was not sent, %d bytes", x.name, len(x.partial))
	}
	m := x.expect[x.gotMsgs]
	if len(x.partial) != m.n {
		s.fail("conn %d: message %d has %d bytes, want %d", x.name, x.gotMsgs, len(x.partial), m.n)
	}
	for k, b := range x.partial {
		if b != pattern(m.seed, uint64(k)) {
			s.fail("conn %d: message %d differs at %d", x.name, x.gotMsgs, k)
		}
	}
	x.gotMsgs++
	x.partial = x.partial[:0]
	x.whole = len(x.held)
}

func (h *simHost) Place(c *Conn, p *Placement) {
	x := c.User.(*simConn)
	if x.flood {
		x.flooded += uint64(len(p.Data))
		return
	}
	defer x.called("place")
	t := x.expectPlaced[p.Tag]
	if t == nil || p.Total != t.Len || p.Offset+uint64(len(p.Data)) > t.Len {
		h.s.fail("conn %d: placement %d at %d of %d makes no sense", x.name, p.Tag, p.Offset, p.Total)
	}
	if t.seen[p.Offset] {
		h.s.fail("conn %d: placed at %d twice", x.name, p.Offset)
	}
	t.seen[p.Offset] = true
	for k, b := range p.Data {
		if b != pattern(t.seed, p.Offset+uint64(k)) {
			h.s.fail("conn %d: transfer %d differs at %d", x.name, p.Tag, p.Offset+uint64(k))
		}
	}
	if t.got += uint64(len(p.Data)); t.got == t.Len {
		x.placedDone++
	}
}

func (h *simHost) Fill(c *Conn, t *Transfer, off uint64, b []byte) {
	seed, ok := t.User.(uint64)
	if !ok {
		return
	}
	for k := range b {
		b[k] = pattern(seed, off+uint64(k))
	}
}

func (h *simHost) Placed(c *Conn, t *Transfer) {
	x := c.User.(*simConn)
	if r := x.twin.expectPlaced[t.Tag]; r.got != r.Len {
		h.s.fail("conn %d: transfer %d is reported as placed with %d of %d bytes", x.name, t.Tag, r.got, r.Len)
	}
	x.sentDone++
	x.called("placed")
}
