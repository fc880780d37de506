//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/kit"
)

// share is a context: a port of this host, and the sockets of its connections.
type share struct {
	kit.Context[conn]

	opts  options
	at    address // as published
	key   *handshake.Key
	waits kit.Watch

	listeners []*net.TCPListener
	poll      *poller
	watched   atomic.Bool // the connections are in poll; changes under Mu
	drain     drainState
	closing   []*conn // closed on this side, while the peer's kernel does not have everything; guarded by Mu

	pendingPeers    map[uint64]*pendingPeer // by incarnation; guarded by Mu
	turns           uint64                  // calls of Connect; guarded by Mu
	pending         pending                 // guarded by Mu
	unauthenticated unauthenticated
	onRequest       atomic.Pointer[func()]
	probes          atomic.Uint32
	refused         atomic.Uint64
	bad             atomic.Uint64

	keepAliveWoken  chan struct{}
	keepAlivePauses atomic.Bool // the keep-alive goroutine polls again within 1 ms anyway
	scheduled       atomic.Bool // something waits for the keep-alive goroutine
	live            context.Context
	stop            context.CancelFunc
	tasks           sync.WaitGroup
}

// smallContext gives a context the methods of its track.
type smallContext struct {
	*share
	kit.Prober[conn]
}

// drainEvery is how many probes may name connections that were known to have something, before one polls the
// sockets: busy peers shall not keep a quiet one's from being read.
const drainEvery = 16

func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if c.probes.Add(1)%drainEvery == 0 {
		c.takeAll()
	}
	return c.Prober.RecvProbeAny()
}

var (
	_ driver.Prober                 = smallContext{}
	_ driver.ConnectRequestReceiver = smallContext{}
	_ kit.ContextHooks[conn]        = (*share)(nil)
)

func openContext(props driver.Properties, o options, a driver.Attributes) (_ *share, err error) {
	c := &share{opts: o, pendingPeers: make(map[uint64]*pendingPeer), keepAliveWoken: make(chan struct{}, 1)}
	if c.key, err = kit.NewKey(a.Secret); err != nil {
		return nil, err
	}
	self := driver.Context(c)
	if props.Track == driver.Small {
		self = smallContext{c, c.Prober()}
	}
	c.Init(c, func(i *conn) *kit.Conn { return &i.Conn }, self, props, urlVersion, a)
	c.live, c.stop = context.WithCancel(context.Background())
	if c.poll, err = newPoller(c); err != nil {
		return nil, err
	}
	c.waits = kit.Watch{Device: sockets{c}, Spins: spins, Long: true}
	c.Anyone.Watch = &c.waits
	var port int
	var network uint64
	err = kit.InNamespace(o.netns, func() (err error) {
		c.listeners, port, err = o.listen(c.live)
		network = networkID()
		return err
	})
	if err == nil {
		const head = len("tcp:65535:0123456789abcdef:")
		c.at = address{uint16(port), network, o.addresses}.fit(driver.MaxURL - head)
		err = c.Publish(c.at.String(), c.at.domain())
	}
	if err != nil {
		c.stop()
		c.closeListeners()
		c.poll.close()
		return nil, err
	}
	c.holder(true)
	for _, l := range c.listeners {
		c.tasks.Go(func() { c.serve(l) })
	}
	c.tasks.Go(c.keep)
	return c, nil
}

func (c *share) closeListeners() {
	for _, l := range c.listeners {
		_ = l.Close()
	}
}

func (c *share) Dial(num uint32, url string, to driver.URL) (*conn, error) {
	where, err := parseAddress(to.Rest)
	if err != nil {
		return nil, err
	}
	i := c.newConn()
	if to.Incarnation == c.Incarnation {
		c.Add(i, num, url, i.api, i.api)
		if err := i.connectSelf(); err != nil {
			c.Conns.Put(num, nil)
			return nil, err
		}
		return i, nil
	}
	err = kit.InNamespace(c.opts.netns, func() (err error) {
		i.targets, err = c.at.targets(where)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Add(i, num, url, i.api, i.api)
	p := c.pendingPeer(to.Incarnation)
	i.pendingPeer = p
	p.wait(i)
	p.advance()
	return i, nil
}

func (c *share) Reach(to driver.URL) error {
	where, err := parseAddress(to.Rest)
	if err != nil {
		return err
	}
	if why := c.at.apart(where); why != "" {
		return fmt.Errorf("%w: %s", driver.ErrUnreachable, why)
	}
	return nil
}

// newConn makes a connection of the context's track. The caller holds Mu.
func (c *share) newConn() *conn {
	var i *conn
	if c.Props.Track == driver.Large {
		l := newLarge()
		i, l.api = &l.conn, l
	} else {
		s := newSmall()
		i, s.api = &s.conn, s
	}
	c.turns++
	i.ctx, i.turn, i.every = c, c.turns, c.opts.deadTime/checks
	return i
}

func (c *share) Count(to *driver.Counters) {
	to.Refused += c.refused.Load()
	to.BadFrames += c.bad.Load()
}

func (c *share) Release() error {
	c.awaitClosing()
	c.holder(false)
	c.stop()
	c.closeListeners()
	c.unauthenticated.hangUp()
	c.Mu.Lock()
	for _, p := range c.pendingPeers {
		p.hangUp()
	}
	c.Mu.Unlock()
	c.wakeKeepAlive()
	c.poll.wake()
	c.tasks.Wait()
	c.Mu.Lock()
	for _, i := range c.closing {
		i.closeSockets()
	}
	c.closing = nil
	c.Mu.Unlock()
	c.drain.end()
	c.poll.close()
	return nil
}
