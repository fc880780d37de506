//go:build linux && !(386 || arm || mips || mipsle)

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
	"github.com/bywash/bywash/internal/kit"
)

// share is a context's share of a network device.
type share struct {
	kit.Context[conn]

	opts   options
	addr   address
	number uint8
	nic    *nic

	// The fields below belong to the holder of the NIC's lock.
	end    *link.Endpoint
	routes []*route // by link.Route

	live  context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// smallContext adds the methods of the small track to a context.
type smallContext struct {
	*share
	kit.Prober[conn]
}

var (
	_ driver.Prober          = smallContext{}
	_ link.Carrier           = (*share)(nil)
	_ link.Handler           = (*share)(nil)
	_ kit.ContextHooks[conn] = (*share)(nil)
)

func openContext(props driver.Properties, o options, addr address, mtu int, a driver.Attributes) (_ *share, err error) {
	if _, err = kit.NewKey(a.Secret); err != nil {
		return nil, err
	}
	c := &share{opts: o, addr: addr, routes: make([]*route, 1)}
	self := driver.Context(c)
	if props.Track == driver.Small {
		self = smallContext{c, c.Prober()}
	}
	c.Init(c, func(i *conn) *kit.Conn { return &i.Conn }, self, props, urlVersion, a)
	c.live, c.stop = context.WithCancel(context.Background())
	if c.nic, err = openNIC(props.Device, o); err != nil {
		return nil, err
	}
	if size := &c.Props.Capabilities.BufferSize; *size > 0 { // the NIC may be open since the device had another MTU
		*size = min(*size, (c.unit(mtu)-link.HeaderSize-16)&^7)
	}
	c.Anyone.Watch = &c.nic.waits
	cfg := link.Config{
		ID: c.Incarnation, Secret: a.Secret, Encrypt: o.encrypt, MTU: c.linkMTU(mtu), Unit: c.unit(mtu),
		Window: o.windowOf(props.Track), Pool: c.nic.pool, MaxConns: 2 * kit.MaxInstances, DeadTime: o.deadTime,
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
		if err = c.Publish(c.addr.String(), ""); err == nil {
			return c, nil
		}
	}
	_ = n.release()
	return nil, err
}

// linkMTU returns the length of the largest link packet for IP packets (kind ether: Ethernet payloads) of mtu bytes.
// Only the large track without encryption has packets of several chunks.
func (c *share) linkMTU(mtu int) int {
	m := &c.nic.memory
	if m.run == 0 || c.Props.Track != driver.Large || c.opts.encrypt {
		return c.unit(mtu)
	}
	return max(c.unit(mtu), min(mtu-c.opts.kind.Overhead(), m.run*m.size-dataAt)-prefixSize)
}

// unit returns how much of such a packet one chunk holds.
func (c *share) unit(mtu int) int {
	m := &c.nic.memory
	// The peer's chunks bound it as well, and they may be as small as those of this side.
	return min(mtu-c.opts.kind.Overhead(), m.umem.MaxRx()-c.opts.kind.HeaderLen(true), m.size-dataAt) - prefixSize
}

func (c *share) deviceMTU() int {
	l, _ := c.nic.res.Link() // of a device that is down, too
	return l.MTU
}

func (c *share) Dial(num uint32, url string, peer driver.URL) (*conn, error) {
	to, err := parseAddress(peer.Rest)
	if err != nil {
		return nil, err
	}
	if why := to.apart(c.addr); why != "" {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, why)
	}
	i, err := c.newConn(num, url)
	if err != nil {
		return nil, err
	}
	if peer.Incarnation == c.Incarnation {
		i.toSelf = true
		i.connectSelf()
	} else {
		var r link.Route
		r, i.route = c.routeTo(to)
		call := c.end.Dial
		if c.Incarnation > peer.Incarnation {
			call = c.end.Listen
		}
		c.nic.mustLock()
		c.nic.clock()
		i.lc, err = call(c.nic.now, r, peer.Incarnation, i.api.hello(), i)
		c.nic.next = 0     // tick the new connection at once
		c.nic.due.Store(0) // else a queue goroutine without frames sleeps
		c.nic.unlock()
		if err != nil {
			c.dropRoute(i.route)
			c.nic.mustLock()
			i.api.drop()
			c.nic.unlock()
			c.Conns.Put(num, nil)
			return nil, c.full(err)
		}
		c.nic.wakeQueues()
	}
	return i, nil
}

func (c *share) Reach(to driver.URL) error {
	a, err := parseAddress(to.Rest)
	if err != nil {
		return err
	}
	if why := a.apart(c.addr); why != "" {
		return fmt.Errorf("%w: %s", driver.ErrUnreachable, why)
	}
	return nil
}

func (c *share) Count(to *driver.Counters) {
	if c.IsClosed() {
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

func (c *share) Drain() bool {
	c.nic.run()
	return true
}

func (c *share) Release() error {
	c.closeAll()
	c.stop()
	c.tasks.Wait()
	n := c.nic
	n.mustLock()
	n.contexts[c.number] = nil
	c.end.Abandon() // connections whose peers did not confirm
	n.unlock()
	return n.release()
}

// closeAll gives peers a short time to confirm that the connections are closed.
func (c *share) closeAll() {
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

// chooseAddress chooses the address at which peers reach a device.
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
