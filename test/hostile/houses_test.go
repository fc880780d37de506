//go:build linux

package hostile

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/bywash/bywash/verbs/connect"
)

// containsPath reports whether a card names a socket.
func containsPath(card, name string) bool {
	return strings.Contains(card, name) || strings.Contains(card, url.PathEscape(name))
}

// envOf gives a program further variables.
func envOf(vars []string) func(*program) {
	return func(p *program) { p.cmd.Env = append(p.cmd.Env, vars...) }
}

// loopbackPort describes a port of an RDMA device whose host is reached at the loopback interface.
func loopbackPort() *connect.Port {
	return &connect.Port{
		Device: "hostile", Num: 1, LinkLayer: connect.Ethernet, GIDType: connect.GIDRoCEv2, GIDIndex: 1, MTU: 1024,
		GID: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}, MaxResponder: 16, MaxInitiator: 16,
		Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}
}

// oobAddress is the listener among this process's TCP sockets that no other part of the test has opened.
func oobAddress(t testing.TB, card string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	inodes := map[string]bool{}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, f := range fds {
		if l, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(l, "socket:[") {
			inodes[strings.Trim(l[len("socket:"):], "[]")] = true
		}
	}
	for _, line := range strings.Split(string(b), "\n")[1:] {
		f := strings.Fields(line)
		const listening = "0A"
		if len(f) < 10 || f[3] != listening || !inodes[f[9]] {
			continue
		}
		var port int
		if _, err := fmt.Sscanf(f[1][strings.IndexByte(f[1], ':')+1:], "%X", &port); err == nil {
			return fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	t.Fatalf("no listener of this process; the card is %q", card)
	return ""
}
