//go:build linux

package carrier

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// errPending means that the kernel is asking for the neighbour.
var errPending = errors.New("pending")

const (
	nudValid = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT | unix.NUD_NOARP
	// nudKept are the states that never time out.
	nudKept = unix.NUD_PERMANENT | unix.NUD_NOARP
)

func linkOf(a *netlink.LinkAttrs) Link {
	const up = unix.IFF_UP | unix.IFF_RUNNING
	l := Link{Name: a.Name, index: a.Index, MTU: a.MTU, up: a.RawFlags&up == up}
	copy(l.MAC[:], a.HardwareAddr)
	return l
}

// lookupError returns ErrGone if the device does not exist, else err.
func lookupError(err error) error {
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return ErrGone
	}
	return err
}

// look asks the kernel for the way to a peer. With errPending there is no answer yet, and an event will follow. probe
// makes the kernel confirm the neighbour even if it is known.
func (r *Resolver) look(p *Peer, probe bool) (Hop, error) {
	link := r.link.Load()
	fail := func(via netip.Addr, err error) (Hop, error) {
		p.asked = netip.Addr{}
		return Hop{}, problem(link.Name, p.dst, via, lookupError(err))
	}
	switch {
	case link.gone:
		return fail(netip.Addr{}, ErrGone)
	case !link.up:
		return fail(netip.Addr{}, errDown)
	}
	hop, err := r.route(p.dst, p.src, link)
	if err != nil {
		return fail(netip.Addr{}, err)
	}
	// Store it before the look-up of the neighbour, so that an event after the look-up finds it.
	if old := p.via.Load(); old == nil || *old != hop.Via {
		via := hop.Via
		p.via.Store(&via)
	}
	n, err := r.neighbour(hop.Via)
	if err != nil {
		return fail(hop.Via, err)
	}
	silent := n.State&unix.NUD_FAILED != 0 && p.asked == hop.Via
	if n.State&(nudValid|unix.NUD_INCOMPLETE) == 0 && !silent || probe && !kept(n) {
		if err = r.ask(hop.Via); err == nil {
			n, err = r.neighbour(hop.Via) // if the kernel does not ask, there is no event: the state shows it
		}
		if err != nil {
			return fail(hop.Via, err)
		}
	}
	if p.asked = hop.Via; n.State&nudValid == 0 {
		if n.State&unix.NUD_FAILED == 0 {
			return Hop{}, errPending
		}
		return Hop{}, problem(link.Name, p.dst, hop.Via, errUnreachable)
	}
	p.asked = netip.Addr{}
	if copy(hop.DstMAC[:], n.HardwareAddr); len(n.HardwareAddr) != len(hop.DstMAC) || !hop.DstMAC.unicast() {
		return fail(hop.Via, errUnreachable) // the device or entry has no ARP
	}
	return hop, nil
}

// route looks up dst in the routing tables, for frames that leave through the device. Rules (ip rule) can make the tables
// depend on the address src of this host; without it the kernel chooses one.
func (r *Resolver) route(dst, src netip.Addr, link *linkState) (Hop, error) {
	if !dst.IsValid() || dst.IsUnspecified() || dst.IsMulticast() {
		return Hop{}, errAddress
	}
	if dst.IsLoopback() {
		return Hop{}, errOwn
	}
	to := net.IP(dst.AsSlice())
	// Only a look-up without a device finds an address of this host on another device. Link-local addresses mean
	// nothing then. A failure is ignored, as the route may need the device.
	if !dst.IsLinkLocalUnicast() && r.isOwn(dst) {
		return Hop{}, errOwn
	}
	// If a look-up names a device without a route, IPv4 assumes that every address is on its segment; with
	// RTM_F_FIB_MATCH it returns only routes of the tables.
	through := &netlink.RouteGetOptions{OifIndex: r.index, FIBMatch: true}
	from := src.IsValid() && src.Is4() == dst.Is4() && !dst.IsLinkLocalUnicast() && r.isOwn(src)
	if from {
		through.SrcAddr = src.AsSlice()
	}
	if _, err := r.handle.RouteGetWithOptions(to, through); err != nil {
		return Hop{}, routeError(err)
	}
	through.FIBMatch = false
	routes, err := r.handle.RouteGetWithOptions(to, through)
	if err != nil {
		return Hop{}, routeError(err)
	}
	if len(routes) == 0 {
		return Hop{}, errNoRoute
	}
	if from {
		routes[0].Src = through.SrcAddr // which the kernel does not repeat
	}
	return hopOf(&routes[0], dst, link)
}

// isOwn reports whether an address is this host's, on whatever device.
func (r *Resolver) isOwn(a netip.Addr) bool {
	routes, err := r.handle.RouteGetWithOptions(a.AsSlice(), nil)
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

func hopOf(route *netlink.Route, dst netip.Addr, link *linkState) (Hop, error) {
	switch {
	case route.Type == unix.RTN_LOCAL:
		return Hop{}, errOwn
	case route.Type == unix.RTN_BROADCAST || route.Type == unix.RTN_MULTICAST || route.Type == unix.RTN_ANYCAST:
		return Hop{}, errAddress
	case route.Type != unix.RTN_UNICAST || route.LinkIndex != link.index:
		return Hop{}, errNoRoute
	}
	hop := Hop{Via: dst, SrcMAC: link.MAC, MTU: link.MTU}
	src, ok := netip.AddrFromSlice(route.Src)
	if !ok {
		return Hop{}, errNoRoute // this host has no source address
	}
	hop.Src = src.Unmap()
	if gw, ok := netip.AddrFromSlice(route.Gw); ok && !gw.IsUnspecified() {
		hop.Via = gw.Unmap()
	}
	if via, ok := route.Via.(*netlink.Via); ok { // IPv4 through an IPv6 router (RFC 8950)
		if gw, ok := netip.AddrFromSlice(via.Addr); ok {
			hop.Via = gw.Unmap()
		}
	}
	if route.MTU > 0 {
		hop.MTU = min(hop.MTU, route.MTU)
	}
	return hop, nil
}

// routeError maps the kernel's errors that mean that there is no route: none at all, unreachable, prohibit, blackhole
// (ip-route(8)).
func routeError(err error) error {
	for _, e := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errNoRoute, err)
		}
	}
	return err
}

// neighbour reads one entry of the neighbour table. An absent entry is in no state.
func (r *Resolver) neighbour(addr netip.Addr) (*netlink.Neigh, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = r.sockets
	req.AddData(&netlink.Ndmsg{Family: family(addr), Index: uint32(r.index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || err == nil && len(messages) == 0 {
		return &netlink.Neigh{}, nil
	}
	if err != nil {
		return nil, err
	}
	return netlink.NeighDeserialize(messages[0])
}

// kept reports whether the administrator, a routing daemon or the kernel itself maintains an entry. NTF_USE would take
// such an entry away from them.
func kept(n *netlink.Neigh) bool {
	return n.State&nudKept != 0 || n.Flags&netlink.NTF_EXT_LEARNED != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0
}

// ask has the effect of a packet on a neighbour entry: the kernel asks for an absent or failed neighbour, confirms a
// stale one, and only updates the time of use of a reachable one.
func (r *Resolver) ask(addr netip.Addr) error {
	return r.handle.NeighSet(&netlink.Neigh{
		LinkIndex: r.index, Family: int(family(addr)), Flags: netlink.NTF_USE, IP: addr.AsSlice(),
	})
}

func family(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
