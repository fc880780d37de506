package verbs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// Context is a port of an RDMA device, opened.
type Context struct {
	api   driver.Context // this context, with the methods of its track
	props driver.Properties
	opts  options
	inc   uint64
	url   string

	dev      *ibv.Context
	pd       *ibv.PD
	channel  *ibv.CompChannel
	cache    *regcache.Cache[*ibv.MR]
	set      *connect.Set
	mods     *connect.Modules
	maxWrite int     // bytes of one RDMA write or read
	windows  bool    // receives are reached by memory windows
	shared   *shared // receives of the small track for all peers; nil: each has its own

	done  completions
	conns kit.Connections[conn]

	waits  kit.Watch
	anyone kit.AnyWaits

	mu      sync.Mutex
	closed  bool
	cqNeed  int // completions that all queue pairs can cause
	regions map[*region]struct{}
	staging kit.Staging
	tasks   sync.WaitGroup
	stop    func()
}

// smallContext and largeContext give a context the methods of its track only.
type smallContext struct{ *Context }
type largeContext struct{ *Context }

var (
	_ driver.Prober    = smallContext{}
	_ driver.Registrar = smallContext{}
	_ driver.Registrar = largeContext{}
)

// registrar registers memory for the cache.
type registrar struct{ pd *ibv.PD }

// Register implements regcache.Registrar. The cache pins what is Go's.
func (r registrar) Register(b []byte, access regcache.Access) (*ibv.MR, error) {
	at := address(b)
	return r.pd.RegMRAt(at, uint64(len(b)), at, ibv.Access(access))
}

// Deregister implements regcache.Registrar.
func (registrar) Deregister(mr *ibv.MR) error { return mr.Close() }

func openContext(props driver.Properties, o options, a driver.Attributes) (_ *Context, err error) {
	c := &Context{
		props: props, opts: o, stop: func() {}, regions: make(map[*region]struct{}),
	}
	c.waits = kit.Watch{Device: completionWaits{c}, Spins: spins, Never: true}
	c.anyone.Watch = &c.waits
	c.conns.Init(func(n *conn) *kit.Life { return &n.life })
	c.api = driver.Context(smallContext{c})
	if props.Track == driver.Large {
		c.api = largeContext{c}
	}
	c.inc = kit.NewIncarnation(a)
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	p, err := openPort(o, props.Device)
	if err != nil {
		return nil, err
	}
	c.dev = p.dev
	if err = c.makeQueues(p, a.SessionSize); err != nil {
		return nil, err
	}
	c.set, err = connect.Open(connect.Config{
		Incarnation: c.inc, Secret: a.Secret, NoSecret: len(a.Secret) == 0,
		Include: o.managers, Exclude: o.exclude, Options: o.manager, Timeout: o.deadTime,
	})
	if err != nil {
		return nil, err
	}
	if c.mods, err = c.set.Query(p.forManagers(o)); err != nil {
		return nil, err
	}
	c.url = driver.URL{Driver: Name, Version: URLVersion, Incarnation: c.inc, Rest: c.mods.Card()}.String()
	if len(c.url) > driver.MaxURL {
		return nil, fmt.Errorf("%w: url of %d bytes, limit is %d", driver.ErrInvalid, len(c.url), driver.MaxURL)
	}
	var live context.Context
	live, c.stop = context.WithCancel(context.Background())
	c.tasks.Go(c.pump)
	c.tasks.Go(func() { c.keep(live) })
	c.tasks.Go(func() { c.watch(live) })
	return c, nil
}

func (c *Context) makeQueues(p *port, peers int) (err error) {
	attr := c.dev.Query()
	c.windows = attr.MemoryWindow2 && !c.opts.noWindows
	c.maxWrite = int(min(p.attr.MaxMessage, 1<<30))
	if attr.SoftRoCE() {
		c.maxWrite = softPackets * p.attr.ActiveMTU.Bytes()
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	if c.channel, err = c.dev.CreateCompChannel(); err != nil {
		return err
	}
	if c.done.cq, err = c.dev.CreateCQ(min(1024, attr.MaxCQE), c.channel, 0); err != nil {
		return err
	}
	c.cache = regcache.New[*ibv.MR](registrar{c.pd}, regcache.Config{Name: props(c)})
	return c.shareReceives(peers)
}

// manyPeers is from how many peers on receives are shared, unless an option says.
const manyPeers = 32

// shareReceives makes the shared receive queue, where one is wanted.
func (c *Context) shareReceives(peers int) (err error) {
	attr := c.dev.Query()
	limit := min(attr.MaxSRQWR, attr.MaxCQE/2, sharedMax)
	depth := c.opts.srq
	switch {
	case c.props.Track != driver.Small || depth == srqOff:
		return nil
	case depth > limit:
		return fmt.Errorf("%w: option srq=%d: the device allows for %d", driver.ErrInvalid, depth, limit)
	case depth == srqAuto:
		if peers <= manyPeers || limit < peers*sharedPeer {
			return nil
		}
		depth = min(limit, (peers+peers/4)*sharedPeer+8*c.opts.window)
	}
	if c.shared, err = newShared(c, depth); err == nil {
		c.cqNeed += depth
	}
	return err
}

func props(c *Context) string { return Name + " " + c.props.Device }

// Properties implements driver.Context.
func (c *Context) Properties() *driver.Properties { return &c.props }

// URL implements driver.Context.
func (c *Context) URL() string { return c.url }

func (c *Context) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Connect implements driver.Context.
func (c *Context) Connect(peer string) (driver.Instance, error) {
	u, err := kit.ParseURL(Name, URLVersion, peer, driver.MaxURL)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "connect", Err: err}
	}
	n, err := c.connect(peer, u)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Peer: peer, Op: "connect", Err: fmt.Errorf("%s: %w", c.props.Device, err)}
	}
	return n.api, nil
}

func (c *Context) connect(peer string, u driver.URL) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, driver.ErrClosed
	}
	num, err := c.conns.Free()
	if err != nil {
		return nil, err
	}
	n, err := c.newConn(num, peer, u)
	if err != nil {
		return nil, err
	}
	n.end, err = c.mods.NewEndpoint(&connect.EndpointConfig{
		PeerIncarnation: u.Incarnation, PeerCard: u.Rest, PeerName: peer,
		QPs: n.api.queues(), UserData: n.api.hello().encode(), Prepare: n.prepare, Wake: n.woken,
	})
	if err == nil {
		c.conns.Open(n)
		n.made.Store(true)
		n.endpointChanged() // what it said before
		err = n.end.Start()
	}
	if err != nil {
		if n.end != nil {
			n.end.Finalize()
			<-n.end.Done()
		}
		c.discard(n)
		return nil, err
	}
	return n, nil
}

// Counters implements driver.Context.
func (c *Context) Counters(to *driver.Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns.Counters(to)
	to.Waits += c.anyone.Slept()
	if c.cache != nil {
		r := c.cache.Counters()
		to.RegistrationHits += r.Hits
		to.RegistrationMisses += r.Misses
		to.RegistrationEvictions += r.Evicted
	}
	if c.mods != nil {
		s := c.mods.Stats()
		to.Refused += uint64(s.Refused)
		to.BadFrames += uint64(s.BadMessages)
	}
}

// Close implements driver.Context.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return &driver.Error{Driver: Name, Op: "close", Err: driver.ErrClosed}
	}
	c.closed = true
	all := c.conns.List()
	c.mu.Unlock()
	driver.Closed(c.api)
	for _, n := range all {
		n.shut()
	}
	c.anyone.Wake(false)
	c.stop()
	err := c.release()
	if err != nil {
		return &driver.Error{Driver: Name, Op: "close", Err: err}
	}
	return nil
}

// release frees everything, in the order that the device wants.
func (c *Context) release() error {
	// Connections first: they need the pump, the keeper does not mind.
	for {
		c.mu.Lock()
		left := c.conns.Len()
		c.mu.Unlock()
		if left == 0 {
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	var errs []error
	try := func(f func() error) { errs = append(errs, f()) }
	if c.mods != nil {
		c.mods.Close()
	}
	if c.set != nil {
		c.set.Close()
	}
	c.mu.Lock()
	regions := slices.Collect(maps.Keys(c.regions))
	c.mu.Unlock()
	for _, r := range regions {
		// A region that the device does not let go of stays held: the user's Deregister tries again.
		if err := r.Deregister(); !errors.Is(err, driver.ErrClosed) {
			errs = append(errs, err)
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
	if c.done.cq != nil {
		try(c.done.cq.Close)
	}
	if c.channel != nil {
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
