//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// maxAddresses is how many addresses a url holds at most.
const maxAddresses = 8

// publishable reports whether an address can be part of a url: it belongs to one host only.
func publishable(a netip.Addr) bool {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.Is4In6() && a != broadcast
}

// hostAddresses returns the addresses of a device that other hosts can reach: without loopback, and link-local ones
// only if there are no others. On a host without any it returns the loopback addresses, for processes on the same host.
func hostAddresses(device string) ([]netip.Addr, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, unavailable(device, "network interfaces cannot be listed", "", err)
	}
	var global, local, loopback []netip.Addr
	found := device == AllDevices
	for _, i := range ifs {
		if device != AllDevices && i.Name != device {
			continue
		}
		found = true
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, a := range interfaceAddresses(i) {
			switch {
			case a.IsLoopback():
				loopback = append(loopback, a)
			case a.IsLinkLocalUnicast():
				local = append(local, a.WithZone(i.Name))
			default:
				global = append(global, a)
			}
		}
	}
	if !found {
		return nil, unavailable(device, "there is no network interface of that name", "bywash info -d tcp lists them", nil)
	}
	for _, list := range [][]netip.Addr{global, local, loopback} {
		if len(list) > 0 {
			// IPv4 first: it is shorter, and more of the list fits into the url.
			slices.SortStableFunc(list, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
			return list[:min(len(list), maxAddresses)], nil
		}
	}
	return nil, unavailable(device, "it has no IP address, or is down",
		"ip addr add ADDRESS dev DEVICE; ip link set DEVICE up", nil)
}

func interfaceAddresses(i net.Interface) (list []netip.Addr) {
	all, _ := i.Addrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && publishable(p.Addr().Unmap()) {
			list = append(list, p.Addr().Unmap().WithZone(""))
		}
	}
	return list
}

// listen binds one port at all of the context's addresses: the first one of the range that is free everywhere.
func (o *options) listen(ctx context.Context) (list []*net.TCPListener, port int, err error) {
	const tries = 16 // for a port that the kernel chooses, which may be taken at another address
	ports := max(o.high-o.low+1, 1)
	if o.low == 0 {
		ports = tries
	}
	for k := range ports {
		port = 0
		if o.low > 0 {
			port = o.low + k
		}
		if list, port, err = o.listenAt(ctx, port); err == nil || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	switch {
	case err != nil && o.low > 0 && errors.Is(err, unix.EADDRINUSE):
		return nil, 0, fmt.Errorf("all ports from %d to %d are in use (give option port a wider range; "+
			"a session has two contexts a rail): %w", o.low, o.high, err)
	case err != nil:
		return nil, 0, fmt.Errorf("listen (options port and address): %w", err)
	}
	return list, port, nil
}

func (o *options) listenAt(ctx context.Context, port int) (list []*net.TCPListener, _ int, err error) {
	where := []string{""}
	if !o.wildcard {
		where = nil
		for _, a := range o.addresses {
			where = append(where, a.String())
		}
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	for _, host := range where {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if errors.Is(err, unix.EADDRNOTAVAIL) && o.ofDevice && len(o.addresses) > 1 {
			o.addresses = slices.DeleteFunc(slices.Clone(o.addresses), func(a netip.Addr) bool { return a.String() == host })
			continue // a new IPv6 address is tentative for a second, one that is in use elsewhere for good
		}
		if err != nil {
			for _, l := range list {
				_ = l.Close()
			}
			return nil, 0, err
		}
		list = append(list, l.(*net.TCPListener))
		port = l.Addr().(*net.TCPAddr).Port
	}
	return list, port, nil
}

// targets is what of a peer's address is dialed from a context at a.
func (a address) targets(to address) ([]netip.AddrPort, error) {
	if why := a.apart(to); why != "" {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, why)
	}
	var list []netip.AddrPort
	for _, x := range a.dials(to) {
		if !x.Is6() || !x.IsLinkLocalUnicast() {
			list = append(list, netip.AddrPortFrom(x, to.port))
			continue
		}
		for _, zone := range a.zones() {
			list = append(list, netip.AddrPortFrom(x.WithZone(zone), to.port))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the peer listens at %v, and no interface here has a link-local address",
			driver.ErrInvalid, to.addrs)
	}
	return list, nil
}

// zones are the interfaces that a link-local address of a peer may belong to: those of this context's own such
// addresses, or else any.
func (a address) zones() (names []string) {
	for _, x := range a.addrs {
		if x.Zone() != "" && !slices.Contains(names, x.Zone()) {
			names = append(names, x.Zone())
		}
	}
	if len(names) > 0 {
		return names
	}
	const most = 4
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 || len(names) == most {
			continue
		}
		if slices.ContainsFunc(interfaceAddresses(i), func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }) {
			names = append(names, i.Name)
		}
	}
	return names
}
