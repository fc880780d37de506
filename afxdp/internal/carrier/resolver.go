//go:build linux

package carrier

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// defaultProbe is how often a Resolver makes the kernel confirm neighbours. By default the kernel doubts an entry after
// half a minute.
const defaultProbe = 10 * time.Second

// Options are the options of a Resolver. The zero value works.
type Options struct {
	// Changed is called when the result of a peer's Hop has changed, and with nil when the result of [Resolver.Link]
	// has. It gets no result, which could be out of date: call Hop or Link. Calls come one at a time, from a goroutine
	// of the resolver, and none after Close has returned. It must not block and must not call the resolver's Close; it
	// may call everything else. The outcome that Resolve waits for causes no call, but the next outcome may cause one
	// before Resolve returns.
	Changed func(*Peer)

	// probe is how often neighbours are confirmed; 0 means defaultProbe. The kernel itself confirms only neighbours
	// whose traffic it sees, and it does not see AF_XDP's.
	probe time.Duration
}

// Link is the state of a device.
type Link struct {
	Name  string
	index int
	MAC   MAC
	MTU   int  // bytes of an IP packet
	up    bool // set up, with a carrier
}

// Hop is the way to a peer as the kernel sees it.
type Hop struct {
	Src    netip.Addr // the address of this host that the peer sees
	Via    netip.Addr // the next hop: the peer or a router
	DstMAC MAC        // the next hop's
	SrcMAC MAC        // the device's
	MTU    int        // bytes of an IP packet: the lesser of the device's and the route's
}

// Resolver finds the way to peers through one Ethernet device, and watches it: routes, neighbours, addresses, and the
// device. Its methods may be called by any number of goroutines. Only [Peer.Hop] is fit for a data path.
//
// It needs Linux 5.0 for look-ups of a single neighbour (RTM_GETNEIGH), and CAP_NET_ADMIN in the user namespace that
// owns the network namespace, to make the kernel ask for neighbours (NTF_USE in RTM_NEWNEIGH, rtnetlink(7)). Policy
// rules and next-hop objects are not watched: the resolver finds their changes within one Options.probe. The same holds for a
// path MTU that the kernel has learned from ICMP; for UDP the kernel learns it only if one of its sockets has the port.
//
// A device that is part of a bridge or bond has no routes and addresses: open the bridge or bond. For frames in a VLAN
// open the VLAN's device.
type Resolver struct {
	changed func(*Peer)
	probe   time.Duration
	index   int
	handle  *netlink.Handle
	sockets map[int]*nl.SocketHandle // for requests that handle lacks
	events  *nl.NetlinkSocket

	link  atomic.Pointer[linkState]
	done  chan struct{}
	kick  chan struct{} // signals that there are dirty peers
	once  sync.Once
	tasks sync.WaitGroup

	mu     sync.Mutex
	closed bool
	peers  map[*Peer]bool // true: dirty
}

type linkState struct {
	Link
	gone bool
}

// Peer is a destination that a Resolver watches.
type Peer struct {
	r       *Resolver
	dst     netip.Addr
	src     netip.Addr              // of this host, as the caller wants it
	outcome atomic.Pointer[outcome] // nil until the first
	ready   chan struct{}           // closed with the first outcome

	via   atomic.Pointer[netip.Addr] // the next hop, whose neighbour entry matters; nil: none
	asked netip.Addr                 // belongs to the worker: the neighbour that the kernel is asking for
}

type outcome struct {
	hop Hop
	err error
}

// Open begins to watch a device. Its three netlink sockets belong to the network namespace of the calling thread (see
// runtime.LockOSThread); only this call depends on the thread. It returns an error if the device does not exist or is
// no Ethernet device. A device that is down is accepted.
func Open(device string, o Options) (*Resolver, error) {
	r := &Resolver{
		changed: o.Changed, probe: o.probe, done: make(chan struct{}), kick: make(chan struct{}, 1), peers: map[*Peer]bool{},
	}
	if r.probe <= 0 {
		r.probe = defaultProbe
	}
	if r.changed == nil {
		r.changed = func(*Peer) {}
	}
	if err := r.open(device); err != nil {
		r.closeSockets()
		return nil, problem(device, netip.Addr{}, netip.Addr{}, err)
	}
	r.tasks.Add(2)
	go r.listen()
	go r.work()
	return r, nil
}

func (r *Resolver) open(device string) (err error) {
	// Subscribe first, so that changes during the look-up of the device are reported.
	r.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink subscription: %w", err)
	}
	if r.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	r.sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	found, err := r.handle.LinkByName(device)
	if err != nil {
		return lookupError(err)
	}
	a := found.Attrs()
	if a.EncapType != "ether" || len(a.HardwareAddr) != len(MAC{}) {
		return fmt.Errorf("%w, but %q", errNotEthernet, a.EncapType)
	}
	r.index = a.Index
	r.link.Store(&linkState{Link: linkOf(a)})
	return nil
}

func (r *Resolver) closeSockets() {
	if r.events != nil {
		r.events.Close()
	}
	if r.handle != nil {
		r.handle.Close()
	}
	for _, s := range r.sockets {
		s.Close()
	}
}

// Link returns the last known state of the device, without a system call. The error matches ErrGone after the device
// was deleted or moved to another namespace, which is final, and errDown while it is down.
func (r *Resolver) Link() (Link, error) {
	l := r.link.Load()
	return l.Link, l.problem()
}

func (l *linkState) problem() error {
	switch {
	case l.gone:
		return problem(l.Name, netip.Addr{}, netip.Addr{}, ErrGone)
	case !l.up:
		return problem(l.Name, netip.Addr{}, netip.Addr{}, errDown)
	}
	return nil
}

// Resolve finds the way to dst, an IPv4 address or an IPv6 address (whose zone is ignored), from the address src of this
// host, and watches it until the peer is closed. The kernel chooses the source where src is not valid, not of dst's family,
// or not an address of this host. If the next hop's MAC is unknown, the kernel asks for it, by default for three seconds at most.
// Resolve blocks until there is an outcome or ctx is done; in the latter case the error matches errUnreachable and
// ctx's error. After an error nothing is watched. Two calls for one dst return two peers.
func (r *Resolver) Resolve(ctx context.Context, dst, src netip.Addr) (*Peer, error) {
	p := &Peer{r: r, dst: dst.Unmap().WithZone(""), src: src.Unmap().WithZone(""), ready: make(chan struct{})}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, problem(r.link.Load().Name, dst, netip.Addr{}, errClosed)
	}
	r.peers[p] = true
	r.mu.Unlock()
	r.wake()
	var err error
	select {
	case <-p.ready:
		_, err = p.Hop()
	case <-ctx.Done():
		via := netip.Addr{}
		if v := p.via.Load(); v != nil {
			via = *v
		}
		err = problem(r.link.Load().Name, dst, via, fmt.Errorf("%w: %w", errUnreachable, context.Cause(ctx)))
	case <-r.done:
		err = problem(r.link.Load().Name, dst, netip.Addr{}, errClosed)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Hop returns the last known way to the peer with one atomic load and no system call. While the kernel asks for a
// neighbour, Hop returns the previous result. The error matches one of this package, or is the kernel's. The resolver
// goes on after an error, and Hop succeeds once the cause is removed (except ErrGone). After the peer or the resolver
// is closed, the result does not change.
func (p *Peer) Hop() (Hop, error) {
	o := p.outcome.Load()
	return o.hop, o.err
}

// Close ends the watch. It may be called more than once. A call of Changed for the peer that is under way may outlast
// it.
func (p *Peer) Close() {
	p.r.mu.Lock()
	delete(p.r.peers, p)
	p.r.mu.Unlock()
}

// Close ends all watches and waits for the resolver's goroutines. It may be called
// more than once, but not by Changed.
func (r *Resolver) Close() {
	r.once.Do(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		close(r.done)
		r.events.Close()
		r.tasks.Wait()
		r.events = nil
		r.closeSockets()
	})
}
