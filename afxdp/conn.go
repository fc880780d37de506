//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// conn is the common part of the instances of both tracks. Its owner is the goroutine that uses the instance. The
// engine is the goroutine that holds the NIC's lock. Owner and engine share rings and atomic fields.
type conn struct {
	kit.Conn

	ctx    *share
	api    track
	route  *route
	toSelf bool

	// The fields below belong to the engine.
	lc      *link.Conn // nil on a connection to oneself
	waits   bool       // is in the NIC's backlog, or its copies
	leaving bool       // closed, while the peer may not know yet

	marked    atomic.Bool
	nextDirty *conn
	pending   atomic.Int32 // fragments and transfers that are not acknowledged
	fragment  atomic.Int32 // bytes of a message in one packet
}

// track is the part of a connection that depends on its track.
type track interface {
	driver.Instance
	kit.ConnHooks
	// hello returns the data for the peer.
	hello() []byte
	// up is called by the engine when the connection is established, with the peer's hello.
	up(hello []byte) error
	// serve is called by the engine to do what the owner has asked for.
	serve()
	// deliver and place are called by the engine for messages that arrive.
	deliver(f link.Fragment)
	place(p *link.Placement)
	// drop is called by the engine to free everything, when no goroutine uses the instance any more.
	drop()
}

// A hello is helloVersion, the track, and a token that identifies this end in rdv data.
const (
	helloSize    = 16
	helloVersion = 1
)

func (i *conn) helloOf(token uint64) []byte {
	b := make([]byte, helloSize)
	b[0], b[1] = helloVersion, byte(i.ctx.Props.Track)
	binary.LittleEndian.PutUint64(b[8:], token)
	return b
}

// parseHello checks the peer's hello and returns its token.
func (i *conn) parseHello(b []byte) (token uint64, err error) {
	switch {
	case len(b) < helloSize || b[0] != helloVersion:
		return 0, fmt.Errorf("%w: the peer's hello", driver.ErrVersion)
	case driver.Track(b[1]) != i.ctx.Props.Track:
		return 0, fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	}
	return binary.LittleEndian.Uint64(b[8:]), nil
}

// newConn makes a connection. The caller holds Mu.
func (c *share) newConn(num uint32, peer string) (*conn, error) {
	var i *conn
	if c.Props.Track == driver.Large {
		l := newLarge(c)
		i, l.api = &l.conn, l
	} else {
		s := newSmall(c)
		if err := s.enter(); err != nil {
			return nil, err
		}
		i, s.api = &s.conn, s
	}
	i.ctx = c
	c.Add(i, num, peer, i.api, i.api)
	return i, nil
}

// connectSelf begins a connection to oneself.
func (i *conn) connectSelf() {
	c := i.ctx
	i.fragment.Store(int32(max(c.unit(c.deviceMTU()), link.MinMTU) - link.HeaderSize))
	c.nic.mustLock()
	err := i.api.up(i.api.hello())
	c.nic.unlock()
	if err != nil {
		i.Fail(err)
		return
	}
	i.Resolve(kit.StateUp, nil)
}

func (c *share) Up(lc *link.Conn) {
	i := lc.User.(*conn)
	i.lc = lc
	c.fitMTU(i)
	if err := i.api.up(lc.Hello()); err != nil {
		lc.Close(c.nic.now, true)
		i.Fail(err)
		return
	}
	i.Resolve(kit.StateUp, nil)
}

// fitMTU adapts a connection to the route's MTU.
func (c *share) fitMTU(i *conn) {
	if m := i.route.mtu.Load(); m >= link.MinMTU {
		_ = i.lc.SetMTU(int(m))
	}
	i.fragment.Store(int32(i.lc.MaxFragment()))
}

// routeChanged adapts connections to a change of their route.
func (c *share) routeChanged(r *route) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.nic.mustLock()
	defer c.nic.unlock()
	for i := range c.Conns.All() {
		if i.route == r && i.lc != nil && i.lc.Up() {
			c.fitMTU(i)
		}
	}
}

func (c *share) Down(lc *link.Conn, err error) {
	i := lc.User.(*conn)
	if errors.Is(err, link.ErrClosed) {
		i.Finish(kit.StatePeerClosed, nil)
		return
	}
	sentinel := driver.ErrBroken
	switch {
	case errors.Is(err, link.ErrAuth):
		sentinel = driver.ErrAuth
	case errors.Is(err, link.ErrVersion):
		sentinel = driver.ErrVersion
	}
	err = fmt.Errorf("%w: %s: %w", sentinel, c.Props.Device, err)
	if why := i.route.why.Load(); why != nil {
		err = fmt.Errorf("%w: %w", err, *why)
	}
	i.Fail(err)
}

func (c *share) Deliver(lc *link.Conn, f link.Fragment) { lc.User.(*conn).api.deliver(f) }

func (c *share) Place(lc *link.Conn, p *link.Placement) { lc.User.(*conn).api.place(p) }

// misbehaved breaks the connection because the peer violates the protocol. Only the engine calls it.
func (i *conn) misbehaved(what string) {
	i.lc.Close(i.ctx.nic.now, true)
	i.Misbehaved(what)
}

func (i *conn) Path() string {
	if i.toSelf {
		return "copy"
	}
	return i.ctx.nic.dev.Mode()
}

func (i *conn) ConnectWait(ctx context.Context) error {
	return i.Life.ConnectWait(ctx, func() string {
		if i.route != nil {
			if err := i.route.why.Load(); err != nil {
				return i.ctx.Props.Device + ": " + (*err).Error()
			}
		}
		return i.ctx.Props.Device + ": peer has not answered"
	})
}

func (i *conn) OnClose(kit.State) {
	c := i.ctx
	n := c.nic
	over := false
	n.mustLock()
	n.clock()
	if i.lc != nil {
		i.lc.Close(n.now, false)
		over = i.lc.Over()
		i.leaving = !over
		n.next = 0
		n.due.Store(0)
	}
	i.api.drop()
	n.unlock()
	n.run()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Conns.Remove(i.Number(), i)
	if over {
		c.dropRoute(i.route)
	}
}

// Gone has a goroutine of a queue drop the route: that takes Mu, for which the lock's holder must not wait.
func (c *share) Gone(lc *link.Conn) {
	if i := lc.User.(*conn); i.leaving {
		c.nic.gone = append(c.nic.gone, i)
		c.nic.goneLen.Store(int32(len(c.nic.gone)))
	}
}

// dropRoutes drops the routes of connections that are closed at both ends.
func (n *nic) dropRoutes() {
	if n.goneLen.Load() == 0 {
		return
	}
	n.mustLock()
	gone := n.gone
	n.gone = nil
	n.goneLen.Store(0)
	n.unlock()
	for _, i := range gone {
		i.ctx.Mu.Lock()
		i.ctx.dropRoute(i.route)
		i.ctx.Mu.Unlock()
	}
}
