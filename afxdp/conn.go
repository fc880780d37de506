//go:build linux

package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// conn is what instances of both tracks have in common. Its owner is the goroutine that uses the
// instance; the engine is whoever holds the NIC's lock. They share rings, and words that are atomic.
type conn struct {
	life kit.Life

	ctx    *Context
	api    track
	num    uint32 // in ctx.conns
	route  *route
	toSelf bool

	// The engine's.
	lc    *link.Conn // nil to oneself
	waits bool       // in the NIC's backlog

	marked    atomic.Bool
	nextDirty *conn
	pending   atomic.Int32 // what was sent and is not acknowledged
	fragment  atomic.Int32 // bytes of a message in one packet
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

func (c *Context) newConn(num uint32, peer string) (*conn, error) {
	var i *conn
	if c.props.Track == driver.Large {
		l := newLarge(c)
		i, l.api = &l.conn, l
	} else {
		s := newSmall(c)
		if err := s.enter(); err != nil {
			return nil, err
		}
		i, s.api = &s.conn, s
	}
	i.ctx, i.num = c, num
	i.life.Init(Name, peer, num, &c.conns.Ready)
	c.conns.Put(num, i)
	return i, nil
}

// standAlone begins a connection to oneself.
func (i *conn) standAlone() {
	c := i.ctx
	i.fragment.Store(int32(c.unit(c.deviceMTU()) - link.HeaderSize))
	c.nic.mustLock()
	err := i.api.up(i.api.hello())
	c.nic.unlock()
	i.resolve(kit.StateUp, err)
}

// Up implements link.Handler.
func (c *Context) Up(lc *link.Conn) {
	i := lc.User.(*conn)
	i.lc = lc
	c.fitMTU(i)
	if err := i.api.up(lc.Hello()); err != nil {
		lc.Close(c.nic.now, true)
		i.resolve(kit.StateBroken, err)
		return
	}
	i.resolve(kit.StateUp, nil)
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
	for i := range c.conns.All() {
		if i.route == r && i.lc != nil && i.lc.Up() {
			c.fitMTU(i)
		}
	}
}

// Down implements link.Handler.
func (c *Context) Down(lc *link.Conn, err error) {
	i := lc.User.(*conn)
	if errors.Is(err, link.ErrClosed) {
		i.finish(kit.StatePeerClosed, nil)
		return
	}
	sentinel := driver.ErrBroken
	switch {
	case errors.Is(err, link.ErrAuth):
		sentinel = driver.ErrAuth
	case errors.Is(err, link.ErrVersion):
		sentinel = driver.ErrVersion
	case errors.Is(err, link.ErrProtocol):
		i.life.Tally.Bad.Add(1)
	}
	err = fmt.Errorf("%w: %s: %w", sentinel, c.props.Device, err)
	if why := i.route.why.Load(); why != nil {
		err = fmt.Errorf("%w: %w", err, *why)
	}
	if !i.resolve(kit.StateBroken, err) {
		i.finish(kit.StateBroken, err)
	}
}

// Deliver implements link.Handler.
func (c *Context) Deliver(lc *link.Conn, f link.Fragment) { lc.User.(*conn).api.deliver(f) }

// Place implements link.Handler.
func (c *Context) Place(lc *link.Conn, p *link.Placement) { lc.User.(*conn).api.place(p) }

// resolve ends connecting, one way or the other. It tells whether this call did.
func (i *conn) resolve(s kit.State, reason error) bool {
	if reason != nil {
		s = kit.StateBroken
	}
	did, _ := i.life.Resolve(s, reason) // link ends no connection before it is up
	return did
}

// wake wakes who sleeps on the instance.
func (i *conn) wake() { i.ctx.nic.waits.Wake(&i.life) }

// finish ends a connection that is up and wakes whoever waits for it.
func (i *conn) finish(s kit.State, reason error) {
	i.life.Finish(s, reason)
	i.life.Ended()
	i.ctx.anyone.Tell()
	i.wake()
}

// announce tells those who wait that a message has come.
func (i *conn) announce() {
	if i.life.Arrived() {
		i.ctx.anyone.Tell()
	}
	i.wake()
}

// misbehaved breaks the connection because of what the peer sent. The engine's.
func (i *conn) misbehaved(what string) {
	i.life.Tally.Bad.Add(1)
	i.lc.Close(i.ctx.nic.now, true)
	i.finish(kit.StateBroken, fmt.Errorf("%w: %s: the peer violated the protocol: %s", driver.ErrBroken, i.ctx.props.Device, what))
}

// Peer implements driver.Instance.
func (i *conn) Peer() string { return i.life.Peer() }

// Err implements driver.Ender.
func (i *conn) Err() error { return i.life.Failure("connection") }

// Path implements driver.Instance.
func (i *conn) Path() string {
	if i.toSelf {
		return "copy"
	}
	return i.ctx.nic.dev.Mode()
}

// ConnectWait implements driver.Instance.
func (i *conn) ConnectWait(ctx context.Context) error {
	return i.life.ConnectWait(ctx, func() string {
		if i.route != nil {
			if err := i.route.why.Load(); err != nil {
				return i.ctx.props.Device + ": " + (*err).Error()
			}
		}
		return i.ctx.props.Device + ": peer has not answered"
	})
}

// Disconnect implements driver.Instance.
func (i *conn) Disconnect() error {
	switch i.life.State() {
	case kit.StateClosed:
		return i.life.Failure("disconnect")
	case kit.StateUp:
		if i.life.Enter() {
			busy := i.api.busy()
			i.life.Leave()
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
	old, did := i.life.Close()
	if !did {
		return
	}
	if old == kit.StateUp {
		i.life.Tally.Disconnects.Store(1)
	}
	i.wake()
	i.life.Exclude()
	c := i.ctx
	n := c.nic
	n.mustLock()
	n.clock()
	if i.lc != nil {
		i.lc.Close(n.now, false)
		n.next = 0
		n.due.Store(0)
	}
	i.api.drop()
	n.unlock()
	n.run()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns.Remove(i.num, i)
	if i.route != nil {
		c.leaving = append(c.leaving, i)
		n.leaving.Add(1)
		c.sweep()
	}
}

// sweepRoutes gives up the routes that connections have left, of all contexts. It is the keeper's: nobody else may call
// this driver again.
func (n *nic) sweepRoutes() {
	if n.leaving.Load() == 0 {
		return
	}
	n.mustLock()
	all := n.contexts
	n.unlock()
	for _, c := range all {
		if c != nil {
			c.mu.Lock()
			c.sweep()
			c.mu.Unlock()
		}
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
	c.nic.leaving.Add(int32(len(kept) - len(c.leaving)))
	c.leaving = kept
}
