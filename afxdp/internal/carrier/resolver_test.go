//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// maxWait bounds waits for what must come; nothing is asserted of how long it takes.
const maxWait = 20 * time.Second

// watcher is a resolver of eth0 with its notifications.
type watcher struct {
	*Resolver
	t        *testing.T
	notified chan struct{}
}

func watch(s *space, probe time.Duration) *watcher {
	s.t.Helper()
	w := &watcher{t: s.t, notified: make(chan struct{}, 1)}
	s.do(func() (err error) {
		w.Resolver, err = Open("eth0", Options{probe: probe, Changed: func(*Peer) {
			select {
			case w.notified <- struct{}{}:
			default:
			}
		}})
		return err
	})
	s.t.Cleanup(w.Close)
	return w
}

func (w *watcher) resolve(dst string) (*Peer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	return w.Resolve(ctx, netip.MustParseAddr(dst), netip.Addr{})
}

func (w *watcher) peer(dst string) *Peer {
	w.t.Helper()
	p, err := w.resolve(dst)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// until waits until the notifications make ok true.
func (w *watcher) until(what string, ok func() bool) {
	w.t.Helper()
	late := time.After(maxWait)
	for !ok() {
		select {
		case <-w.notified:
		case <-late:
			w.t.Fatalf("%s is not reported", what)
		}
	}
}

func (w *watcher) untilHop(what string, p *Peer, ok func(Hop) bool) {
	w.t.Helper()
	w.until(what, func() bool {
		h, err := p.Hop()
		return err == nil && ok(h)
	})
}

func (w *watcher) untilErr(p *Peer, want error) {
	w.t.Helper()
	w.until(want.Error(), func() bool {
		_, err := p.Hop()
		return errors.Is(err, want)
	})
}

func TestHopOnTheSameSegment(t *testing.T) {
	a, b := segment(t)
	w := watch(a, 0)
	for dst, src := range map[string]string{"10.1.0.2": "10.1.0.1", "fd01::2": "fd01::1", "::ffff:10.1.0.2": "10.1.0.1"} {
		got, err := w.peer(dst).Hop()
		want := Hop{
			Src: netip.MustParseAddr(src), Via: netip.MustParseAddr(dst).Unmap(),
			DstMAC: b.mac("eth0"), SrcMAC: a.mac("eth0"), MTU: 1500,
		}
		if err != nil || got != want {
			t.Errorf("to %s: %+v, %v, want %+v", dst, got, err, want)
		}
	}
	link, err := w.Link()
	want := Link{Name: "eth0", index: a.link("eth0").Attrs().Index, MAC: a.mac("eth0"), MTU: 1500, up: true}
	if err != nil || link != want {
		t.Errorf("link %+v, %v, want %+v", link, err, want)
	}
}

func TestHopToALinkLocalAddress(t *testing.T) {
	a, b := segment(t)
	hop, err := watch(a, 0).peer("fe80::2").Hop()
	if err != nil || hop.DstMAC != b.mac("eth0") || hop.Src.String() != "fe80::1" {
		t.Errorf("%+v, %v", hop, err)
	}
}

func TestHopBehindARouter(t *testing.T) {
	a, b, _ := routed(t)
	w := watch(a, 0)
	for dst, via := range map[string]string{"10.2.0.2": "10.1.0.2", "fd02::2": "fd01::2"} {
		hop, err := w.peer(dst).Hop()
		if err != nil || hop.Via.String() != via || hop.DstMAC != b.mac("eth0") {
			t.Errorf("to %s: %+v, %v", dst, hop, err)
		}
	}
}

// Rules can send what comes from one address another way.
func TestHopDependsOnTheSource(t *testing.T) {
	a, b, _ := routed(t)
	for _, x := range []struct{ src, dst, prefix, via string }{
		{"10.1.0.1", "10.9.0.1", "10.9.0.0/24", "10.1.0.2"},
		{"fd01::1", "fd09::1", "fd09::/64", "fd01::2"},
	} {
		const table = 101
		_, prefix, err := net.ParseCIDR(x.prefix)
		a.must(err)
		a.must(a.nl.RouteReplace(&netlink.Route{LinkIndex: a.link("eth0").Attrs().Index, Dst: prefix, Gw: net.ParseIP(x.via), Table: table}))
		rule := netlink.NewRule()
		src := netip.MustParseAddr(x.src)
		rule.Src, rule.Table = &net.IPNet{IP: src.AsSlice(), Mask: net.CIDRMask(src.BitLen(), src.BitLen())}, table
		if src.Is6() {
			rule.Family = netlink.FAMILY_V6
		}
		a.must(a.nl.RuleAdd(rule))
		w := watch(a, 0)
		ctx, cancel := context.WithTimeout(context.Background(), maxWait)
		defer cancel()
		if p, err := w.Resolve(ctx, netip.MustParseAddr(x.dst), netip.Addr{}); !errors.Is(err, errNoRoute) {
			t.Errorf("to %s: %v, %v, want no route", x.dst, p, err)
		}
		p, err := w.Resolve(ctx, netip.MustParseAddr(x.dst), src)
		if err != nil {
			t.Fatalf("to %s from %s: %v", x.dst, x.src, err)
		}
		if hop, err := p.Hop(); err != nil || hop.Via.String() != x.via || hop.Src != src || hop.DstMAC != b.mac("eth0") {
			t.Errorf("to %s from %s: %+v, %v", x.dst, x.src, hop, err)
		}
	}
}

func TestHopOfIPv4ByAnIPv6Router(t *testing.T) {
	a, b, _ := routed(t)
	w, route := watch(a, 0), a.route("eth0", "10.2.0.0/24", "10.1.0.2")
	p := w.peer("10.2.0.2")
	route.Gw, route.Via = nil, &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: net.ParseIP("fd01::2")}
	a.must(a.nl.RouteReplace(route))
	w.untilHop("another router", p, func(h Hop) bool { return h.Via.String() == "fd01::2" && h.DstMAC == b.mac("eth0") })
}

func TestDestinationsThatCannotBe(t *testing.T) {
	a, b := segment(t)
	cable(a, "eth1", b, "eth1")
	a.addr("eth1", "10.3.0.1/24", "fd03::1/64")
	a.sysctl("ipv4/neigh/eth0/retrans_time_ms", "20") // silence is found in 60 ms, not in 3 s
	a.sysctl("ipv6/neigh/eth0/retrans_time_ms", "20")
	w := watch(a, 0)
	for _, c := range []struct {
		dst    string
		want   error
		remedy string
	}{
		{"127.0.0.1", errOwn, "address of another host"},
		{"::1", errOwn, "address of another host"},
		{"10.1.0.1", errOwn, "address of another host"},
		{"fd01::1", errOwn, "address of another host"},
		{"10.3.0.1", errOwn, "address of another host"},
		{"fd03::1", errOwn, "address of another host"},
		{"10.3.0.2", errNoRoute, "ip route get 10.3.0.2 oif eth0"},
		{"fd03::2", errNoRoute, "ip route get fd03::2 oif eth0"},
		{"192.0.2.1", errNoRoute, "add an address or a route"},
		{"2001:db8::1", errNoRoute, "add an address or a route"},
		{"10.1.0.255", errAddress, "name one host"},
		{"224.0.0.1", errAddress, "name one host"},
		{"ff02::1", errAddress, "name one host"},
		{"0.0.0.0", errAddress, "name one host"},
		{"::", errAddress, "name one host"},
		{"10.1.0.77", errUnreachable, "ip neighbour show 10.1.0.77 dev eth0"},
		{"fd01::77", errUnreachable, "neighbour show fd01::77"},
	} {
		_, err := w.resolve(c.dst)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.remedy) ||
			!strings.Contains(err.Error(), "eth0 to "+c.dst) {
			t.Errorf("to %s: %v, want %v, and %q", c.dst, err, c.want, c.remedy)
		}
	}
	if len(w.peers) != 0 {
		t.Errorf("%d peers are watched after their resolution failed", len(w.peers))
	}
}

func TestRoutesThatForbidAreNoRoutes(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, 0)
	for dst, kind := range map[string]int{"192.0.2.1": unix.RTN_UNREACHABLE, "192.0.2.2": unix.RTN_PROHIBIT,
		"192.0.2.3": unix.RTN_BLACKHOLE, "2001:db8::1": unix.RTN_BLACKHOLE} {
		a.must(a.nl.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(dst)), Type: kind}))
		if _, err := w.resolve(dst); !errors.Is(err, errNoRoute) {
			t.Errorf("to %s, with a route of type %d: %v", dst, kind, err)
		}
	}
}

func TestWaitForANeighbourEndsWithTheContext(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.Resolve(ctx, netip.MustParseAddr("10.1.0.77"), netip.Addr{})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errUnreachable) || len(w.peers) != 0 {
		t.Errorf("%v, %d peers are left", err, len(w.peers))
	}
}

func TestDevicesThatCannotBe(t *testing.T) {
	a, _ := segment(t)
	for device, want := range map[string]error{"eth7": ErrGone, "lo": errNotEthernet} {
		a.do(func() error {
			if _, err := Open(device, Options{}); !errors.Is(err, want) || !strings.Contains(err.Error(), device) {
				t.Errorf("%s: %v, want %v", device, err, want)
			}
			return nil
		})
	}
}

// A new MAC of the peer comes with the first ARP or neighbour solicitation it sends.
func TestNewMACOfThePeerIsReported(t *testing.T) {
	a, b := segment(t)
	w := watch(a, 0)
	peers := []*Peer{w.peer("10.1.0.2"), w.peer("fd01::2")}
	b.must(b.nl.LinkSetHardwareAddr(b.link("eth0"), []byte{2, 0, 0, 0, 7, 7}))
	for k, to := range []string{"10.1.0.1:9", "[fd01::1]:9"} {
		if _, err := b.socket(netip.AddrPort{}).WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(to)); err != nil {
			t.Fatal(err)
		}
		w.untilHop("a new MAC", peers[k], func(h Hop) bool { return h.DstMAC == MAC{2, 0, 0, 0, 7, 7} })
	}
}

func TestNewMACOfTheDeviceIsReported(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, 0)
	p := w.peer("10.1.0.2")
	a.must(a.nl.LinkSetHardwareAddr(a.link("eth0"), []byte{2, 0, 0, 0, 8, 8}))
	w.untilHop("a new MAC", p, func(h Hop) bool { return h.SrcMAC == MAC{2, 0, 0, 0, 8, 8} })
}

func TestNewRouteIsReported(t *testing.T) {
	a, b, _ := routed(t)
	b.addr("eth0", "10.1.0.3/24", "fd01::3/64")
	w := watch(a, 0)
	for _, c := range [][4]string{
		{"10.2.0.2", "10.1.0.3", "10.2.0.0/24", "10.2.0.2/32"},
		{"fd02::2", "fd01::3", "fd02::/64", "fd02::2/128"},
	} {
		p := w.peer(c[0])
		specific := a.route("eth0", c[3], c[1])
		w.untilHop("a route to "+c[3], p, func(h Hop) bool { return h.Via.String() == c[1] })
		a.must(a.nl.RouteDel(specific))
		w.untilHop("the loss of a route", p, func(h Hop) bool { return h.Via.String() != c[1] })
		_, prefix, _ := net.ParseCIDR(c[2])
		a.must(a.nl.RouteDel(&netlink.Route{LinkIndex: a.link("eth0").Attrs().Index, Dst: prefix}))
		w.untilErr(p, errNoRoute)
		a.route("eth0", "", c[1])
		w.untilHop("a default route", p, func(h Hop) bool { return h.Via.String() == c[1] })
	}
}

func TestNewMTUIsReported(t *testing.T) {
	a, _, _ := routed(t)
	w := watch(a, 0)
	peers := []*Peer{w.peer("10.2.0.2"), w.peer("fd02::2")}
	a.must(a.nl.LinkSetMTU(a.link("eth0"), 1400))
	for _, p := range peers {
		w.untilHop("the device's MTU", p, func(h Hop) bool { return h.MTU == 1400 })
	}
	w.until("the link's MTU", func() bool { l, _ := w.Link(); return l.MTU == 1400 })
	for k, r := range [][2]string{{"10.2.0.0/24", "10.1.0.2"}, {"fd02::/64", "fd01::2"}} {
		route := a.route("eth0", r[0], r[1])
		route.MTU = 1300
		a.must(a.nl.RouteReplace(route))
		w.untilHop("the route's MTU", peers[k], func(h Hop) bool { return h.MTU == 1300 })
	}
}

// A kernel socket finds a smaller MTU on the way; no event reports it, but the next probe
// finds it.
func TestPathMTUThatTheKernelLearnedIsFound(t *testing.T) {
	a, b, c := routed(t)
	b.must(b.nl.LinkSetMTU(b.link("eth1"), 1300))
	c.must(c.nl.LinkSetMTU(c.link("eth0"), 1300))
	w := watch(a, 20*time.Millisecond)
	for _, dst := range []string{"10.2.0.2", "fd02::2"} {
		p := w.peer(dst)
		to := netip.AddrPortFrom(netip.MustParseAddr(dst), 7070)
		if _, err := a.socket(netip.AddrPort{}).WriteToUDPAddrPort(make([]byte, 1400), to); err != nil {
			t.Fatal(err)
		}
		w.untilHop("the path's MTU", p, func(h Hop) bool { return h.MTU == 1300 })
	}
}

func TestNewLocalAddressIsReported(t *testing.T) {
	a, b := segment(t)
	w := watch(a, 0)
	for _, c := range [][3]string{{"10.1.0.2", "10.1.0.1/24", "10.1.0.9"}, {"fd01::2", "fd01::1/64", "fd01::9"}} {
		p := w.peer(c[0])
		old, _ := netlink.ParseAddr(c[1])
		a.must(a.nl.AddrDel(a.link("eth0"), old))
		a.addr("eth0", c[2]+c[1][strings.Index(c[1], "/"):])
		w.untilHop("the new address", p, func(h Hop) bool { return h.Src.String() == c[2] && h.DstMAC == b.mac("eth0") })
	}
}

// Of two addresses IPv6 takes the one that has more in common with the destination
// (RFC 6724, rule 8). No route to there changes.
func TestBetterAddressIsReported(t *testing.T) {
	a, _, _ := routed(t)
	w := watch(a, time.Hour)
	p := w.peer("fd02::2")
	a.addr("eth0", "fd02:0:0:1::1/64")
	w.untilHop("the better address", p, func(h Hop) bool { return h.Src.String() == "fd02:0:0:1::1" })
}

func TestChangesOfTheLinkAreReportedWithoutPeers(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, time.Hour)
	a.must(a.nl.LinkSetMTU(a.link("eth0"), 1400))
	w.until("the MTU", func() bool { l, err := w.Link(); return err == nil && l.MTU == 1400 })
	a.down("eth0")
	w.until("the end", func() bool { _, err := w.Link(); return errors.Is(err, errDown) })
}

// The kernel reports a loss once, and not what it loses before the rest is read.
func TestLostEventsDoNoHarm(t *testing.T) {
	a, _ := segment(t)
	eth0 := a.link("eth0")
	p := &Peer{dst: netip.MustParseAddr("10.1.0.2")}
	r := &Resolver{index: eth0.Attrs().Index, kick: make(chan struct{}, 1), peers: map[*Peer]bool{p: false}}
	a.do(func() (err error) {
		if r.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE); err != nil {
			return err
		}
		return unix.SetsockoptInt(r.events.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	})
	defer r.events.Close()
	for n := range byte(100) {
		a.route("eth0", net.IPv4(10, 9, n, 0).String()+"/24", "10.1.0.2")
	}
	lost, err := r.receive(false)
	if a.must(err); !lost || !r.peers[p] {
		t.Fatalf("100 events in a small buffer: lost %v, the peer is dirty: %v", lost, r.peers[p])
	}
	r.peers[p] = false // the worker was here
	a.must(a.nl.LinkSetMTU(eth0, 1400))
	for lost {
		if !r.unread() {
			t.Fatal("all events are read, and none counts as the last")
		}
		lost, err = r.receive(lost)
		a.must(err)
	}
	if !r.peers[p] || r.unread() {
		t.Errorf("the peer is dirty: %v, there are unread events: %v", r.peers[p], r.unread())
	}
	r.peers[p] = false
	a.must(a.nl.LinkSetMTU(eth0, 1300)) // and now events come again
	if _, err := r.receive(false); err != nil || !r.peers[p] {
		t.Errorf("%v, the peer is dirty: %v", err, r.peers[p])
	}
}

func TestMissingPrivilegeIsNamed(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, time.Hour)
	w.until("the link to be up", func() bool { _, err := w.Link(); return err == nil })
	a.do(func() error { // the thread that asks counts: this one
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			return err
		}
		caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &caps[0]); err != nil {
			return err
		}
		_, err := w.look(&Peer{r: w.Resolver, dst: netip.MustParseAddr("10.1.0.2")}, false)
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "needs CAP_NET_ADMIN") {
			t.Errorf("%v, want %v", err, os.ErrPermission)
		}
		return nil
	})
}

// The kernel then reports no event.
func TestNeighboursThatTheKernelMayNotAskForAreUnreachable(t *testing.T) {
	a, _ := segment(t)
	a.sysctl("ipv4/neigh/eth0/mcast_solicit", "0")
	_, err := watch(a, time.Hour).resolve("10.1.0.2")
	if !errors.Is(err, errUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want %v", err, errUnreachable)
	}
}

func TestLinkDownAndUpAreReported(t *testing.T) {
	for k, what := range []string{"our end", "their end"} {
		t.Run(what, func(t *testing.T) {
			a, b := segment(t)
			w, s := watch(a, 0), []*space{a, b}[k]
			p4, p6 := w.peer("10.1.0.2"), w.peer("fd01::2")
			s.down("eth0")
			w.untilErr(p4, errDown)
			w.untilErr(p6, errDown)
			if _, err := w.Link(); !errors.Is(err, errDown) {
				t.Errorf("link: %v, want %v", err, errDown)
			}
			_, err := w.resolve("10.1.0.2")
			if !errors.Is(err, errDown) || !strings.Contains(err.Error(), "ip link set eth0 up") {
				t.Errorf("resolve: %v", err)
			}
			s.up("eth0")
			// The kernel took them away when the device went down.
			s.addr("eth0", []string{"fd01::1/64", "fd01::2/64"}[k], []string{"fe80::1/64", "fe80::2/64"}[k])
			w.untilHop("the link that is up again", p4, func(Hop) bool { return true })
			w.untilHop("the link that is up again", p6, func(Hop) bool { return true })
		})
	}
}

func TestDeletedDeviceIsReported(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, 0)
	p := w.peer("10.1.0.2")
	a.must(a.nl.LinkDel(a.link("eth0")))
	w.untilErr(p, ErrGone)
	w.until("the deletion", func() bool { _, err := w.Link(); return errors.Is(err, ErrGone) })
	if _, err := w.resolve("10.1.0.2"); !errors.Is(err, ErrGone) {
		t.Errorf("resolve: %v, want %v", err, ErrGone)
	}
}

func TestSilentPeerThatReturnsIsReported(t *testing.T) {
	a, b := segment(t)
	for _, f := range []string{"ipv4", "ipv6"} {
		a.sysctl(f+"/neigh/eth0/retrans_time_ms", "20")
		a.sysctl(f+"/neigh/eth0/delay_first_probe_time", "0")
		a.sysctl(f+"/neigh/eth0/base_reachable_time_ms", "50")
	}
	w := watch(a, 50*time.Millisecond)
	p4, p6 := w.peer("10.1.0.2"), w.peer("fd01::2")
	addrs := []*netlink.Addr{}
	for _, text := range []string{"10.1.0.2/24", "fd01::2/64"} {
		addr, _ := netlink.ParseAddr(text)
		addr.Flags = unix.IFA_F_NODAD
		addrs = append(addrs, addr)
		b.must(b.nl.AddrDel(b.link("eth0"), addr))
	}
	w.untilErr(p4, errUnreachable)
	w.untilErr(p6, errUnreachable)
	for _, addr := range addrs {
		b.must(b.nl.AddrAdd(b.link("eth0"), addr))
	}
	w.untilHop("the peer's return", p4, func(Hop) bool { return true })
	w.untilHop("the peer's return", p6, func(Hop) bool { return true })
}

// AF_XDP's traffic does not keep a neighbour alive in the kernel; the resolver does.
func TestStaleNeighbourIsConfirmed(t *testing.T) {
	a, b := segment(t)
	a.sysctl("ipv4/neigh/eth0/delay_first_probe_time", "0")
	updates, done := make(chan netlink.NeighUpdate, 1000), make(chan struct{})
	a.do(func() error { return netlink.NeighSubscribe(updates, done) })
	defer func() {
		close(done)
		for range updates { // its goroutine ends
		}
	}()
	watch(a, 20*time.Millisecond).peer("10.1.0.2")
	mac := b.mac("eth0")
	a.must(a.nl.NeighSet(&netlink.Neigh{
		LinkIndex: a.link("eth0").Attrs().Index, State: unix.NUD_STALE,
		IP: net.ParseIP("10.1.0.2"), HardwareAddr: mac[:],
	}))
	late, stale := time.After(maxWait), false
	for {
		select {
		case u := <-updates:
			stale = stale || u.State == unix.NUD_STALE
			if stale && u.State == unix.NUD_REACHABLE {
				return
			}
		case <-late:
			t.Fatalf("the neighbour is not confirmed; it was stale: %v", stale)
		}
	}
}

// A request for an entry that another program keeps would take its state or flags away.
func TestNeighboursKeptByOthersAreLeftAlone(t *testing.T) {
	a, _ := segment(t)
	index, mac := a.link("eth0").Attrs().Index, net.HardwareAddr{2, 0, 0, 0, 9, 9}
	for _, n := range []netlink.Neigh{
		{IP: net.ParseIP("10.1.0.8"), State: unix.NUD_PERMANENT},
		{IP: net.ParseIP("fd01::8"), State: unix.NUD_PERMANENT},
		{IP: net.ParseIP("10.1.0.9"), State: unix.NUD_REACHABLE, Flags: netlink.NTF_EXT_LEARNED},
	} {
		n.LinkIndex, n.HardwareAddr = index, mac
		a.must(a.nl.NeighSet(&n))
		w := watch(a, time.Hour)
		p := w.peer(n.IP.String())
		w.step(true)
		hop, err := p.Hop()
		got, err2 := w.neighbour(p.dst)
		if err != nil || err2 != nil || hop.DstMAC != MAC(mac) || got.State != n.State || got.Flags != n.Flags {
			t.Errorf("%v: %+v, %v, in the table as %+v, %v, want %+v", n.IP, hop, err, got, err2, n)
		}
	}
}

func TestClosedPeersGetNoNotification(t *testing.T) {
	a, _ := segment(t)
	w := watch(a, 0)
	p, q := w.peer("10.1.0.2"), w.peer("10.1.0.2")
	p.Close()
	p.Close()
	a.must(a.nl.LinkSetMTU(a.link("eth0"), 1400))
	w.untilHop("the MTU", q, func(h Hop) bool { return h.MTU == 1400 })
	if h, _ := p.Hop(); h.MTU != 1500 {
		t.Errorf("the closed peer has %+v", h)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	a, b := segment(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		a.must(err)
		return len(entries)
	}
	wire, buf := b.wire(), make([]byte, 2000)
	before := count()
	for k := range 20 {
		w := watch(a, 0)
		w.peer("10.1.0.2")
		unused := fmt.Sprintf("10.1.0.%d", 77+k)
		waits := make(chan error)
		go func() { _, err := w.resolve(unused); waits <- err }()
		want := netip.MustParseAddr(unused).AsSlice()
		for asked := false; !asked; { // the request for the neighbour shows that the address is being resolved
			n, err := wire.Read(buf)
			a.must(err)
			asked = n >= 42 && buf[12] == 8 && buf[13] == 6 && bytes.Equal(buf[38:42], want)
		}
		w.Close()
		w.Close()
		if err := <-waits; !errors.Is(err, errClosed) && !errors.Is(err, errUnreachable) {
			t.Errorf("a resolution under way: %v", err)
		}
		if _, err := w.resolve("10.1.0.2"); !errors.Is(err, errClosed) {
			t.Errorf("a resolution afterwards: %v", err)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}
