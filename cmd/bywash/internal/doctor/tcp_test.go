//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/tcp"
)

func TestTCPFindingsNameTheRemedy(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	refused := errors.New("connection refused")
	for _, x := range []struct {
		name   string
		addrs  []netip.Addr
		closed map[netip.Addr]error
		want   Level
		found  string
		remedy string
	}{
		{"good", []netip.Addr{a, b}, nil, OK, "192.0.2.1, 2001:db8::1", ""},
		{"loopback", []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, nil, Slow, "no other host", "ip addr add"},
		{"one shut", []netip.Addr{a, b}, map[netip.Addr]error{b: refused}, Slow, "2001:db8::1: connection refused", "nft list ruleset"},
		{"all shut", []netip.Addr{a}, map[netip.Addr]error{a: refused}, Blocked, "192.0.2.1", "firewall"},
	} {
		f := judgeTCP(Finding{Level: OK, Found: "can be opened"}, x.addrs, x.closed)
		if f.Level != x.want || !strings.Contains(f.Found, x.found) || (f.Remedy == "") != (x.remedy == "") || !strings.Contains(f.Remedy, x.remedy) {
			t.Errorf("%s: %v", x.name, f)
		}
	}
}

// The driver is opened on this host, and its addresses are tried.
func TestTCPIsTriedOut(t *testing.T) {
	d, err := driver.Lookup(tcp.Name)
	if err != nil {
		t.Fatal(err)
	}
	f := examineTCP(d)
	if f.Level == OK && !strings.Contains(f.Found, ", at ") || f.Level != OK && f.Remedy == "" {
		t.Errorf("%v", f)
	}
}
