package link

import (
	"errors"
	"fmt"
	"time"
)

type state uint8

const (
	stateDialing state = iota
	stateListening
	stateAccepted // listener: has answered, waits for the first packet
	stateUp
	stateDraining // this side has closed, what it sent is not acknowledged yet
	stateClosing  // this side has closed, the peer does not know yet
	stateDown
)

// Conn is a connection. Nothing is allocated on it once it stands.
type Conn struct {
	User any // the caller's

	e      *Endpoint
	id     uint64 // ours: in packets to us
	peer   uint64 // theirs: in packets to them
	peerID uint64 // the peer's endpoint
	route  Route
	state  state
	dialer bool
	sealer *sealer
	mtu    int // of placed fragments
	short  int // of all other packets: what one frame holds at both ends

	// Connecting.
	mine, theirs greeting
	cookie       [cookieSize]byte
	pause        Time
	unconfirmed  bool   // dialer: stands, and does not know yet that the peer does
	answerAt     Time   // no connect request is answered before
	cookieAt     Time   // until when no other Cookie is taken
	source       uint64 // a hash of where the peer's greeting came from
	rejected     error
	rejectAt     Time

	// Timers and lists.
	due     Time
	place   int // in the heap, from 1; 0: not in it
	touched bool

	sender
	receiver
	recovery
	pacer

	heard     Time // when the peer was last heard of
	queryAt   Time // until when no Reset makes us ask the peer
	wantPing  bool
	pingAt    Time // when the last ping went out
	closeFrom Time
	abort     bool
	peerEnd   uint64 // of a Close: what the peer sent before it
	peerLeft  bool
}

// Endpoint returns the one the connection belongs to.
func (c *Conn) Endpoint() *Endpoint { return c.e }

// Up reports whether the connection stands.
func (c *Conn) Up() bool { return c.state == stateUp }

// Over reports whether the endpoint has forgotten the connection: after Close, that may take
// until the peer has heard of it.
func (c *Conn) Over() bool { return c.state == stateDown }

// Hello is what the peer told of itself; valid from Up on.
func (c *Conn) Hello() []byte { return c.theirs.hello }

// Encrypted reports whether what is sent is encrypted.
func (c *Conn) Encrypted() bool { return c.sealer != nil }

// RTT is the smoothed time to the peer and back; 0 before the first measurement.
func (c *Conn) RTT() time.Duration { return time.Duration(c.srtt) }

// begin resets what sending and receiving need.
func (c *Conn) begin() {
	w := c.e.cfg.Window
	c.span = w
	if c.theirs.window != 0 {
		c.span = min(w, int(c.theirs.window))
	}
	c.segs = make([]segment, w)
	c.got = make([]Fragment, w)
	c.bits = make([]uint64, w/64)
	c.recovery.begin()
	c.pacer.begin(c.full)
}

// overhead is what a packet's payload is followed by.
func (c *Conn) overhead() int {
	if c.sealer != nil {
		return tagSize
	}
	return 0
}

// MaxFragment is how many bytes of an ordered message fit in a packet, at
// least 100.
func (c *Conn) MaxFragment() int { return c.short - HeaderSize - c.overhead() }

// MaxPlaced is how many bytes of a placed message fit in a packet.
func (c *Conn) MaxPlaced() int { return c.maxPlaced() }

// maxPlaced is that of a placed message.
func (c *Conn) maxPlaced() int { return c.mtu - PlacedHeaderSize - c.overhead() }

// SetMTU changes the largest packet, within what both sides announced when connecting.
// A packet keeps its size when it is sent again: where longer ones are under way, which the
// path does not take any more, the connection ends with ErrShrunk.
func (c *Conn) SetMTU(n int) error {
	if n < MinMTU {
		return fmt.Errorf("%w: MTU of %d bytes, must be at least %d", ErrInvalid, n, MinMTU)
	}
	c.fit(n)
	if !c.sends() {
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

// Fits reports whether a fragment of n bytes can be posted. Where it cannot, because it was cut before the MTU became
// smaller, the connection ends with ErrShrunk.
func (c *Conn) Fits(now Time, n int) bool {
	if n <= c.MaxFragment() {
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
	c.fail(fmt.Errorf("%w: %d bytes now, while longer packets were under way: connect again", ErrShrunk, c.mtu))
}

// fit takes the largest packet that the path takes. Sealed packets are not long: they are opened in place. Neither
// are those to and from a peer that knows of no units.
func (c *Conn) fit(n int) {
	c.short = min(n, int(c.mine.mtu), int(c.theirs.mtu))
	c.mtu, c.full, c.unit, c.peerUnit = c.short, 1, 0, 0
	if c.mine.longest == 0 || c.theirs.longest == 0 {
		return
	}
	c.unit, c.peerUnit = int(c.mine.mtu), int(c.theirs.mtu)
	if c.sealer == nil {
		c.mtu = min(n, int(c.mine.longest), int(c.theirs.longest))
		c.full = units(c.mtu, min(c.unit, c.peerUnit))
	}
}

// askAt is when a silent peer is asked whether it is there, and again, often enough that
// a lossy network does not make it look dead.
func (c *Conn) askAt() Time {
	dead := Time(c.e.cfg.DeadTime)
	return max(c.heard+dead/4, c.pingAt+dead/16)
}

// genuine checks a packet's tag and decrypts it, or checks its sum; nil if it is not what was sent.
func (c *Conn) genuine(b []byte, rest [][]byte) []byte {
	if c.sealer != nil {
		return c.sealer.open(b, le.Uint64(b[16:]))
	}
	if b[1]&flagSealed != 0 || le.Uint32(b[4:]) != sum(b, rest...) {
		return nil
	}
	return b
}

// input takes a packet for this connection, which may go on in further pieces.
func (c *Conn) input(frame uint64, b []byte, rest [][]byte) (kept bool) {
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
		c.stand()
	}
	c.heard = e.now
	if c.unconfirmed {
		c.unconfirmed = false
		e.uncall(c)
	}
	if h.pn > c.newest {
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
		if c.state == stateUp {
			kept = c.data(h, frame, b, rest)
		}
	case kindPing:
		c.ackNow = true
	case kindClose:
		c.closed(h, b)
	case kindClosed:
		if c.state == stateClosing {
			e.drop(c)
			return kept
		}
	}
	if c.state == stateUp && c.peerLeft && c.cum >= c.peerEnd {
		c.left()
		return kept
	}
	if c.state == stateDraining && c.una == c.sender.end {
		c.sayClose()
		return kept
	}
	e.look(c)
	return kept
}

// violated ends a connection whose peer does not follow the protocol. Let nobody
// know: what it says is not to be trusted.
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
	} else if !errors.Is(err, ErrClosed) {
		e.stats.Broken++
	}
	closing := c.state > stateUp
	c.finish()
	if !closing {
		e.handler.Down(c, err)
	}
}

// finish frees everything.
func (c *Conn) finish() {
	if c.state >= stateUp && c.state < stateDown {
		c.dropSegments()
		c.dropArrived()
	}
	c.unshare()
	if c.unconfirmed {
		c.e.uncall(c)
	}
	c.state = stateDown
	c.e.remove(c)
}

// drop ends a connection that this side has closed.
func (e *Endpoint) drop(c *Conn) { c.finish() }

// Close ends the connection in order. The handler is not called any more for it; the
// connection is the endpoint's from then on, which still sends the ordered messages that were
// posted, and then tells the peer, for up to the dead time each. Placed messages that are not
// acknowledged cannot be sent any more, as their memory is the caller's: then, or with abort, all
// is forgotten, and the peer sees ErrAborted instead of ErrClosed.
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
		c.fit(MaxMTU)
	case stateUp:
	default:
		return
	}
	c.abort = abort || c.places()
	c.dropArrived()
	c.state = stateDraining
	if c.abort || c.una == c.sender.end {
		c.sayClose()
		return
	}
	e.look(c)
}

// places reports whether a placed message is not acknowledged yet.
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

// sayClose begins to tell the peer.
func (c *Conn) sayClose() {
	c.dropSegments()
	c.state, c.closeFrom, c.pause = stateClosing, c.e.now, max(2*c.srtt, Time(firstPause))
	c.sendClose()
}

// sendClose says so until the peer has heard it.
func (c *Conn) sendClose() {
	e := c.e
	if e.now-c.closeFrom > Time(e.cfg.DeadTime) {
		e.drop(c)
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

// closed: the peer says that it has closed.
func (c *Conn) closed(h *header, b []byte) {
	if len(b) < HeaderSize {
		c.e.stats.Bad++
		return
	}
	end := le.Uint64(b[48:])
	switch {
	case c.state > stateUp: // both at once
		c.sendBare(kindClosed, 0, 0)
		c.e.drop(c)
	case h.flags&flagAbort != 0:
		c.sendBare(kindClosed, 0, 0)
		c.fail(ErrAborted)
	case end > c.told || end < c.cum:
		c.violated("an end that cannot be")
	default:
		c.peerLeft, c.peerEnd = true, end
	}
}

// left: all that the peer sent before it closed has arrived.
func (c *Conn) left() {
	c.sendBare(kindClosed, 0, 0)
	c.fail(ErrClosed)
}

// tick does what is due.
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
	silent := e.now - c.heard
	if silent >= Time(e.cfg.DeadTime) {
		c.fail(fmt.Errorf("%w for %v", ErrBroken, e.cfg.DeadTime))
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
	if c.owed > 0 && e.now >= c.owedSince+ackDelay {
		c.ackNow = true
	}
	c.flush()
	if c.sends() {
		c.arm()
	}
}

// arm schedules the next tick.
func (c *Conn) arm() {
	due := min(c.askAt(), c.heard+Time(c.e.cfg.DeadTime))
	if c.unconfirmed {
		due = min(due, c.pingAt+c.pause)
	}
	if c.owed > 0 {
		due = min(due, c.owedSince+ackDelay)
	}
	due = min(due, c.lossAt, c.probeAt(), c.pacedAt)
	c.soon(max(due, c.e.now+1))
}

// flush sends what is due.
func (c *Conn) flush() {
	c.pump()
	if c.sends() {
		c.answer()
	}
}

// sends reports whether messages are still sent.
func (c *Conn) sends() bool { return c.state == stateUp || c.state == stateDraining }

// String tells the state of the connection, for people.
func (c *Conn) String() string {
	return fmt.Sprintf("connection %#x, the peer's %#x, state %d, una %d next %d end %d limit %d, in flight %d, lost %d, window %.1f, rtt %v (least %v, latest %v), reorder %d, backoff %d, "+
		"cum %d top %d told %d consumed %d allowed %d, due in %v", c.id, c.peer, c.state, c.una, c.next, c.sender.end, c.limit, c.inflight, c.lost, c.cwnd,
		time.Duration(c.srtt), time.Duration(c.minRTT), time.Duration(c.latest), c.reorder, c.backoff,
		c.cum, c.top, c.told, c.consumed, c.allowed, time.Duration(c.due-c.e.now))
}
