//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel's bytes are no attack, but a new attribute or family must not stop the watch.
func FuzzEvent(f *testing.F) {
	route := []byte{unix.AF_INET, 24, 0, 0, 254, 2, 253, 1, 0, 0, 0, 0, 8, 0, 1, 0, 192, 0, 2, 0}
	neighbour := []byte{unix.AF_INET, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 1, 8, 0, 1, 0, 192, 0, 2, 2}
	f.Add(uint16(unix.RTM_NEWROUTE), route)
	f.Add(uint16(unix.RTM_DELROUTE), route[:15])
	f.Add(uint16(unix.RTM_NEWNEIGH), neighbour)
	f.Add(uint16(unix.RTM_NEWLINK), neighbour[:16])
	f.Add(uint16(unix.RTM_NEWADDR), neighbour[:8])
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		r := &Resolver{index: 2, kick: make(chan struct{}, 1)}
		p := &Peer{r: r, dst: dst4.Addr()}
		p.via.Store(&p.dst)
		r.peers = map[*Peer]bool{p: false}
		r.event(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: data})
		if len(r.kick) == 1 != r.peers[p] {
			t.Fatalf("type %d, % x: the peer is dirty: %v, the worker is woken: %v", kind, data, r.peers[p], len(r.kick) == 1)
		}
	})
}

func TestEventsTouchThoseTheyConcern(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	attr := func(b []byte, kind byte, addr string) []byte {
		a := netip.MustParseAddr(addr).AsSlice()
		return append(append(b, byte(4+len(a)), 0, kind, 0), a...)
	}
	route := func(family, bits byte) []byte { return append([]byte{family, bits}, make([]byte, 10)...) }
	neighbour := func(index byte) []byte { return []byte{unix.AF_INET, 0, 0, 0, index, 0, 0, 0, 2, 0, 0, 1} }
	for _, c := range []struct {
		name     string
		kind     uint16
		data     []byte
		hit, via bool // the IPv4 peer is touched, the one behind the router 2001:db8::2
	}{
		{"its prefix", unix.RTM_NEWROUTE, attr(route(unix.AF_INET, 24), unix.RTA_DST, "192.0.2.0"), true, false},
		{"behind another attribute", unix.RTM_DELROUTE,
			attr(append(route(unix.AF_INET, 24), 5, 0, 9, 0, 1, 0, 0, 0), unix.RTA_DST, "192.0.2.0"), true, false},
		{"another prefix", unix.RTM_NEWROUTE, attr(route(unix.AF_INET, 24), unix.RTA_DST, "192.0.3.0"), false, false},
		{"default", unix.RTM_DELROUTE, route(unix.AF_INET, 0), true, false},
		{"default of IPv6", unix.RTM_DELROUTE, route(unix.AF_INET6, 0), false, true},
		{"another family", unix.RTM_NEWROUTE, route(unix.AF_BRIDGE, 0), false, false},
		{"its neighbour", unix.RTM_NEWNEIGH, attr(neighbour(2), unix.NDA_DST, "192.0.2.2"), true, false},
		{"its router", unix.RTM_DELNEIGH, attr(neighbour(2), unix.NDA_DST, "2001:db8::2"), false, true},
		{"a neighbour elsewhere", unix.RTM_NEWNEIGH, attr(neighbour(3), unix.NDA_DST, "192.0.2.2"), false, false},
		{"an address", unix.RTM_NEWADDR, make([]byte, 8), true, true},
		{"the link", unix.RTM_NEWLINK, append(neighbour(2), 0, 0, 0, 0), true, true},
		{"another link", unix.RTM_DELLINK, append(neighbour(3), 0, 0, 0, 0), false, false},
	} {
		near, far := &Peer{dst: v4}, &Peer{dst: netip.MustParseAddr("2001:db8:1::1")}
		near.via.Store(&v4)
		far.via.Store(&v6)
		r := &Resolver{index: 2, kick: make(chan struct{}, 1), peers: map[*Peer]bool{near: false, far: false}}
		r.event(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: c.kind}, Data: c.data})
		if r.peers[near] != c.hit || r.peers[far] != c.via {
			t.Errorf("%s: touched %v and %v, want %v and %v", c.name, r.peers[near], r.peers[far], c.hit, c.via)
		}
	}
}
