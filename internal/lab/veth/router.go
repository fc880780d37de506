//go:build linux

package veth

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// route makes the middle namespace forward, and the ends use it.
func (p *Pair) route(cfg Config) error {
	err := p.Router[0].Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn IPv4 forwarding on: %w", err)
		}
		if cfg.NoIPv6 {
			return nil
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn IPv6 forwarding on: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range p.Ends {
		if err := p.Ends[i].routeBy(&p.Router[i]); err != nil {
			return err
		}
	}
	return nil
}

// routeBy makes the router the default next hop.
func (e *End) routeBy(router *End) error {
	return in(e.Namespace, func(h *netlink.Handle) error {
		for _, by := range []netip.Prefix{router.IPv4, router.IPv6} {
			if !by.IsValid() {
				continue
			}
			route := &netlink.Route{LinkIndex: e.Index, Gw: by.Addr().AsSlice()}
			if err := h.RouteAdd(route); err != nil {
				return fmt.Errorf("route by %s: %w", by.Addr(), err)
			}
		}
		return nil
	})
}
