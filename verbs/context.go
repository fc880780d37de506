//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// opened is an open port of an RDMA device.
type opened struct {
	kit.Context[conn]

	opts options

	dev      *ibv.Context
	pd       *ibv.PD
	channel  *ibv.CompChannel
	cache    *regcache.Cache[*ibv.MR]
	managers *connect.Managers
	at       place        // as published
	num      int          // of the port
	vector   int          // of the completion queues: that of the rank, so that the interrupts of ranks spread over CPUs
	gid      ibv.GIDEntry // of the port; the goroutine that watches events changes it
	pkey     uint16       // of the port; the same goroutine changes it
	lastDown atomic.Int64 // when the port's link went down, in Unix nanoseconds; 0: never
	isDown   atomic.Bool  // the port is down
	maxWrite int          // bytes of one RDMA write or read
	inline   int          // bytes that a request may carry itself, as far as queue pairs have shown; guarded by Mu
	fixed    bool         // the device cannot make a completion queue larger; guarded by Mu
	grh      bool         // all paths need the peer's GID
	windows  atomic.Bool  // remote keys of receives are those of memory windows
	shared   *shared      // receives of the small track for all peers; nil: each connection has its own

	done  completions
	waits kit.Watch

	// Guarded by Mu.
	regions     map[*region]struct{}
	registering int     // regions that are not in regions yet
	stuck       []*conn // removed, while the device has not closed their queue pairs
	staging     kit.Staging
	tasks       sync.WaitGroup
	stop        func()
}

// smallContext adds the methods of the small track to a context.
type smallContext struct {
	*opened
	kit.Prober[conn]
}

var (
	_ driver.Prober          = smallContext{}
	_ driver.Registrar       = smallContext{}
	_ driver.Registrar       = (*opened)(nil)
	_ kit.ContextHooks[conn] = (*opened)(nil)
)

// registrar registers memory for the cache.
type registrar struct {
	pd      *ibv.PD
	relaxed ibv.Access // AccessRelaxedOrdering, or nothing
}

// Register implements regcache.Registrar. The cache has pinned memory of the Go heap.
func (r registrar) Register(b []byte, access regcache.Access) (*ibv.MR, error) {
	at := address(b)
	return r.pd.RegMRAt(at, uint64(len(b)), at, ibv.Access(access)|r.relaxed)
}

func (registrar) Deregister(mr *ibv.MR) error { return mr.Close() }

func openContext(props driver.Properties, o options, a driver.Attributes) (_ *opened, err error) {
	c := &opened{opts: o, stop: func() {}, regions: make(map[*region]struct{})}
	c.init(props, a)
	defer func() {
		if err != nil {
			_ = c.Release()
		}
	}()
	p, err := openPort(o, props.Device)
	if err != nil {
		return nil, err
	}
	c.dev, c.num, c.gid, c.pkey = p.dev, p.num, p.gid, p.pkey
	c.vector = a.Rank % max(c.dev.Query().CompVectors, 1)
	if err = c.makeQueues(p, a.SessionSize); err != nil {
		return nil, err
	}
	at := p.forManagers(o)
	c.managers, err = connect.Open(connect.Config{
		Incarnation: c.Incarnation, Secret: a.Secret,
		Include: o.managers, Exclude: o.exclude, Options: o.manager, Timeout: o.deadTime,
	}, at)
	if err != nil {
		return nil, err
	}
	c.at = place{network: at.Network(), card: c.managers.Card()}
	if err = c.Publish(c.at.String(), c.at.domain(props.Device, c.managers.Names())); err != nil {
		return nil, err
	}
	var live context.Context
	live, c.stop = context.WithCancel(context.Background())
	c.tasks.Go(c.pump)
	c.tasks.Go(func() { c.keep(live) })
	c.tasks.Go(func() { c.watch(live) })
	return c, nil
}

func (c *opened) init(props driver.Properties, a driver.Attributes) {
	self := driver.Context(c)
	if props.Track == driver.Small {
		self = smallContext{c, c.Prober()}
	}
	c.Init(c, func(n *conn) *kit.Conn { return &n.Conn }, self, props, urlVersion, a)
	c.waits = kit.Watch{Device: completionWaits{c}, Spins: spins, Never: true}
	c.Anyone.Watch = &c.waits
}

func (c *opened) makeQueues(p *port, peers int) (err error) {
	attr := c.dev.Query()
	c.inline, c.grh = inlineSize, p.attr.GRHRequired
	if attr.VendorID == vendorMicrosoft {
		c.inline = 0
	}
	c.maxWrite = int(min(p.attr.MaxMessage, 1<<30))
	if attr.SoftRoCE() {
		c.maxWrite = softPackets * p.attr.ActiveMTU.Bytes()
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	c.windows.Store(attr.MemoryWindow2 && !c.opts.noWindows && attr.MaxQPWR >= windowSends && c.canWindow())
	if c.channel, err = c.dev.CreateCompChannel(); err != nil {
		return err
	}
	memory := registrar{pd: c.pd}
	if c.opts.relaxed {
		memory.relaxed = ibv.AccessRelaxedOrdering
	}
	c.cache = regcache.New[*ibv.MR](memory, regcache.Config{Name: Name + " " + c.Props.Device})
	if err := c.shareReceives(peers); err != nil {
		return err
	}
	if need := c.leastRequests(); attr.MaxQPWR < need {
		return fmt.Errorf("%w: a connection needs queues of %d requests, the device has %d: use a smaller option window, or another driver",
			driver.ErrInvalid, need, attr.MaxQPWR)
	}
	if err := c.firstQueue(peers); err != nil {
		return err
	}
	return c.tryQueuePair()
}

// manyPeers is the number of peers from which on receives are shared, unless option srq is set.
const manyPeers = 32

// shareReceives makes the shared receive queue, if the track, the option and the number of peers ask for one.
func (c *opened) shareReceives(peers int) (err error) {
	attr := c.dev.Query()
	limit := min(attr.MaxSRQWR, attr.MaxCQE/2, sharedMax)
	depth := c.opts.srq
	switch {
	case c.Props.Track != driver.Small || depth == srqOff:
		return nil
	case depth > limit:
		return fmt.Errorf("%w: option srq=%d: the device allows for %d", driver.ErrInvalid, depth, limit)
	case depth == srqAuto:
		if peers <= manyPeers || limit < peers*sharedPeer {
			return nil
		}
		depth = min(limit, (peers+peers/4)*sharedPeer+8*c.opts.window)
	}
	c.shared, err = newShared(c, depth)
	if err != nil && c.opts.srq == srqAuto {
		c.shared, err = nil, nil // each connection gets receives of its own
	}
	return err
}

func (c *opened) Dial(num uint32, peer string, u driver.URL) (*conn, error) {
	to, err := parsePlace(u.Rest)
	if err != nil {
		return nil, err
	}
	n, err := c.newConn(num, peer, u)
	if err != nil {
		return nil, err
	}
	n.end, err = c.managers.NewEndpoint(&connect.EndpointConfig{
		PeerIncarnation: u.Incarnation, PeerCard: to.card, PeerName: peer,
		QPs: n.api.queues(), UserData: n.api.hello().encode(), Prepare: n.prepare, Wake: n.woken,
	})
	if err != nil {
		c.discard(n)
		return nil, err
	}
	n.made.Store(true)
	n.endpointChanged() // it may have changed before n.end was set
	return n, nil
}

func (c *opened) Reach(to driver.URL) error {
	theirs, err := parsePlace(to.Rest)
	if err != nil {
		return err
	}
	why, err := c.managers.Apart(theirs.card)
	if err != nil {
		return err
	}
	if why == "" {
		why = c.at.network.Apart(theirs.network)
	}
	if why != "" {
		return fmt.Errorf("%w: %s", driver.ErrUnreachable, why)
	}
	return nil
}

func (c *opened) Count(to *driver.Counters) {
	if c.cache != nil {
		r := c.cache.Counters()
		to.RegistrationHits += r.Hits
		to.RegistrationMisses += r.Misses
		to.RegistrationEvictions += r.Evicted
	}
	if c.managers != nil {
		s := c.managers.Stats()
		to.Refused += uint64(s.Refused)
		to.BadFrames += uint64(s.BadMessages)
	}
}

// Release implements kit.ContextHooks. It frees everything in the order that the device requires.
func (c *opened) Release() error {
	// Connections go first, because they need the pump and the device's events. Regions that are being registered must be known.
	for {
		c.Mu.Lock()
		left := c.Conns.Len() + c.registering
		c.Mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	c.stop()
	var errs []error
	try := func(f func() error) { errs = append(errs, f()) }
	if c.managers != nil {
		c.managers.Close()
	}
	c.Mu.Lock()
	regions := slices.Collect(maps.Keys(c.regions))
	c.Mu.Unlock()
	for _, r := range regions {
		// A region that the device cannot release yet stays registered: the user's Deregister tries again.
		if err := r.Deregister(); !errors.Is(err, driver.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, n := range c.stuck {
		if n.closeQueues() {
			n.gone.Store(true)
			n.Wake()
		}
	}
	if c.cache != nil {
		try(c.cache.Close)
	}
	c.staging.Close()
	c.done.mustLock()
	c.done.dead = driver.ErrClosed
	c.done.unlock()
	if c.shared != nil {
		try(c.shared.close)
	}
	for _, q := range c.done.queues {
		try(q.cq.Close)
	}
	if c.channel != nil {
		_ = c.channel.SetDeadline(time.Unix(1, 0)) // pump ends also if a queue cannot be destroyed, and then the channel
		try(c.channel.Close)
	}
	if c.pd != nil {
		try(c.pd.Close)
	}
	if c.dev != nil {
		try(c.dev.Close)
	}
	c.tasks.Wait()
	return errors.Join(errs...)
}
