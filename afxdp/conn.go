//go:build linux

package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/afxdp/link"
	"github.com/bywash/bywash/driver"
)

type state = uint32

const (
	stateConnecting state = iota
	stateUp
	statePeerClosed // the peer disconnected: what it sent before can be received
	stateBroken
	stateClosed // on this side
)

// conn is what instances of both tracks have in common. Its owner is the goroutine that uses the
// instance; the engine is whoever holds the NIC's lock. They share rings, and words that are atomic.
type conn struct {
	state  atomic.Uint32
	inCall atomic.Uint32 // somebody is inside a call

	ctx     *Context
	api     track
	num     uint32 // in ctx.conns
	peerURL string
	route   *route
	toSelf  bool
	waited  bool // ConnectWait has said that the connection stands; the owner's
	settled chan struct{}

	mu     sync.Mutex // state changes
	reason error      // why broken; set before state is

	// The engine's.
	lc    *link.Conn // nil to oneself
	waits bool       // in the NIC's backlog

	marked    atomic.Bool
	nextDirty *conn
	_         [64]byte

	arrived  atomic.Uint32 // messages that came
	ended    atomic.Bool   // there will be no more
	pending  atomic.Int32  // what was sent and is not acknowledged
	fragment atomic.Int32  // bytes of a message in one packet
	_        [64]byte

	taken    atomic.Uint32 // messages that were received
	named    atomic.Bool   // a prober has named the instance
	endNamed atomic.Bool
	popped   bool // something was received in this call
	sleeping atomic.Int32
	inKernel atomic.Bool // who sleeps on it watches for frames
	bell     chan struct{}
	tally    driver.Tallies
}

// track is what a track adds to a connection.
type track interface {
	driver.Instance
	// hello is what the peer is told.
	hello() []byte
	// up is called when the connection stands, with what the peer told. The engine's.
	up(hello []byte) error
	// serve does what the owner wants. The engine's.
	serve()
	// deliver and place take what came. The engine's.
	deliver(f link.Fragment)
	place(p *link.Placement)
	// busy tells whether sends are under way. The owner's.
	busy() bool
	// drop frees everything: nobody uses the instance any more. The engine's.
	drop()
}

// helloVersion, the track, and a token that rdv data for this end holds.
const (
	helloSize    = 16
	helloVersion = 1
)

func (i *conn) helloOf(token uint64) []byte {
	b := make([]byte, helloSize)
	b[0], b[1] = helloVersion, byte(i.ctx.props.Track)
	binary.LittleEndian.PutUint64(b[8:], token)
	return b
}

// parseHello checks what the peer said of itself.
func (i *conn) parseHello(b []byte) (token uint64, err error) {
	switch {
	case len(b) < helloSize || b[0] != helloVersion:
		return 0, fmt.Errorf("%w: the peer's hello", driver.ErrVersion)
	case driver.Track(b[1]) != i.ctx.props.Track:
		return 0, fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	}
	return binary.LittleEndian.Uint64(b[8:]), nil
}

func (c *Context) newConn(num uint32, peer string) *conn {
	var i *conn
	if c.props.Track == driver.Large {
		l := newLarge(c)
		i, l.api = &l.conn, l
	} else {
		s := newSmall(c)
		i, s.api = &s.conn, s
	}
	i.ctx, i.num, i.peerURL = c, num, peer
	i.settled, i.bell = make(chan struct{}), make(chan struct{}, 1)
	c.conns[num].Store(i)
	return i
}

// standAlone begins a connection to oneself.
func (i *conn) standAlone() {
	c := i.ctx
	i.fragment.Store(int32(c.linkMTU(c.deviceMTU()) - link.HeaderSize))
	c.nic.mustLock()
	err := i.api.up(i.api.hello())
	c.nic.unlock()
	i.resolve(stateUp, err)
}

// Up implements link.Handler.
func (c *Context) Up(lc *link.Conn) {
	i := lc.User.(*conn)
	i.lc = lc
	c.fitMTU(i)
	if err := i.api.up(lc.Hello()); err != nil {
		lc.Close(c.nic.now, true)
		i.resolve(stateBroken, err)
		return
	}
	i.resolve(stateUp, nil)
}

// fitMTU takes what the route's MTU allows.
func (c *Context) fitMTU(i *conn) {
	if m := i.route.mtu.Load(); m >= link.MinMTU {
		_ = i.lc.SetMTU(int(m))
	}
	i.fragment.Store(int32(i.lc.MaxFragment()))
}

// routeChanged tells connections what is new of their route.
func (c *Context) routeChanged(r *route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nic.mustLock()
	defer c.nic.unlock()
	for i := range c.open {
		if i.route == r && i.lc != nil && i.lc.Up() {
			c.fitMTU(i)
		}
	}
}

// Down implements link.Handler.
func (c *Context) Down(lc *link.Conn, err error) {
	i := lc.User.(*conn)
	if errors.Is(err, link.ErrClosed) {
		i.finish(statePeerClosed, nil)
		return
	}
	sentinel := driver.ErrBroken
	switch {
	case errors.Is(err, link.ErrAuth):
		sentinel = driver.ErrAuth
	case errors.Is(err, link.ErrVersion):
		sentinel = driver.ErrVersion
	case errors.Is(err, link.ErrProtocol):
		i.tally.Bad.Add(1)
	}
	err = fmt.Errorf("%w: %s: %w", sentinel, c.props.Device, err)
	if why := i.route.why.Load(); why != nil {
		err = fmt.Errorf("%w: %w", err, *why)
	}
	if !i.resolve(stateBroken, err) {
		i.finish(stateBroken, err)
	}
}

// Deliver implements link.Handler.
func (c *Context) Deliver(lc *link.Conn, f link.Fragment) { lc.User.(*conn).api.deliver(f) }

// Place implements link.Handler.
func (c *Context) Place(lc *link.Conn, p *link.Placement) { lc.User.(*conn).api.place(p) }

// resolve moves a connection out of stateConnecting. It tells whether this call did.
func (i *conn) resolve(s state, reason error) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state.Load() != stateConnecting {
		return false
	}
	if reason != nil {
		s = stateBroken
	}
	i.reason = reason
	if s == stateUp {
		i.tally.Connects.Store(1)
	} else {
		i.tally.Broken.Store(1)
	}
	i.state.Store(s)
	close(i.settled)
	return true
}

// finish ends a connection that is up and wakes whoever waits for it.
func (i *conn) finish(s state, reason error) {
	i.mu.Lock()
	if i.state.Load() == stateUp {
		i.reason = reason
		if s == stateBroken {
			i.tally.Broken.Store(1)
		} else {
			i.tally.Disconnects.Store(1)
		}
		i.state.Store(s)
	}
	i.mu.Unlock()
	i.ended.Store(true)
	i.announce()
}

// announce tells those who wait that there is something.
func (i *conn) announce() {
	if !i.named.Load() || i.ended.Load() {
		i.ctx.ready.Add(i.num)
		if i.ctx.any.Load() > 0 {
			i.ctx.wakeAny(false)
		}
	}
	i.wake()
}

// misbehaved breaks the connection because of what the peer sent. The engine's.
func (i *conn) misbehaved(what string) {
	i.tally.Bad.Add(1)
	i.lc.Close(i.ctx.nic.now, true)
	i.finish(stateBroken, fmt.Errorf("%w: %s: the peer violated the protocol: %s", driver.ErrBroken, i.ctx.props.Device, what))
}

// Peer implements driver.Instance.
func (i *conn) Peer() string { return i.peerURL }

// Path implements driver.Instance.
func (i *conn) Path() string {
	if i.toSelf {
		return "copy"
	}
	return i.ctx.nic.dev.Mode()
}

func (i *conn) fault(op string, err error) error {
	return &driver.Error{Driver: Name, Peer: i.peerURL, Op: op, Err: err}
}

// ConnectWait implements driver.Instance.
func (i *conn) ConnectWait(ctx context.Context) error {
	select {
	case <-i.settled:
	case <-ctx.Done():
		select {
		case <-i.settled:
		default:
			why := "peer has not answered"
			if i.route != nil {
				if err := i.route.why.Load(); err != nil {
					why = (*err).Error()
				}
			}
			return i.fault("connect", fmt.Errorf("%s: %s: %w", i.ctx.props.Device, why, ctx.Err()))
		}
	}
	if s := i.state.Load(); s == stateUp || s == statePeerClosed {
		i.waited = true
		return nil
	}
	return i.failure("connect")
}

// failure is the error of an operation on a connection that is not up.
func (i *conn) failure(op string) error {
	err := driver.ErrClosed
	switch s := i.state.Load(); {
	case s == stateConnecting, s == stateUp && !i.waited:
		err = fmt.Errorf("%w: not connected yet, ConnectWait first", driver.ErrInvalid)
	case s == stateUp:
		return nil
	case s == stateBroken:
		i.mu.Lock()
		err = i.reason
		i.mu.Unlock()
	}
	return i.fault(op, err)
}

func (i *conn) misuse(op string, p *driver.Packet) error {
	what := "it is posted already, or its outcome was not polled"
	if p.Driver.Phase == driver.Idle {
		what = "it is not posted"
	}
	return i.fault(op, fmt.Errorf("%w: packet: %s", driver.ErrInvalid, what))
}

// over is what polling a packet says once this side is closed.
func (i *conn) over(p *driver.Packet, op string) (bool, error) {
	if i.state.Load() != stateConnecting {
		p.Buf = nil
		p.Driver = driver.PacketState{}
	}
	return true, i.failure(op)
}

// enter begins a call. It fails once the connection is closed on this side, or
// before ConnectWait has said that it stands.
func (i *conn) enter() bool {
	if !i.waited {
		return false
	}
	for {
		if s := i.state.Load(); s == stateClosed || s == stateConnecting {
			return false
		}
		if i.inCall.CompareAndSwap(0, 1) {
			if i.state.Load() == stateClosed {
				i.inCall.Store(0)
				return false
			}
			return true
		}
		runtime.Gosched() // whoever closes the context
	}
}

// leave ends a call. Probes may name the instance again after something was
// received; another goroutine may then be given it at once.
func (i *conn) leave() {
	if i.popped {
		i.popped = false
		i.inCall.Store(0)
		i.named.Store(false)
		if i.arrived.Load() != i.taken.Load() || i.ended.Load() {
			i.ctx.ready.Add(i.num)
		}
		return
	}
	i.inCall.Store(0)
}

// Disconnect implements driver.Instance.
func (i *conn) Disconnect() error {
	switch i.state.Load() {
	case stateClosed:
		return i.failure("disconnect")
	case stateUp:
		if i.enter() {
			busy := i.api.busy()
			i.leave()
			if busy {
				return driver.ErrBusy
			}
		}
	}
	i.shut()
	return nil
}

// shut closes this side.
func (i *conn) shut() {
	i.mu.Lock()
	old := i.state.Load()
	if old == stateClosed {
		i.mu.Unlock()
		return
	}
	i.state.Store(stateClosed)
	if old == stateConnecting {
		close(i.settled)
	}
	i.mu.Unlock()
	if old == stateUp {
		i.tally.Disconnects.Store(1)
	}
	i.wake()
	for !i.inCall.CompareAndSwap(0, 1) { // whoever is inside leaves soon
		runtime.Gosched()
	}
	c := i.ctx
	n := c.nic
	n.mustLock()
	n.clock()
	if i.lc != nil {
		i.lc.Close(n.now, false)
		n.next = 0
	}
	i.api.drop()
	n.unlock()
	n.run()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, i)
	c.conns[i.num].CompareAndSwap(i, nil)
	c.ready.Remove(i.num)
	i.tally.AddTo(&c.retired)
	if i.route != nil {
		c.leaving = append(c.leaving, i)
		c.sweep()
	}
}

// sweep gives up the routes of connections that are over, also for their peers. The caller holds c.mu.
func (c *Context) sweep() {
	kept := c.leaving[:0]
	for _, i := range c.leaving {
		c.nic.mustLock()
		over := i.lc == nil || i.lc.Over()
		c.nic.unlock()
		if over {
			c.dropRoute(i.route)
		} else {
			kept = append(kept, i)
		}
	}
	clear(c.leaving[len(kept):])
	c.leaving = kept
}
