//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Only ends in one network namespace reach loopback addresses, and only ends with privileged ports reach such; both
// ends get the same result.
func TestReachByURL(t *testing.T) {
	const here, there = ",000000000000000a,", ",000000000000000b,"
	for _, tt := range []struct{ name, a, b, why string }{
		{"two hosts", "4000" + here + "192.0.2.1", "4000" + there + "192.0.2.2", ""},
		{"two hosts with the same address", "4000" + here + "192.0.2.1", "4001" + there + "192.0.2.1", ""},
		{"IPv4 and IPv6", "4000" + here + "192.0.2.1", "4000" + there + "2001:db8::1", ""},
		{"loopback in one namespace", "4000" + here + "127.0.0.1", "4001" + here + "::1", ""},
		{"loopback in two namespaces", "4000" + here + "127.0.0.1", "4000" + there + "127.0.0.1", "they share no network"},
		{"loopback at one end", "4000" + here + "127.0.0.1", "4000" + here + "192.0.2.1", "they share no network"},
		{"loopback besides", "4000" + here + "127.0.0.1,192.0.2.1", "4000" + there + "127.0.0.1,192.0.2.2", ""},
		{"privileged ports", "400" + here + "192.0.2.1", "500" + there + "192.0.2.2", ""},
		{"one privileged port", "400" + here + "192.0.2.1", "5000" + there + "192.0.2.2", "one end listens at port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err1 := parseAddress(tt.a)
			b, err2 := parseAddress(tt.b)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			for _, ends := range [][2]address{{a, b}, {b, a}} {
				why := ends[0].apart(ends[1])
				if !strings.Contains(why, tt.why) || (why == "") != (tt.why == "") {
					t.Errorf("got %q, want %q", why, tt.why)
				}
				targets, err := ends[0].targets(ends[1])
				if (err == nil) != (tt.why == "") || err == nil && len(targets) == 0 {
					t.Errorf("dials %v, %v", targets, err)
				}
				loopback := func(a netip.AddrPort) bool { return a.Addr().IsLoopback() }
				if tt.name == "loopback besides" && slices.ContainsFunc(targets, loopback) {
					t.Errorf("dials loopback addresses of another namespace: %v", targets)
				}
			}
			if a.domain() == b.domain() && tt.why != "" {
				t.Errorf("both are in the domain %q", a.domain())
			}
		})
	}
}

// A context with link-local addresses dials such addresses of a peer on the interfaces of its own.
func TestLinkLocalIsDialedOnOwnInterfaces(t *testing.T) {
	own := address{port: 4000, addrs: []netip.Addr{netip.MustParseAddr("fe80::1%eth5"), netip.MustParseAddr("fe80::2%eth5")}}
	targets, err := own.targets(address{port: 4001, addrs: []netip.Addr{netip.MustParseAddr("fe80::3")}})
	want := []netip.AddrPort{netip.MustParseAddrPort("[fe80::3%eth5]:4001")}
	if err != nil || !slices.Equal(targets, want) {
		t.Errorf("dials %v, %v; want %v", targets, err, want)
	}
}

// An address of a device that cannot be listened at yet is left out; one that was asked for is an error.
func TestAddressThatCannotBeBoundIsLeftOut(t *testing.T) {
	usable, foreign := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77")
	for _, found := range []bool{true, false} {
		o := options{addresses: []netip.Addr{foreign, usable}, ofDevice: found}
		list, _, err := o.listen(t.Context())
		for _, l := range list {
			defer l.Close()
			if a := l.Addr().(*net.TCPAddr).AddrPort().Addr(); a != usable {
				t.Errorf("listens at %v", a)
			}
		}
		if (err == nil) != found || found && !slices.Equal(o.addresses, []netip.Addr{usable}) {
			t.Errorf("with addresses that were found %v: publishes %v, %v", found, o.addresses, err)
		}
	}
}
