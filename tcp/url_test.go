//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
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
