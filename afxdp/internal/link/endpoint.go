package link

import (
	"container/heap"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

// The reasons for which connections end. Errors wrap one of them.
var (
	ErrClosed   = errors.New("closed")
	errBroken   = errors.New("peer does not answer")
	errLost     = errors.New("packets do not reach the peer, which answers")
	errAborted  = errors.New("peer aborted the connection")
	errReset    = errors.New("connection reset by peer")
	errGone     = errors.New("the peer process was restarted")
	ErrAuth     = errors.New("peer has another secret")
	ErrVersion  = errors.New("peer speaks another version")
	ErrProtocol = errors.New("peer violated the protocol")
	errShrunk   = errors.New("path MTU decreased below the packet size in use")
	errInvalid  = errors.New("invalid argument")
	errFull     = errors.New("no room for another connection")
)

// Time is a reading of the caller's clock, in ns since an origin of the caller's choice.
type Time int64

const never = Time(1<<63 - 1)

// Route names a way to a peer for the [Carrier].
type Route uint32

// Reply is the way back to the sender of the packet that is being handled. No connection has it.
const Reply Route = 0

// Frame is memory that a carrier lends: ID names it, a packet begins at Data[0].
type Frame struct {
	ID   uint64
	Data []byte
}

// Carrier moves packets, and may lose them. The endpoint's methods call it, and nothing else does.
type Carrier interface {
	// Get lends a frame to build a packet in, with room for Config.Unit bytes, or for the MTU if that is less. It
	// returns false if there is none now.
	Get() (Frame, bool)
	// GetLong lends a frame with contiguous room for the MTU. It returns false if there is none now. It is not called
	// if the MTU is at most Config.Unit.
	GetLong() (Frame, bool)
	// Send transmits the first n bytes of a frame's data. The frame stays lent until Put, and may be sent again once
	// Sending returns false. Send returns false if there is no room now; then it has had no effect.
	Send(r Route, f Frame, n int) bool
	// Sending reports whether an earlier Send of the frame is not done yet.
	Sending(id uint64) bool
	// Put gives back a frame from Get or Input, whose Send may still be under way.
	Put(id uint64)
	// Address returns the address that a route leads to: the Config.Address of the endpoint there. It is valid until
	// the next call.
	Address(r Route) []byte
}

// Handler gets the events of connections. Its methods may call methods of connections, also Close, Dial and Listen,
// unless their comment excludes it; they must never call Input, Flush and Tick.
type Handler interface {
	// Up reports that the connection is established.
	Up(c *Conn)
	// Down reports that the connection has ended; err is the reason. The endpoint has forgotten the connection. Close does
	// not cause a call.
	Down(c *Conn, err error)
	// Gone reports that the endpoint has forgotten a connection whose Close could not end it at once.
	Gone(c *Conn)
	// Deliver hands over the next fragment in order. The frame is the handler's until it calls Conn.Release. It may do
	// so within Deliver: the carrier then gets Put for a frame that Input reports as kept afterwards.
	Deliver(c *Conn, f Fragment)
	// Place hands over bytes of a placed message, in any order, each byte once. They are valid until it returns. A
	// packet in several pieces causes several calls.
	Place(c *Conn, p *Placement)
	// Fill copies the len(b) bytes at offset off of a transfer's message to b. It is called again when a fragment is
	// sent again. It must not call methods of the connection.
	Fill(c *Conn, t *Transfer, off uint64, b []byte)
	// Placed reports that the peer has placed all of a transfer, whose memory is the caller's again.
	Placed(c *Conn, t *Transfer)
}

// Fragment is a piece of an ordered message.
type Fragment struct {
	ID   uint64 // of the frame
	Data []byte // in the frame
	More bool   // another fragment of the message follows
}

// Placement is a piece of a placed message.
type Placement struct {
	Tag    uint64 // chosen by the receiver
	Offset uint64
	Total  uint64 // the sender's Transfer.Total
	Data   []byte
}

// Config describes an endpoint. Zero values of numbers ask for the defaults.
type Config struct {
	// ID distinguishes endpoints that live at one address one after the other.
	ID uint64
	// Address is the endpoint's address in the form that its peers use. It is never sent.
	Address []byte
	// Sole means that no other endpoint can live at Address. The endpoint then answers for earlier endpoints there that
	// they are gone, so that the peers of a process that was started again need not wait for the dead time.
	Sole bool
	// Secret is shared by all peers and has at least 16 bytes. Without one, every peer is welcome. It authenticates
	// connecting and, with Encrypt, all packets after it.
	Secret []byte
	// Encrypt makes connections use AES-256-GCM. It suffices that one side asks for it. It needs a Secret.
	Encrypt bool
	// MTU is the largest packet in bytes, from MinMTU to maxMTU. Required.
	MTU int
	// Unit is how many bytes of a packet one frame of the carrier holds, arriving or leaving: at least 256, by default
	// MTU. Only placed fragments are longer, if both ends can take them. They arrive by InputPieces, and a packet of n
	// bytes occupies at most n/Unit frames, rounded up.
	Unit int
	// Window is how many fragments may be under way on a connection: a power of two from 64 to 4096, by default 256. A
	// connection carries at most Window times the MTU in a round trip.
	Window int
	// frames is how many frames of the carrier arriving fragments may occupy, over all connections; by default 4096. A
	// quarter is kept for new connections. Each connection needs 16, or as many as two packets of the MTU occupy.
	frames int
	// Pool replaces frames with a pool that several endpoints share.
	Pool *Pool
	// MaxConns limits connections; default 4096, at most 65536.
	MaxConns int
	// DeadTime is how long a peer may be silent, and the oldest fragment under way, before a connection breaks: at least
	// 10 ms, by default 5 s.
	DeadTime time.Duration
	// keyPackets is the number of packets after which a key is changed; by default 2^24.
	keyPackets uint64
	// rand is the source of ids and nonces; by default crypto/rand.Reader.
	rand io.Reader
}

// Stats are counters of an endpoint. They never decrease.
type Stats struct {
	sent        uint64
	Bad         uint64 // malformed, damaged, or not genuine
	unknown     uint64 // of unknown connections
	duplicates  uint64 // fragments that had arrived already
	Retransmits uint64
	Refused     uint64 // greetings rejected
	Waited      uint64 // times that a sender ran out of credit
}

// Endpoint holds all connections over one carrier. It is a state machine without goroutine, clock and I/O. Its methods,
// and those of its connections, must be called one at a time.
type Endpoint struct {
	cfg     Config
	carrier Carrier
	handler Handler
	secrets *secrets
	stats   Stats

	now Time

	conns      []*Conn // by the low bits of their ids
	free       []uint32
	peers      map[uint64]*callers // connections that are not established yet, by the peer's endpoint
	remote     map[uint64]*Conn    // by the ids that peers chose
	pool       *Pool
	touch      []*Conn // connections for Flush to look at
	spareTouch []*Conn // memory for the next list
	timers     timerHeap
	h          header // of the packet that is being handled
	p          Placement
	resets     int // Resets and Gones that may still be sent in this period
	period     Time
}

// callers are the connections to one endpoint that are not established yet, oldest first.
type callers struct{ dial, listen []*Conn }

// NewEndpoint makes an endpoint. Errors of cfg wrap errInvalid; others come from cfg.rand.
func NewEndpoint(cfg Config, c Carrier, h Handler) (*Endpoint, error) {
	setDefault(&cfg.Unit, cfg.MTU)
	cfg.Unit = min(cfg.Unit, cfg.MTU)
	setDefault(&cfg.Window, 256)
	setDefault(&cfg.frames, 4096)
	if cfg.Pool == nil {
		cfg.Pool = NewPool(cfg.frames, 0)
	}
	cfg.frames = cfg.Pool.frames
	setDefault(&cfg.MaxConns, 4096)
	setDefault(&cfg.DeadTime, 5*time.Second)
	setDefault(&cfg.keyPackets, 1<<24)
	if cfg.rand == nil {
		cfg.rand = rand.Reader
	}
	switch {
	case cfg.MTU < MinMTU || cfg.MTU > maxMTU:
		return nil, fmt.Errorf("%w: MTU of %d bytes, must be %d to %d", errInvalid, cfg.MTU, MinMTU, maxMTU)
	case cfg.Unit < MinMTU:
		return nil, fmt.Errorf("%w: unit of %d bytes, must be at least %d", errInvalid, cfg.Unit, MinMTU)
	case cfg.Window < 64 || cfg.Window > 64*maxWords || cfg.Window&(cfg.Window-1) != 0:
		return nil, fmt.Errorf("%w: window of %d, must be a power of two from 64 to %d", errInvalid, cfg.Window, 64*maxWords)
	case cfg.MaxConns < 1 || cfg.MaxConns > 1<<16:
		return nil, fmt.Errorf("%w: %d connections, must be 1 to 65536", errInvalid, cfg.MaxConns)
	case cfg.frames < cfg.share():
		return nil, fmt.Errorf("%w: %d frames, must be at least %d", errInvalid, cfg.frames, cfg.share())
	case cfg.DeadTime < 10*time.Millisecond:
		return nil, fmt.Errorf("%w: dead time of %v, must be at least 10ms", errInvalid, cfg.DeadTime)
	case cfg.Encrypt && len(cfg.Secret) == 0:
		return nil, fmt.Errorf("%w: encryption needs a secret", errInvalid)
	}
	var own [32]byte
	if _, err := io.ReadFull(cfg.rand, own[:]); err != nil {
		return nil, fmt.Errorf("random numbers: %w", err)
	}
	s, err := newSecrets(cfg.Secret, own[:])
	if err != nil {
		return nil, fmt.Errorf("%w: session secret: %w", errInvalid, err)
	}
	return &Endpoint{
		cfg: cfg, carrier: c, handler: h, secrets: s, pool: cfg.Pool,
		peers: make(map[uint64]*callers), remote: make(map[uint64]*Conn),
	}, nil
}

func setDefault[T int | uint64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Stats returns the counters.
func (e *Endpoint) Stats() Stats { return e.stats }

// Conns returns the number of connections in any state.
func (e *Endpoint) Conns() int { return len(e.conns) - len(e.free) }

// Waiting reports whether Flush has something to do, for example because the carrier had no room.
func (e *Endpoint) Waiting() bool { return len(e.touch) > 0 }

// Abandon forgets all connections at once. It does not notify peers, and the handler only of those that were closed (Gone).
func (e *Endpoint) Abandon() {
	for _, c := range e.conns {
		if c == nil {
			continue
		}
		if c.state < stateUp {
			e.uncall(c)
		}
		c.finish()
	}
}

func (e *Endpoint) random() (v uint64) {
	var b [8]byte
	for v == 0 {
		if _, err := io.ReadFull(e.cfg.rand, b[:]); err != nil {
			panic("link: no random numbers: " + err.Error())
		}
		v = le.Uint64(b[:])
	}
	return v
}

// Input handles a packet that arrived. from is its sender's address, which only cookies and the search for successors
// use. Input reports whether it keeps the frame, which then goes to the handler or back by Carrier.Put. Call Flush
// after a batch.
func (e *Endpoint) Input(now Time, from []byte, f Frame) (kept bool) {
	e.now = max(e.now, now)
	b := sized(f.Data)
	if b == nil {
		e.stats.Bad++
		return false
	}
	k := kind(b[0])
	if k < kindData || k > kindClosed {
		e.unconnected(k, b, from)
		return false
	}
	if len(b) < ackSize {
		e.stats.Bad++
		return false
	}
	id := le.Uint64(b[8:])
	if n := int(id & 0xffff); n < len(e.conns) {
		if c := e.conns[n]; c != nil && c.id == id {
			return c.input(f, b, nil)
		}
	}
	e.unknown(b)
	return false
}

// InputPieces handles a packet that arrived in several frames: first begins with the packet's header, and rest holds
// the other bytes in order. It drops all packets but placed fragments that are neither encrypted nor carry a bitmap. It
// keeps no frame. Call Flush after a batch.
func (e *Endpoint) InputPieces(now Time, first []byte, rest [][]byte) {
	e.now = max(e.now, now)
	n := len(first)
	for _, r := range rest {
		n += len(r)
	}
	const want, not = flagPlaced, flagPlaced | flagSealed | flagMore | flagPart
	if len(first) < placedHeaderSize || int(le.Uint16(first[2:])) != n || kind(first[0]) != kindData || first[1]&not != want || first[46] != 0 {
		e.stats.Bad++
		return
	}
	id := le.Uint64(first[8:])
	if k := int(id & 0xffff); k < len(e.conns) {
		if c := e.conns[k]; c != nil && c.id == id {
			if c.sealer != nil {
				e.stats.Bad++
				return
			}
			c.input(Frame{}, first, rest)
			return
		}
	}
	e.unknown(first, rest...)
}

// unknown answers a packet of a connection that does not exist, so that the peer need not wait for the dead time.
func (e *Endpoint) unknown(b []byte, rest ...[]byte) {
	if b[1]&flagSealed == 0 && le.Uint32(b[4:]) != sum(b, rest...) {
		e.stats.Bad++
		return
	}
	e.stats.unknown++
	if !e.mayAnswer() {
		return
	}
	id := le.Uint64(b[8:])
	e.control(Reply, func(out []byte) []byte { return putSmall(out, kindReset, id, 0, 0) })
}

// mayAnswer limits the rate of Resets and Gones.
func (e *Endpoint) mayAnswer() bool {
	if e.now >= e.period {
		e.resets, e.period = resetsPerPeriod, e.now+Time(resetPeriod)
	}
	if e.resets == 0 {
		return false
	}
	e.resets--
	return true
}

const (
	resetsPerPeriod = 64
	resetPeriod     = 10 * time.Millisecond
)

// control sends a packet outside of connections. It reports whether the carrier took it.
func (e *Endpoint) control(r Route, build func([]byte) []byte) bool {
	f, ok := e.carrier.Get()
	if !ok {
		return false
	}
	sent := e.carrier.Send(r, f, len(build(f.Data)))
	if sent {
		e.stats.sent++
	}
	e.carrier.Put(f.ID)
	return sent
}

// Flush sends all that a batch of inputs, posts and releases has made due. Call it after each batch, and again while
// Waiting.
func (e *Endpoint) Flush(now Time) {
	e.now = max(e.now, now)
	list := e.touch
	e.touch = e.spareTouch[:0]
	for _, c := range list {
		c.touched = false
		if c.sends() {
			c.flush()
		}
	}
	clear(list)
	e.spareTouch = list[:0]
}

// look puts a connection on the list of the next Flush.
func (e *Endpoint) look(c *Conn) {
	if !c.touched {
		c.touched = true
		e.touch = append(e.touch, c)
	}
}

// Next returns when Tick must be called at the latest; far in the future if never.
func (e *Endpoint) Next() Time {
	if len(e.timers) == 0 {
		return never
	}
	return e.timers[0].due
}

// Tick does all that is due at now. Pass the packets that arrived before to Input first: otherwise a process that was
// stopped takes its peers for dead.
func (e *Endpoint) Tick(now Time) {
	e.now = max(e.now, now)
	if late := e.now - e.Next(); late > Time(e.cfg.DeadTime)/16 { // the owner did not run: its peers are not to blame for that time
		for _, c := range e.conns {
			if c != nil {
				c.lastReceived = min(c.lastReceived+late, e.now)
				c.advancedAt = min(c.advancedAt+late, e.now)
			}
		}
	}
	for len(e.timers) > 0 && e.timers[0].due <= e.now {
		c := e.timers[0]
		c.schedule(never)
		c.tick()
	}
	e.Flush(now)
}

// insert gives a connection its place and id.
func (e *Endpoint) insert(c *Conn) error {
	var n uint32
	switch {
	case len(e.free) > 0:
		n = e.free[len(e.free)-1]
		e.free = e.free[:len(e.free)-1]
	case len(e.conns) < e.cfg.MaxConns:
		n = uint32(len(e.conns))
		e.conns = append(e.conns, nil)
	default:
		return fmt.Errorf("%w: there are %d, the limit", errFull, e.cfg.MaxConns)
	}
	c.id = uint64(n)
	c.renew()
	e.conns[n] = c
	return nil
}

// renew changes the random part of a connection's id.
func (c *Conn) renew() {
	c.id = max(c.e.random()&^0xffff, 1<<16) | c.id&0xffff
	c.mine.id = c.id
}

// remove forgets a connection.
func (e *Endpoint) remove(c *Conn) {
	if e.remote[c.peer] == c {
		delete(e.remote, c.peer)
	}
	n := uint32(c.id & 0xffff)
	e.conns[n] = nil
	e.free = append(e.free, n)
	c.schedule(never)
}

// timerHeap orders connections by when they are due.
type timerHeap []*Conn

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, k int) bool { return h[i].due < h[k].due }

func (h timerHeap) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].place, h[k].place = i+1, k+1
}

func (h *timerHeap) Push(x any) {
	c := x.(*Conn)
	*h = append(*h, c)
	c.place = len(*h)
}

func (h *timerHeap) Pop() any {
	n := len(*h) - 1
	c := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	c.place = 0
	return c
}

// schedule sets when tick is called; never removes the connection from the timers.
func (c *Conn) schedule(due Time) {
	h := &c.e.timers
	switch {
	case c.place == 0 && due == never:
	case c.place == 0:
		c.due = due
		heap.Push(h, c)
	case due == never:
		heap.Remove(h, c.place-1)
	default:
		c.due = due
		heap.Fix(h, c.place-1)
	}
}

// soon makes sure that tick is called at due or earlier.
func (c *Conn) soon(due Time) {
	if c.place == 0 || due < c.due {
		c.schedule(due)
	}
}
