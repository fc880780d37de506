//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"net/netip"
	"testing"
)

// Ports whose networks are apart are those whose requests are rejected.
func TestNetworksAreApartWhereRequestsAreRejected(t *testing.T) {
	port := func(l LinkLayer, g GIDType, gid string, key uint16) Port {
		return Port{LinkLayer: l, GIDType: g, GID: netip.MustParseAddr(gid).As16(), PKey: key}
	}
	ports := []Port{
		port(InfiniBand, GIDInfiniBand, "fe80::1", 0xffff), port(InfiniBand, GIDInfiniBand, "fe80::2", 0xffff),
		port(InfiniBand, GIDInfiniBand, "fec0::1", 0xffff), port(InfiniBand, GIDInfiniBand, "fe80::1", 0x8001),
		port(InfiniBand, GIDInfiniBand, "fe80::1", 0x7fff), port(Ethernet, GIDRoCEv2, "192.0.2.1", 0xffff),
		port(Ethernet, GIDRoCEv2, "198.51.100.1", 0xffff), port(Ethernet, GIDRoCEv2, "2001:db8::1", 0xffff),
		port(Ethernet, GIDRoCEv2, "fe80::1", 0xffff), port(Ethernet, GIDRoCEv1, "192.0.2.1", 0xffff),
	}
	offerOf := func(p *Port) *offer {
		return &offer{linkLayer: p.LinkLayer, gidType: p.GIDType, pkey: p.PKey, gid: p.GID}
	}
	apart := 0
	for i := range ports {
		for k := range ports {
			a, b := &ports[i], &ports[k]
			want := ""
			if code := offerOf(a).fits(offerOf(b)); code != 0 {
				want = code.String()
				apart++
			}
			if got := a.Network().Apart(b.Network()); got != want {
				t.Errorf("%v and %v: got %q, want %q", a.Network(), b.Network(), got, want)
			}
			if n, err := ParseNetwork(a.Network().String()); err != nil || n != a.Network() {
				t.Errorf("%v is read as %v, %v", a.Network(), n, err)
			}
		}
	}
	if apart == 0 || apart == len(ports)*len(ports) {
		t.Errorf("%d of %d pairs are apart", apart, len(ports)*len(ports))
	}
}
