//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
)

// peerPath is the way to another context, as Send needs it. It is immutable.
type peerPath struct {
	path      carrier.Path
	headerLen int
	number    uint8 // of the context there
}

// route is a way to another context that is kept up to date. Its index in Context.routes is its link.Route.
type route struct {
	ctx  *share
	to   address
	name []byte                   // address part of the peer's url
	path atomic.Pointer[peerPath] // nil: unknown now
	mtu  atomic.Uint32            // bytes of a link packet; 0: unknown
	why  atomic.Pointer[error]    // why the path is unknown
	peer atomic.Pointer[carrier.Peer]
	stop context.CancelFunc
	refs int // guarded by Context.mu

	updating sync.Mutex // the latest hop is stored last
}

// newPath prepares the headers towards a peer.
func newPath(cfg carrier.Config, number uint8) (*peerPath, error) {
	p, err := carrier.NewPath(cfg)
	if err != nil {
		return nil, err
	}
	return &peerPath{path: p, headerLen: p.HeaderLen(), number: number}, nil
}

// config returns the settings of a path that do not depend on the peer.
func (n *nic) config(kind carrier.Kind, mac carrier.MAC, src netip.AddrPort) carrier.Config {
	cfg := carrier.Config{Kind: kind, SrcMAC: mac, Src: src}
	if kind == carrier.UDP4 {
		cfg.Checksum = n.opts.sum4 // package link has a better checksum
	}
	return cfg
}

// reply returns the way back to the sender of the frame that is being handled.
func (n *nic) reply() *peerPath {
	cfg := n.config(n.from.Kind, n.filter.MAC, n.from.Dst)
	cfg.DstMAC, cfg.Dst = n.from.SrcMAC, n.from.Src
	if n.from.Kind == carrier.Ether {
		cfg.Src = netip.AddrPortFrom(netip.Addr{}, n.opts.port)
	}
	p, err := carrier.NewPath(cfg)
	if err != nil {
		return nil // the frame's addresses are invalid
	}
	n.fromPath.path, n.fromPath.headerLen = p, p.HeaderLen()
	return &n.fromPath
}

// source identifies the sender of the frame that is being handled, for cookies.
func (n *nic) source(number uint8) []byte {
	n.fromPath.number = number
	k := n.fromKey[:0]
	a := n.from.Src.Addr().As16()
	k = append(k, a[:]...)
	k = append(k, byte(n.from.Src.Port()), byte(n.from.Src.Port()>>8))
	k = append(k, n.from.SrcMAC[:]...)
	return append(k, number)
}

// routeTo returns the route to a context, which it makes if necessary. The caller holds c.Mu.
func (c *share) routeTo(to address) (link.Route, *route) {
	for k, r := range c.routes {
		if r != nil && r.to == to && r.refs > 0 {
			r.refs++
			return link.Route(k), r
		}
	}
	r := &route{ctx: c, to: to, name: []byte(to.String()), refs: 1}
	k := 1
	for k < len(c.routes) && c.routes[k] != nil {
		k++
	}
	c.nic.mustLock()
	if k == len(c.routes) {
		c.routes = append(c.routes, r)
	} else {
		c.routes[k] = r
	}
	c.nic.unlock()
	if to.kind == carrier.Ether {
		l, _ := c.nic.res.Link() // the MAC address of a device that is down is known, too
		cfg := c.nic.config(to.kind, l.MAC, netip.AddrPortFrom(netip.Addr{}, c.opts.port))
		cfg.DstMAC, cfg.Dst = to.mac, netip.AddrPortFrom(netip.Addr{}, to.port)
		p, err := newPath(cfg, uint8(to.number))
		r.set(p, err, c.deviceMTU())
		return link.Route(k), r
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(c.live)
	c.tasks.Go(func() { r.resolve(ctx) })
	return link.Route(k), r
}

// dropRoute gives up one use of a route. The caller holds c.Mu.
func (c *share) dropRoute(r *route) {
	if r.refs--; r.refs > 0 {
		return
	}
	if r.stop != nil {
		r.stop()
	}
	c.nic.mustLock()
	for k := range c.routes {
		if c.routes[k] == r {
			c.routes[k] = nil
		}
	}
	c.nic.unlock()
}

func (r *route) set(p *peerPath, err error, mtu int) {
	if err != nil {
		r.why.Store(&err)
		r.path.Store(nil)
		return
	}
	r.mtu.Store(uint32(r.ctx.linkMTU(mtu)))
	r.why.Store(nil)
	r.path.Store(p)
}

const resolvePause = 500 * time.Millisecond

// resolve tries to find the way until it is found, and then watches it.
func (r *route) resolve(ctx context.Context) {
	n := r.ctx.nic
	for ctx.Err() == nil {
		peer, err := n.res.Resolve(ctx, r.to.ip, r.ctx.addr.ip)
		if err == nil {
			r.peer.Store(peer)
			n.routes.Store(peer, r)
			r.update()
			r.ctx.routeChanged(r) // connections may be established already, over the peer's path
			<-ctx.Done()
			n.routes.Delete(peer)
			peer.Close()
			return
		}
		r.set(nil, err, 0)
		select {
		case <-time.After(resolvePause):
		case <-ctx.Done():
		}
	}
}

// update stores the resolver's present result. Two goroutines call it: resolve's and the resolver's.
func (r *route) update() {
	peer := r.peer.Load()
	if peer == nil {
		return
	}
	r.updating.Lock()
	defer r.updating.Unlock()
	hop, err := peer.Hop()
	if err != nil {
		r.set(nil, err, 0)
		return
	}
	n := r.ctx.nic
	cfg := n.config(r.to.kind, hop.SrcMAC, netip.AddrPortFrom(hop.Src, r.ctx.opts.port))
	cfg.DstMAC, cfg.Dst = hop.DstMAC, netip.AddrPortFrom(r.to.ip, r.to.port)
	p, err := newPath(cfg, uint8(r.to.number))
	r.set(p, err, hop.MTU)
}

// routeChanged is the resolver's Changed.
func (n *nic) routeChanged(p *carrier.Peer) {
	if p == nil {
		n.linkChanged()
		return
	}
	if r, ok := n.routes.Load(p); ok {
		r.(*route).update()
		r.(*route).ctx.routeChanged(r.(*route))
	}
}

// linkChanged adapts the NIC to the present MAC address of the device. While the NIC is being opened, the resolver's
// goroutine may call it before n.res and n.filter are set: it leaves them alone, and open calls it at the end.
func (n *nic) linkChanged() {
	if !n.opened.Load() {
		return
	}
	n.mustLock()
	if l, err := n.res.Link(); err == nil { // under the lock: the latest address is stored last
		n.filter.MAC = l.MAC
	}
	n.unlock()
}
