//go:build linux

package baseline

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/kit"
)

// path is the way that the datagrams and segments of two ends take: between the addresses of the device that the plan
// names, in its network namespace; else between those by which the lead reaches the listener on the other machine; else
// over loopback.
type path struct {
	device, netns string
	here, there   netip.Addr
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// findPath agrees with the other end on the addresses. Both ends call it.
func findPath(s *bench.Setup, give bench.Give) (*path, error) {
	p := &path{device: s.Device, netns: s.Options["netns"]}
	listener := loopback // what the lead knows of it
	var err error
	switch {
	case p.device != "":
		if p.here, err = p.deviceAddress(s.Driver); err != nil {
			return nil, err
		}
	case s.Lead:
		if listener, p.here, err = p.toward(s.Peer); err != nil {
			return nil, err
		}
	}
	mine := []string(nil)
	if p.here.IsValid() {
		mine = []string{p.here.String()}
	}
	replies, err := bench.ExchangeLinks(give, mine)
	if err != nil {
		return nil, err
	}
	theirs := replies[s.Partner()]
	switch {
	case len(theirs) > 1 || len(theirs) == 0 && !s.Lead:
		return nil, errors.New("the other side gave no address")
	case len(theirs) == 0:
		if p.there = listener; p.device != "" && s.Peer != "" {
			p.there, err = resolve(s.Peer)
		}
		return p, err
	}
	if p.there, err = netip.ParseAddr(theirs[0]); err != nil {
		return nil, fmt.Errorf("the other side's address %q is malformed", theirs[0])
	}
	if !p.here.IsValid() {
		p.here, err = p.source(p.there)
	}
	return p, err
}

// deviceAddress is the first address of the device, IPv4 if it has one.
func (p *path) deviceAddress(kind string) (best netip.Addr, err error) {
	err = kit.InNamespace(p.netns, func() error {
		i, err := net.InterfaceByName(p.device)
		if err != nil {
			return bench.Skipf("%s: %s is no network interface: leave out --dev", kind, p.device)
		}
		addrs, err := i.Addrs()
		for _, a := range addrs {
			x, err := netip.ParsePrefix(a.String())
			if err == nil && !x.Addr().IsLinkLocalUnicast() && (!best.IsValid() || best.Is6() && x.Addr().Is4()) {
				best = x.Addr()
			}
		}
		if err == nil && !best.IsValid() {
			err = bench.Skipf("%s: %s has no IP address: ip addr add ADDRESS dev %s", kind, p.device, p.device)
		}
		return err
	})
	return best, err
}

// toward is the address of a listener at HOST:PORT, and that of this end on the way there. An empty one is on this
// machine.
func (p *path) toward(listener string) (there, here netip.Addr, err error) {
	if listener == "" {
		return loopback, loopback, nil
	}
	if there, err = resolve(listener); err == nil && there.Zone() != "" {
		err = bench.Skipf("the listener's address %s is link-local: sockets are measured between others", there)
	}
	if err != nil {
		return there, here, err
	}
	here, err = p.source(there)
	return there, here, err
}

func resolve(listener string) (netip.Addr, error) {
	a, err := net.ResolveTCPAddr("tcp", listener)
	if err != nil {
		return netip.Addr{}, err
	}
	return a.AddrPort().Addr().Unmap(), nil
}

// source is the address of this end that the kernel chooses on the way to another one. Nothing is sent.
func (p *path) source(to netip.Addr) (here netip.Addr, err error) {
	err = kit.InNamespace(p.netns, func() error {
		const discard = 9
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
		if err != nil {
			return fmt.Errorf("no route to the other side: %w", err)
		}
		defer c.Close()
		here = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		return nil
	})
	return here, err
}

// name is the path in a result, behind the protocol.
func (p *path) name(kind string) string {
	proto := strings.TrimPrefix(kind, "sock-")
	switch {
	case p.netns == "" && p.here == p.there, p.here.IsLoopback():
		return proto + "-loopback"
	case p.device != "":
		return proto + "-" + p.device
	}
	return proto + "-network"
}

// sockaddr is an address for system calls.
func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
