//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/bywash/bywash/driver"
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

// Endpoints offer, and queue pairs use, what the port has now. A port that has left its network stays as it was.
func TestRenewedPort(t *testing.T) {
	a, b := aHost(t, nil), aHost(t, nil)
	p := *aPort("renewed")
	p.GIDIndex, p.GID[15], p.MTU = 7, 9, 512
	if err := a.m.Renew(&p); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []func(*Port){
		func(p *Port) { p.GID = netip.MustParseAddr("2001:db8::1").As16() },
		func(p *Port) { p.PKey = 5 },
		func(p *Port) { p.MTU = 3 },
	} {
		q := p
		wrong(&q)
		if err := a.m.Renew(&q); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("renewed as %+v: %v", q, err)
		}
	}
	ea, eb := a.endpoint(b, nil), b.endpoint(a, nil)
	ea.await(t, Ready)
	eb.await(t, Ready)
	if r := eb.qps[0].path; r.PeerGID != p.GID || r.MTU != 512 {
		t.Errorf("the peer was offered GID %v and MTU %d", netip.AddrFrom16(r.PeerGID), r.MTU)
	}
	if got := ea.qps[0].path.GIDIndex; got != 7 {
		t.Errorf("the queue pair uses GID %d, want 7", got)
	}
}

// An endpoint that waits for a request while its port changes replies with what the port is then.
func TestWaitingEndpointOffersTheRenewedPort(t *testing.T) {
	onHost(t)
	asks, waits := aHost(t, nil), aHost(t, nil)
	e := waits.endpoint(asks, nil)
	p := *aPort("renewed")
	p.GIDIndex, p.MTU, p.GID[15] = 7, 512, 20
	if err := waits.m.Renew(&p); err != nil {
		t.Fatal(err)
	}
	other := asks.endpoint(waits, nil)
	e.await(t, Ready)
	other.await(t, Ready)
	if _, path := other.qps[0].did(); path.PeerGID != p.GID || path.MTU != 512 {
		t.Errorf("the peer was offered GID %v and MTU %d", netip.AddrFrom16(path.PeerGID), path.MTU)
	}
}

// A port whose MTU has changed without an event is offered with the present one, or with the last known if that cannot be
// read.
func TestPresentMTUIsOffered(t *testing.T) {
	for present, want := range map[int]int{512: 512, 0: 1024} {
		a, b := aHost(t, func(_ *Config, p *Port) { p.PresentMTU = func() int { return present } }), aHost(t, nil)
		ea, eb := a.endpoint(b, nil), b.endpoint(a, nil)
		ea.await(t, Ready)
		eb.await(t, Ready)
		_, pa := ea.qps[0].did()
		_, pb := eb.qps[0].did()
		if pa.MTU != want || pb.MTU != want {
			t.Errorf("present MTU %d: the path has %d and %d, want %d", present, pa.MTU, pb.MTU, want)
		}
	}
}
