package link

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

// The reasons for which connections end. Errors wrap one of them.
var (
	ErrClosed   = errors.New("closed")
	ErrBroken   = errors.New("peer does not answer")
	ErrAborted  = errors.New("peer aborted the connection")
	ErrReset    = errors.New("peer does not know the connection any more")
	ErrGone     = errors.New("another endpoint answers at the peer's address")
	ErrAuth     = errors.New("peer has another secret")
	ErrVersion  = errors.New("peer speaks another version")
	ErrProtocol = errors.New("peer violated the protocol")
	ErrShrunk   = errors.New("the path's largest packet has become smaller")
	ErrInvalid  = errors.New("invalid argument")
	ErrFull     = errors.New("no room for another connection")
)

// Time is what the caller's clock says, in ns since an origin of its choice.
type Time int64

const never = Time(1<<63 - 1)

// Route names a way to a peer for the [Carrier]. Reply is the way back to who sent the
// packet that is being handled.
type Route uint32

// Reply is never given to a connection.
const Reply Route = 0

// Frame is memory that a carrier lends: ID names it, Data is where a packet begins.
type Frame struct {
	ID   uint64
	Data []byte
}

// Carrier moves packets; nothing is expected of it but that it usually does. It is
// called from within the endpoint's methods only.
type Carrier interface {
	// Get lends a frame to build a packet in, with room for Config.Unit bytes, or
	// the MTU where that is less; false if there is none now.
	Get() (Frame, bool)
	// GetLong lends one with room for the MTU, all of it contiguous; false if there is none now. It is
	// not called where the MTU is within Config.Unit.
	GetLong() (Frame, bool)
	// Send transmits the first n bytes of a frame's data. The frame stays
	// lent until Put, and may be sent again when Sending says false. False: no
	// room now, nothing happened.
	Send(r Route, f Frame, n int) bool
	// Sending reports whether an earlier Send of the frame is not done yet.
	Sending(id uint64) bool
	// Put gives back a frame, from Get or from Input; it may be being sent.
	Put(id uint64)
	// Address is where a route leads: what Config.Address is of the endpoint there. It is valid until the next call.
	Address(r Route) []byte
}

// Handler is told what happens to connections. Its methods may call those of
// connections, Close too, and Dial and Listen, except where they say otherwise; never Input, Flush and Tick.
type Handler interface {
	// Up: the connection stands.
	Up(c *Conn)
	// Down: the connection has ended, and is unknown to the endpoint from now on;
	// err says why. Close does not cause it.
	Down(c *Conn, err error)
	// Deliver hands over the next fragment in order. The frame is the
	// handler's until it calls Conn.Release, which it may do within Deliver: that puts the frame
	// before Input has said that it is kept.
	Deliver(c *Conn, f Fragment)
	// Place hands over bytes of a placed message, in any order, each byte once;
	// they are valid until it returns. A packet that came in several pieces is several calls.
	Place(c *Conn, p *Placement)
	// Fill copies what follows off in a transfer's message to b. It is called again for what is
	// sent again, and must not call methods of the connection.
	Fill(c *Conn, t *Transfer, off uint64, b []byte)
	// Placed: all of a transfer has been placed at the peer. Its memory is the caller's
	// again.
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
	Total  uint64 // what Transfer.Total says
	Data   []byte
}

// Config describes an endpoint. Zero values of numbers ask for the defaults.
type Config struct {
	// ID tells endpoints apart that live at one address after each other.
	ID uint64
	// Address is where the endpoint lives, as its peers call it. It is never sent.
	Address []byte
	// Sole says that no other endpoint can live at Address. So those that peers look for there are gone, and this one
	// says so: the peers of a process that was started again need not wait for the dead time.
	Sole bool
	// Secret is shared by all peers, and has 16 bytes or more; none means that every peer is welcome. It authenticates
	// connecting, and with Encrypt all that follows.
	Secret []byte
	// Encrypt makes connections use AES-256-GCM; one side's wish suffices.
	Encrypt bool
	// MTU is the largest packet in bytes. Required.
	MTU int
	// Unit is how many bytes of a packet one frame of the carrier holds, arriving or leaving, 256 or
	// more; default MTU. Only placed fragments are longer, where both ends can take them: they come by
	// InputPieces, and a packet of n bytes occupies at most n/Unit frames, rounded up.
	Unit int
	// Window is how many fragments may be under way on a connection, a power of two
	// from 64 to 1024; default 256. It times the MTU in a round trip is the most that one carries.
	Window int
	// Frames is how many frames of the carrier arriving fragments may
	// occupy, over all connections; default 4096. A quarter is kept for new
	// connections, each of which needs 16, or as many as two packets of the MTU occupy.
	Frames int
	// Pool is shared with other endpoints, and takes the place of Frames.
	Pool *Pool
	// MaxConns limits connections; default 4096, at most 65536.
	MaxConns int
	// DeadTime is how long a silent peer is waited for; default 5 s.
	DeadTime time.Duration
	// KeyPackets is after how many packets a key is changed; default 2^24.
	KeyPackets uint64
	// Rand is where ids and nonces come from; default crypto/rand.Reader.
	Rand io.Reader
}

// Stats are counters of an endpoint, which only grow.
type Stats struct {
	Packets, Sent       uint64 // arrived, sent
	Bad                 uint64 // malformed, damaged, or not genuine
	Unknown             uint64 // of no connection here
	Duplicates          uint64 // fragments that had arrived already
	Retransmits, Probes uint64
	Spurious            uint64 // repeated in vain, says the peer
	Refused             uint64 // greetings refused
	Waited              uint64 // times that a sender ran out of credit
	Connects, Broken    uint64
}

// Endpoint is all connections over one carrier. It is a state machine: no
// goroutine, no clock, no I/O. Its methods, and those of its connections, must be called
// one at a time.
type Endpoint struct {
	cfg     Config
	carrier Carrier
	handler Handler
	secrets *secrets
	stats   Stats

	now Time

	conns  []*Conn // by the low bits of their ids
	free   []uint32
	peers  map[uint64]*callers // who is being connected to
	remote map[uint64]*Conn    // by the ids that peers gave
	pool   *Pool
	touch  []*Conn // to be looked at by Flush
	calm   []*Conn // room for the next list
	timers timerHeap
	h      header // of the packet that is being handled
	p      Placement
	resets int // that may still be sent in this period, and answers to queries
	period Time
}

// callers are the connections to one endpoint that do not stand yet, oldest first.
type callers struct{ dial, listen []*Conn }

// NewEndpoint makes one. The errors are about cfg and wrap ErrInvalid, or come
// from its Rand.
func NewEndpoint(cfg Config, c Carrier, h Handler) (*Endpoint, error) {
	setDefault(&cfg.Unit, cfg.MTU)
	cfg.Unit = min(cfg.Unit, cfg.MTU)
	setDefault(&cfg.Window, 256)
	setDefault(&cfg.Frames, 4096)
	if cfg.Pool == nil {
		cfg.Pool = NewPool(cfg.Frames, 0)
	}
	cfg.Frames = cfg.Pool.frames
	setDefault(&cfg.MaxConns, 4096)
	setDefault(&cfg.DeadTime, 5*time.Second)
	setDefault(&cfg.KeyPackets, 1<<24)
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	switch {
	case cfg.MTU < MinMTU || cfg.MTU > MaxMTU:
		return nil, fmt.Errorf("%w: MTU of %d bytes, must be %d to %d", ErrInvalid, cfg.MTU, MinMTU, MaxMTU)
	case cfg.Unit < MinMTU:
		return nil, fmt.Errorf("%w: unit of %d bytes, must be at least %d", ErrInvalid, cfg.Unit, MinMTU)
	case cfg.Window < 64 || cfg.Window > 64*maxWords || cfg.Window&(cfg.Window-1) != 0:
		return nil, fmt.Errorf("%w: window of %d, must be a power of two from 64 to %d", ErrInvalid, cfg.Window, 64*maxWords)
	case cfg.MaxConns < 1 || cfg.MaxConns > 1<<16:
		return nil, fmt.Errorf("%w: %d connections, must be 1 to 65536", ErrInvalid, cfg.MaxConns)
	case cfg.Frames < cfg.share():
		return nil, fmt.Errorf("%w: %d frames, must be at least %d", ErrInvalid, cfg.Frames, cfg.share())
	case cfg.DeadTime < 10*time.Millisecond:
		return nil, fmt.Errorf("%w: dead time of %v, must be at least 10ms", ErrInvalid, cfg.DeadTime)
	case cfg.Encrypt && len(cfg.Secret) == 0:
		return nil, fmt.Errorf("%w: encryption needs a secret", ErrInvalid)
	}
	var own [32]byte
	if _, err := io.ReadFull(cfg.Rand, own[:]); err != nil {
		return nil, fmt.Errorf("random numbers: %w", err)
	}
	s, err := newSecrets(cfg.Secret, own[:])
	if err != nil {
		return nil, fmt.Errorf("%w: session secret: %w", ErrInvalid, err)
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

// Conns is how many connections there are, in whatever state.
func (e *Endpoint) Conns() int { return len(e.conns) - len(e.free) }

// Waiting reports whether Flush has something to do: also where the carrier had no room.
func (e *Endpoint) Waiting() bool { return len(e.touch) > 0 }

// Abandon forgets all connections at once. Nobody is told.
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
		if _, err := io.ReadFull(e.cfg.Rand, b[:]); err != nil {
			panic("link: no random numbers: " + err.Error())
		}
		v = le.Uint64(b[:])
	}
	return v
}

// Input takes a packet that arrived; from is its sender's address, for the cookie alone. It
// reports whether it keeps the frame, which then goes to the handler or back by
// Carrier.Put. Call Flush after a batch.
func (e *Endpoint) Input(now Time, from []byte, f Frame) (kept bool) {
	e.now = max(e.now, now)
	e.stats.Packets++
	b := sized(f.Data)
	if b == nil {
		e.stats.Bad++
		return false
	}
	k := kind(b[0])
	if k < kindData || k > kindClosed {
		e.greet(k, b, from)
		return false
	}
	if len(b) < ackSize {
		e.stats.Bad++
		return false
	}
	id := le.Uint64(b[8:])
	if n := int(id & 0xffff); n < len(e.conns) {
		if c := e.conns[n]; c != nil && c.id == id {
			return c.input(f.ID, b, nil)
		}
	}
	e.unknown(b)
	return false
}

// InputPieces takes a packet that arrived in several frames: first begins with its header, rest holds all that
// follows, in order. Only placed fragments come so, in the clear and without a bitmap; anything else is dropped. No frame
// is kept. Call Flush after a batch.
func (e *Endpoint) InputPieces(now Time, first []byte, rest [][]byte) {
	e.now = max(e.now, now)
	e.stats.Packets++
	n := len(first)
	for _, r := range rest {
		n += len(r)
	}
	const want, not = flagPlaced, flagPlaced | flagSealed | flagMore
	if len(first) < PlacedHeaderSize || int(le.Uint16(first[2:])) != n || kind(first[0]) != kindData || first[1]&not != want || first[46] != 0 {
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
			c.input(0, first, rest)
			return
		}
	}
	e.unknown(first, rest...)
}

// unknown answers packets of connections that are no more, so that the peer needs not wait.
func (e *Endpoint) unknown(b []byte, rest ...[]byte) {
	if b[1]&flagSealed == 0 && le.Uint32(b[4:]) != sum(b, rest...) {
		e.stats.Bad++
		return
	}
	e.stats.Unknown++
	if !e.mayAnswer() {
		return
	}
	id := le.Uint64(b[8:])
	e.control(Reply, func(out []byte) []byte { return putSmall(out, kindReset, id, 0, 0) })
}

// mayAnswer bounds how often those are answered who speak of connections that are no more.
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

// control sends a packet of its own, if that is possible now.
func (e *Endpoint) control(r Route, build func([]byte) []byte) bool {
	f, ok := e.carrier.Get()
	if !ok {
		return false
	}
	sent := e.carrier.Send(r, f, len(build(f.Data)))
	if sent {
		e.stats.Sent++
	}
	e.carrier.Put(f.ID)
	return sent
}

// Flush sends what a batch of inputs and posts has made due: call it after
// each. It also goes on where the carrier had no room.
func (e *Endpoint) Flush(now Time) {
	e.now = max(e.now, now)
	list := e.touch
	e.touch = e.calm[:0]
	for _, c := range list {
		c.touched = false
		if c.sends() {
			c.flush()
		}
	}
	clear(list)
	e.calm = list[:0]
}

// touched makes Flush look at a connection.
func (e *Endpoint) look(c *Conn) {
	if !c.touched {
		c.touched = true
		e.touch = append(e.touch, c)
	}
}

// Next is when Tick is to be called at the latest; far in the future if never.
func (e *Endpoint) Next() Time {
	if len(e.timers) == 0 {
		return never
	}
	return e.timers[0].due
}

// Tick does what is due. Give it all that has arrived before, lest a process that was
// stopped takes its peers for dead.
func (e *Endpoint) Tick(now Time) {
	e.now = max(e.now, now)
	if late := e.now - e.Next(); late > Time(e.cfg.DeadTime)/16 { // nobody listened
		for _, c := range e.conns {
			if c != nil {
				c.heard = min(c.heard+late, e.now)
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

// insert gives a connection its id.
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
		return fmt.Errorf("%w: there are %d, the limit", ErrFull, e.cfg.MaxConns)
	}
	c.id = uint64(n)
	c.renew()
	e.conns[n] = c
	return nil
}

// renew changes a connection's id: its place among the others, and what nobody can guess.
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

func (h timerHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].due <= h[i].due {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h timerHeap) down(i int) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && h[k+1].due < h[k].due {
			k++
		}
		if h[i].due <= h[k].due {
			return
		}
		h.swap(i, k)
		i = k
	}
}

func (h timerHeap) swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].place, h[k].place = i+1, k+1
}

// schedule sets when tick is called; never takes the connection out.
func (c *Conn) schedule(due Time) {
	h := &c.e.timers
	switch {
	case c.place == 0 && due == never:
	case c.place == 0:
		c.due = due
		*h = append(*h, c)
		c.place = len(*h)
		h.up(len(*h) - 1)
	case due == never:
		i, last := c.place-1, len(*h)-1
		h.swap(i, last)
		*h = (*h)[:last]
		c.place = 0
		if i < last {
			h.down(i)
			h.up(i)
		}
	default:
		c.due = due
		h.down(c.place - 1)
		h.up(c.place - 1)
	}
}

// soon makes sure that tick is called at due, or before.
func (c *Conn) soon(due Time) {
	if c.place == 0 || due < c.due {
		c.schedule(due)
	}
}
