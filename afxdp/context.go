//go:build linux

package afxdp

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// Context is a network device, opened, or one's share of it.
type Context struct {
	api    driver.Context // this context, with the methods of its track
	props  driver.Properties
	opts   options
	inc    uint64
	url    string
	addr   address
	number uint8
	nic    *nic

	// Of whoever holds the NIC's lock.
	end    *link.Endpoint
	routes []*route // by link.Route

	conns  kit.Connections[conn]
	anyone kit.AnyWaits

	mu      sync.Mutex
	closed  bool
	leaving []*conn // closed here, while the peer may not know yet
	live    context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup
}

// smallContext gives a context the methods of its track only.
type smallContext struct{ *Context }

var (
	_ driver.Prober  = smallContext{}
	_ link.Carrier   = (*Context)(nil)
	_ link.Handler   = (*Context)(nil)
	_ driver.Context = (*Context)(nil)
)

func openContext(props driver.Properties, o options, addr address, mtu int, a driver.Attributes) (_ *Context, err error) {
	c := &Context{props: props, opts: o, addr: addr, routes: make([]*route, 1)}
	c.conns.Init(func(i *conn) *kit.Life { return &i.life })
	c.api = c
	if props.Track == driver.Small {
		c.api = smallContext{c}
	}
	c.live, c.stop = context.WithCancel(context.Background())
	c.inc = kit.NewIncarnation(a)
	if c.nic, err = openNIC(props.Device, o); err != nil {
		return nil, err
	}
	c.anyone.Watch = &c.nic.waits
	cfg := link.Config{
		ID: c.inc, Secret: a.Secret, Encrypt: o.encrypt, MTU: c.linkMTU(mtu), Unit: c.unit(mtu),
		Window: o.window, Pool: c.nic.pool, MaxConns: 2 * kit.MaxInstances, DeadTime: o.deadTime,
	}
	n := c.nic
	cfg.Sole = n.sole
	n.mustLock()
	k := 0
	for k < n.used && n.contexts[k] != nil {
		k++
	}
	if k == maxContexts {
		err = fmt.Errorf("%w: %d contexts on %s already", driver.ErrBusy, maxContexts, props.Device)
	} else {
		c.number, c.addr.number = uint8(k), uint16(k)
		cfg.Address = []byte(c.addr.String())
		c.end, err = link.NewEndpoint(cfg, c, c)
	}
	if err == nil {
		n.contexts[k], n.used = c, max(n.used, k+1)
	}
	n.unlock()
	if err == nil {
		c.url = driver.URL{Driver: Name, Version: URLVersion, Incarnation: c.inc, Rest: c.addr.String()}.String()
		return c, nil
	}
	_ = n.release()
	return nil, err
}

// linkMTU is how long a link packet can be in IP packets (kind ether: Ethernet payloads) of so many bytes. Only
// the large track, without encryption, has packets of several chunks.
func (c *Context) linkMTU(mtu int) int {
	m := &c.nic.memory
	if m.run == 0 || c.props.Track != driver.Large || c.opts.encrypt {
		return c.unit(mtu)
	}
	return max(c.unit(mtu), min(mtu-c.opts.kind.Overhead(), m.run*m.size-dataAt)-prefixSize)
}

// unit is how much of that one chunk holds.
func (c *Context) unit(mtu int) int {
	m := &c.nic.memory
	// What the peer's chunks hold bounds it as well, and they may be as small as ours.
	return min(mtu-c.opts.kind.Overhead(), m.umem.MaxRx()-c.opts.kind.HeaderLen(true), m.size-dataAt) - prefixSize
}

func (c *Context) deviceMTU() int {
	if l, err := c.nic.res.Link(); err == nil {
		return l.MTU
	}
	return 0
}

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
	var to address
	if err == nil {
		to, err = parseAddress(u.Rest)
	}
	if err == nil {
		err = to.reachable(c.addr)
	}
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "connect", Err: err}
	}
	i, err := c.connect(peer, u.Incarnation, to)
	if err != nil {
		return nil, &driver.Error{Driver: Name, Peer: peer, Op: "connect", Err: fmt.Errorf("%s: %w", c.props.Device, err)}
	}
	return i.api, nil
}

func (c *Context) connect(peer string, inc uint64, to address) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, driver.ErrClosed
	}
	num, err := c.conns.Free()
	if err != nil {
		return nil, err
	}
	c.sweep()
	i, err := c.newConn(num, peer)
	if err != nil {
		return nil, err
	}
	if inc == c.inc {
		i.toSelf = true
		i.standAlone()
	} else {
		var r link.Route
		r, i.route = c.routeTo(to)
		call := c.end.Dial
		if c.inc > inc {
			call = c.end.Listen
		}
		c.nic.mustLock()
		c.nic.clock()
		i.lc, err = call(c.nic.now, r, inc, i.api.hello(), i)
		c.nic.next = 0     // it begins now
		c.nic.due.Store(0) // else a keeper that finds no frames sleeps, and looks at the clock only in one round of clockPolls
		c.nic.unlock()
		if err != nil {
			c.dropRoute(i.route)
			c.nic.mustLock()
			i.api.drop()
			c.nic.unlock()
			c.conns.Put(num, nil)
			return nil, c.full(err)
		}
		c.nic.wakeKeepers()
	}
	c.conns.Open(i)
	return i, nil
}

// Counters implements driver.Context.
func (c *Context) Counters(to *driver.Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns.Counters(to)
	to.Waits += c.anyone.Slept()
	if c.closed {
		return
	}
	n := c.nic
	n.mustLock()
	s := c.end.Stats()
	bad := n.stats.bad()
	n.unlock()
	to.Retransmits += s.Retransmits
	to.BadFrames += s.Bad + bad
	to.Refused += s.Refused
	to.CreditsWaited += s.Waited
}

// Close implements driver.Context.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return &driver.Error{Driver: Name, Op: "close", Err: driver.ErrClosed}
	}
	var last driver.Counters
	c.mu.Unlock()
	c.Counters(&last)
	c.mu.Lock()
	c.closed = true
	all := c.conns.List()
	c.mu.Unlock()
	driver.Closed(c.api)
	for _, i := range all {
		i.shut()
	}
	c.anyone.Wake(false)
	c.sayGoodbye()
	c.stop()
	c.tasks.Wait()
	n := c.nic
	c.mu.Lock()
	n.leaving.Add(-int32(len(c.leaving)))
	c.leaving = nil // their routes have ended with the context
	c.mu.Unlock()
	n.mustLock()
	n.contexts[c.number] = nil
	c.drop()
	n.unlock()
	if err := n.release(); err != nil {
		return &driver.Error{Driver: Name, Op: "close", Err: err}
	}
	return nil
}

// sayGoodbye gives peers a moment to hear that we leave.
func (c *Context) sayGoodbye() {
	limit := time.Now().Add(min(c.opts.deadTime, 2*time.Second))
	for pause := 50 * time.Microsecond; time.Now().Before(limit); pause = min(2*pause, time.Millisecond) {
		c.nic.mustLock()
		left := c.end.Conns()
		c.nic.unlock()
		if left == 0 {
			return
		}
		c.nic.run()
		time.Sleep(pause)
	}
}

// drop forgets what could not be told. The caller holds the NIC's lock.
func (c *Context) drop() { c.end.Abandon() }

// chooseAddress finds what others reach a device by.
func chooseAddress(kind carrier.Kind, l carrier.Link, addrs []netip.Addr) (carrier.Kind, address, error) {
	pick := func(want carrier.Kind, fits func(netip.Addr) bool) (address, bool) {
		for _, a := range addrs {
			if fits(a) && usable(a) {
				return address{kind: want, ip: a}, true
			}
		}
		return address{}, false
	}
	if kind == carrier.UDP4 || kind == 0 {
		if a, ok := pick(carrier.UDP4, netip.Addr.Is4); ok {
			return carrier.UDP4, a, nil
		}
	}
	if kind == carrier.UDP6 || kind == 0 {
		for _, fits := range []func(netip.Addr) bool{
			func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() }, netip.Addr.Is6,
		} {
			if a, ok := pick(carrier.UDP6, fits); ok {
				return carrier.UDP6, a, nil
			}
		}
	}
	if kind == carrier.Ether || kind == 0 {
		return carrier.Ether, address{kind: carrier.Ether, mac: l.MAC}, nil
	}
	return 0, address{}, fmt.Errorf("the device has no address for carrier %v", kind)
}
