package link

import (
	"fmt"
	"time"
)

type state uint8

const (
	stateDialing state = iota
	stateListening
	stateAccepted // listener: has sent Accept, waits for the first packet
	stateUp
	stateDraining // closed on this side; sent messages are not acknowledged yet
	stateClosing  // closed on this side; the peer has not confirmed yet
	stateDown
)

// Conn is a connection. Once it is established it allocates nothing.
type Conn struct {
	User any // the caller's

	e      *Endpoint
	id     uint64 // of this side: in packets that arrive
	peer   uint64 // of the peer: in packets that are sent
	peerID uint64 // the peer's endpoint
	route  Route
	state  state
	dialer bool
	sealer *sealer
	mtu    int // bytes of the largest placed fragment's packet
	short  int // bytes of any other packet: one frame at both ends holds it

	// Connecting.
	mine, theirs greeting
	cookie       [cookieSize]byte
	pause        Time
	unconfirmed  bool   // dialer: established, but the peer has not confirmed yet
	answerAt     Time   // no connect request is answered before
	cookieAt     Time   // no other Cookie is taken before
	source       uint64 // hash of the address that the peer's greeting came from
	rejected     error
	rejectAt     Time

	// Timers and lists.
	due     Time
	place   int // index in the heap plus 1; 0: not in the heap
	touched bool

	sender
	receiver
	recovery
	pacer
	pmtu pathMTU

	lastReceived Time // when the peer last gave a sign of life
	queryAt      Time // no Reset triggers a Query before
	wantPing     bool
	pingAt       Time // when the last ping was sent
	closeFrom    Time
	abort        bool
	peerEnd      uint64 // from the peer's Close: number of fragments that it sent
	peerLeft     bool
}

// Up reports whether the connection is established.
func (c *Conn) Up() bool { return c.state == stateUp }

// Over reports whether the endpoint has forgotten the connection. After Close that takes until the peer has confirmed
// it, or the dead time.
func (c *Conn) Over() bool { return c.state == stateDown }

// Hello returns the bytes that the peer passed to Dial or Listen. They are valid from Handler.Up on and must not be
// changed.
func (c *Conn) Hello() []byte { return c.theirs.hello }

// encrypted reports whether packets are encrypted.
func (c *Conn) encrypted() bool { return c.sealer != nil }

// begin allocates and resets the state of sending and receiving.
func (c *Conn) begin() {
	w := c.e.cfg.Window
	c.span = min(w, int(c.theirs.window))
	c.segs = make([]segment, w)
	c.sacked = make(seqSet, w/64)
	c.got = make([]Fragment, w)
	c.bits = make(seqSet, w/64)
	c.recovery.begin()
	c.pacer.begin(c.full)
}

// overhead returns the bytes that follow a packet's payload.
func (c *Conn) overhead() int {
	if c.sealer != nil {
		return tagSize
	}
	return 0
}

// MaxFragment returns the largest payload of an ordered fragment in bytes, at least 100.
func (c *Conn) MaxFragment() int { return c.short - HeaderSize - c.overhead() }

// MaxPlaced returns the largest payload of a placed fragment in bytes.
func (c *Conn) MaxPlaced() int { return c.mtu - placedHeaderSize - c.overhead() }

// SetMTU changes the largest packet to n bytes, within the limits that both sides announced when connecting.
// errInvalid: n is below MinMTU. Fragments that are too long now are sent in parts; if the peer does not take these, or
// the path no parts, the connection ends with errShrunk.
func (c *Conn) SetMTU(n int) error {
	if n < MinMTU {
		return fmt.Errorf("%w: MTU of %d bytes, must be at least %d", errInvalid, n, MinMTU)
	}
	c.routed(n)
	if !c.sends() || c.divisible() {
		return nil
	}
	for seq := c.una; seq < c.sender.end; seq++ {
		if s := c.seg(seq); s.state != segAcked && s.size()+c.overhead() > c.mtu {
			c.shrunk()
			break
		}
	}
	return nil
}

// Fits reports whether a fragment of n bytes can be posted. If the fragment was cut before the MTU became smaller, is
// too long now and cannot be sent in parts, the connection ends with errShrunk.
func (c *Conn) Fits(now Time, n int) bool {
	if n <= c.longest() {
		return true
	}
	c.e.now = max(c.e.now, now)
	if c.sends() {
		c.shrunk()
	}
	return false
}

func (c *Conn) shrunk() {
	c.sendBare(kindClose, flagAbort, c.next)
	c.fail(fmt.Errorf("%w: %d bytes now, while longer packets were under way: connect again", errShrunk, c.mtu))
}

// longest returns the largest payload of an ordered fragment that can be sent, in parts if need be.
func (c *Conn) longest() int {
	if c.divisible() {
		return min(int(c.mine.mtu), int(c.theirs.mtu)) - HeaderSize - c.overhead()
	}
	return c.MaxFragment()
}

// fit sets the limits of packets for a path that takes n bytes. Sealed packets are not long, because they are opened in
// place.
func (c *Conn) fit(n int) {
	c.unit, c.peerUnit = int(c.mine.mtu), int(c.theirs.mtu)
	unit := min(c.unit, c.peerUnit)
	c.short = min(n, unit)
	if c.sealer != nil {
		c.mtu, c.full, c.widest = c.short, 1, 1
		return
	}
	longest := min(int(c.mine.longest), int(c.theirs.longest))
	c.mtu = min(n, longest)
	c.full, c.widest = units(c.mtu, unit), units(longest, unit) // the peer's path may take longer packets
}

// askAt returns when a silent peer is pinged, first and again. A peer that stops just before a ping, or is cut off, for
// up to seven eighths of the dead time is heard before that ends, and losses do not make it look dead.
func (c *Conn) askAt() Time { return max(c.lastReceived, c.pingAt) + Time(c.e.cfg.DeadTime)/16 }

// genuine decrypts a packet, or verifies its checksum. It returns nil if the packet is not what the peer sent.
func (c *Conn) genuine(b []byte, rest [][]byte) []byte {
	if c.sealer != nil {
		return c.sealer.open(b, le.Uint64(b[16:]))
	}
	if b[1]&flagSealed != 0 || le.Uint32(b[4:]) != sum(b, rest...) {
		return nil
	}
	return b
}

// input handles a packet of this connection, whose data may continue in rest. It reports whether the frame is kept.
func (c *Conn) input(f Frame, b []byte, rest [][]byte) (kept bool) {
	e := c.e
	if c.state < stateAccepted {
		e.stats.Bad++
		return false
	}
	if b = c.genuine(b, rest); b == nil {
		e.stats.Bad++
		return false
	}
	h := &e.h
	parseHeader(b, h)
	if h.pn == 0 || int(h.words) > maxWords || ackSize+8*int(h.words) > len(b) {
		e.stats.Bad++
		return false
	}
	if c.state == stateAccepted {
		c.establish()
	}
	if c.unconfirmed {
		c.unconfirmed = false
		e.uncall(c)
	}
	if h.pn > c.newest { // an old packet may be a copy, and shows nothing of the peer
		if e.now-c.lastReceived > Time(e.cfg.DeadTime)/2 { // nothing passed, pings neither: the path was down, or an end stood still
			c.advancedAt = e.now
		}
		c.lastReceived = e.now
		c.newest, c.newestStamp, c.newestAt = h.pn, h.stamp, e.now
	}
	words := b[len(b)-8*int(h.words):]
	if !c.acknowledged(h, words) {
		c.violated("an acknowledgement of what was not sent")
		return false
	}
	b = b[:len(b)-8*int(h.words)]
	switch h.kind {
	case kindData:
		switch c.state {
		case stateUp:
			kept = c.data(h, f, b, rest)
		case stateDraining:
			c.discard(h, b)
		}
	case kindPing:
		c.ackNow = true
	case kindClose:
		c.closed(h, b)
	case kindClosed:
		if c.state == stateClosing {
			c.finish()
			return kept
		}
	}
	if c.state == stateUp && c.peerLeft && c.cum >= c.peerEnd {
		c.left()
		return kept
	}
	if c.state == stateDraining && c.una == c.sender.end {
		c.startClose()
		return kept
	}
	e.look(c)
	return kept
}

// violated ends a connection whose peer breaks the protocol. It does not notify the peer, whose packets cannot be
// trusted.
func (c *Conn) violated(what string) {
	c.e.stats.Bad++
	c.fail(fmt.Errorf("%w: %s", ErrProtocol, what))
}

// fail ends a connection that is not closed on this side.
func (c *Conn) fail(err error) {
	e := c.e
	if c.state == stateDown {
		return
	}
	if c.state < stateUp {
		e.uncall(c)
	}
	closing := c.state > stateUp
	c.finish()
	if !closing {
		e.handler.Down(c, err)
	}
}

// finish frees the resources of the connection.
func (c *Conn) finish() {
	if c.state >= stateUp && c.state < stateDown {
		c.dropSegments()
		c.dropArrived()
	}
	c.unshare()
	if c.unconfirmed {
		c.e.uncall(c)
	}
	closing := c.state > stateUp
	c.state = stateDown
	c.e.remove(c)
	if closing {
		c.e.handler.Gone(c)
	}
}

// Close ends the connection in order. It does not block, and only Gone of the handler is called for it any more. The
// endpoint goes on sending the ordered messages that were posted, for up to the dead time, and then notifies the peer,
// again for up to the dead time. The memory of placed messages is the caller's again: if one is not acknowledged yet,
// or with abort, all messages are dropped, and the peer gets errAborted instead of ErrClosed.
func (c *Conn) Close(now Time, abort bool) {
	e := c.e
	e.now = max(e.now, now)
	switch c.state {
	case stateDialing, stateListening:
		e.uncall(c)
		c.finish()
		return
	case stateAccepted:
		e.uncall(c)
		c.begin()
		c.routed(maxMTU)
	case stateUp:
	default:
		return
	}
	c.abort = abort || c.places()
	c.dropArrived()
	c.state, c.closeFrom = stateDraining, e.now
	if c.abort || c.una == c.sender.end {
		c.startClose()
		return
	}
	e.look(c)
}

// places reports whether a placed message is not fully acknowledged.
func (c *Conn) places() bool {
	if c.first != nil {
		return true
	}
	for seq := c.una; seq < c.sender.end; seq++ {
		if c.seg(seq).t != nil {
			return true
		}
	}
	return false
}

// startClose begins to send Close.
func (c *Conn) startClose() {
	c.dropSegments()
	c.state, c.closeFrom, c.pause = stateClosing, c.e.now, max(2*c.srtt, Time(firstPause))
	c.sendClose()
}

// sendClose repeats Close until the peer confirms it or the dead time is over.
func (c *Conn) sendClose() {
	e := c.e
	if e.now-c.closeFrom > Time(e.cfg.DeadTime) {
		c.finish()
		return
	}
	flags := uint8(0)
	if c.abort {
		flags = flagAbort
	}
	c.sendBare(kindClose, flags, c.next)
	c.soon(e.now + c.pause)
	c.pause = min(2*c.pause, Time(longPause))
}

// closed handles the peer's Close.
func (c *Conn) closed(h *header, b []byte) {
	if len(b) < HeaderSize {
		c.e.stats.Bad++
		return
	}
	end := le.Uint64(b[48:])
	switch {
	case c.state > stateUp: // both at once
		c.sendBare(kindClosed, 0, 0)
		c.finish()
	case h.flags&flagAbort != 0:
		c.sendBare(kindClosed, 0, 0)
		c.fail(errAborted)
	case end > c.granted || end < c.cum:
		c.violated("an end that cannot be")
	default:
		c.peerLeft, c.peerEnd = true, end
	}
}

// left ends the connection in order, after all fragments that the peer sent before its Close.
func (c *Conn) left() {
	c.sendBare(kindClosed, 0, 0)
	c.fail(ErrClosed)
}

// tick does all that is due at e.now.
func (c *Conn) tick() {
	e := c.e
	switch c.state {
	case stateUp, stateDraining:
	case stateClosing:
		c.sendClose()
		return
	default:
		c.tryConnect()
		return
	}
	if c.pacedAt <= e.now {
		c.pacedAt = never
	}
	silent := e.now - c.lastReceived
	if silent >= Time(e.cfg.DeadTime) {
		c.fail(fmt.Errorf("%w for %v", errBroken, e.cfg.DeadTime))
		return
	}
	if c.state == stateDraining && e.now >= c.closeFrom+Time(e.cfg.DeadTime) {
		c.abort = true
		c.startClose()
		return
	}
	c.age()
	if e.now >= c.stuck() {
		c.sendBare(kindClose, flagAbort, c.next)
		c.fail(c.undelivered())
		return
	}
	if e.now >= c.askAt() {
		c.wantPing = true
	}
	if c.unconfirmed && e.now >= c.pingAt+c.pause {
		c.wantPing, c.pause = true, min(2*c.pause, Time(longPause))
	}
	c.checkLoss()
	c.probe()
	if c.toAck > 0 && e.now >= c.toAckSince+ackDelay {
		c.ackNow = true
	}
	c.flush()
	if c.sends() {
		c.arm()
	}
}

// arm schedules the next tick.
func (c *Conn) arm() {
	due := min(c.askAt(), c.lastReceived+Time(c.e.cfg.DeadTime), c.stuck())
	if c.state == stateDraining {
		due = min(due, c.closeFrom+Time(c.e.cfg.DeadTime))
	}
	if c.unconfirmed {
		due = min(due, c.pingAt+c.pause)
	}
	if c.toAck > 0 {
		due = min(due, c.toAckSince+ackDelay)
	}
	due = min(due, c.lossAt, c.probeAt(), c.pacedAt)
	c.soon(max(due, c.e.now+1))
}

// flush sends the data and acknowledgements that are due.
func (c *Conn) flush() {
	c.pump()
	if c.sends() {
		c.answer()
	}
}

// sends reports whether messages are still sent.
func (c *Conn) sends() bool { return c.state == stateUp || c.state == stateDraining }

// String describes the state of the connection for people.
func (c *Conn) String() string {
	return fmt.Sprintf("connection %#x, the peer's %#x, state %d, una %d next %d end %d limit %d, in flight %d, lost %d, window %.1f, rtt %v (least %v, latest %v), reorder %d, backoff %d, "+
		"cum %d top %d granted %d consumed %d allowed %d, %v, due in %v", c.id, c.peer, c.state, c.una, c.next, c.sender.end, c.limit, c.inflight, c.lost, c.cwnd,
		time.Duration(c.srtt), time.Duration(c.minRTT), time.Duration(c.latest), c.reorder, c.backoff,
		c.cum, c.top, c.granted, c.consumed, c.allowed, c.pmtu, time.Duration(c.due-c.e.now))
}
