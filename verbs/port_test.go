//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

func TestAPortThatIsNotThereIsNamedWithThoseThatAre(t *testing.T) {
	for _, c := range []struct {
		ports, num int
		want       string // empty: no error
	}{
		{1, 0, ""}, {1, 1, ""}, {2, 2, ""},
		{1, 2, "device rxe0 has no port 2, only port 1"},
		{2, 3, "device rxe0 has no port 3: its ports are rxe0:1 to rxe0:2"},
	} {
		err := checkPort("rxe0", c.ports, c.num)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("port %d of %d: %v, want %q", c.num, c.ports, err, c.want)
		}
	}
}

// A GID of InfiniBand belongs to no network interface. A host with two that have link-local addresses, as all have, can
// still be listened at.
func TestPortWithoutInterface(t *testing.T) {
	const inside = "BYWASH_TEST_TWO_INTERFACES"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestPortWithoutInterface$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=yes")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		switch {
		case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC):
			t.Skipf("needs user and network namespaces: %v", err)
		case err != nil:
			t.Fatalf("%v\n%s", err, out)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("in the namespace: %s", out)
		}
		return
	}
	for k, name := range []string{"a", "b"} {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
		if err := netlink.LinkAdd(pair); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("the kernel has no veth: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, byte(k+1)), Mask: net.CIDRMask(32, 32)}}
		local := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		for _, err := range []error{netlink.LinkSetUp(pair), netlink.AddrAdd(pair, addr), netlink.AddrAdd(pair, local)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	gid := ibv.GIDEntry{GID: netip.MustParseAddr("fe80::ec0d:9aff:fe8b:1").As16()}
	p := &connect.Port{Device: "mlx5_0", Num: 1, LinkLayer: connect.InfiniBand, LID: 7, GID: gid.GID, MTU: 4096, MaxResponder: 16, MaxInitiator: 16}
	p.Addrs = addresses(gid, interfaces())
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}; !slices.Equal(p.Addrs, want) {
		t.Errorf("without an interface: %v, want %v", p.Addrs, want)
	}
	if err := queryPort(p); err != nil {
		t.Errorf("InfiniBand: %v", err)
	}
	gid.NetDev = "b"
	if p.Addrs, p.Zone = addresses(gid, interfaces()), gid.NetDev; !slices.Contains(p.Addrs, netip.MustParseAddr("fe80::1")) {
		t.Errorf("interface b: %v, want fe80::1 among them", p.Addrs)
	}
	if err := queryPort(p); err != nil {
		t.Errorf("interface b: %v", err)
	}
}

// The kernel lists the GIDs of all network namespaces, with the interface numbers of theirs. One on an interface of this
// namespace that is up is chosen, whatever its place in the table, and keeps no foreign interface.
func TestGIDOfThisNamespaceIsChosen(t *testing.T) {
	entry := func(index int, kind ibv.GIDType, addr, dev string) ibv.GIDEntry {
		return ibv.GIDEntry{GID: netip.MustParseAddr(addr).As16(), Index: index, Type: kind, NetDev: dev}
	}
	const v1, v2 = ibv.GIDRoCEv1, ibv.GIDRoCEv2
	all := options{gidIndex: -1}
	of := func(name string, mac byte, addrs ...string) netInterface {
		n := netInterface{name: name, mac: net.HardwareAddr{2, 0, 0, 0, 0, mac}}
		for _, a := range addrs {
			p := netip.MustParseAddr(a)
			n.addrs = append(n.addrs, netip.PrefixFrom(p, p.BitLen()*3/4))
		}
		return n
	}
	eth0, bond, vlan := of("eth0", 1, "fe80::ff:fe00:1"), of("bond0", 2, "10.0.0.2"), of("eth0.7", 1, "10.7.0.1", "2001:db8::7")
	for _, c := range []struct {
		what  string
		gids  []ibv.GIDEntry
		nets  []netInterface
		o     options
		index int // -1: none
		dev   string
	}{
		{"no GID", nil, nil, all, -1, ""},
		{"another namespace has the first", []ibv.GIDEntry{
			entry(2, v2, "10.9.0.1", "bond0"), entry(5, v2, "10.0.0.2", "")}, []netInterface{bond}, all, 5, "bond0"},
		{"RoCE v1 here before v2 elsewhere", []ibv.GIDEntry{
			entry(2, v2, "10.9.0.1", ""), entry(3, v1, "10.0.0.2", "bond0")}, []netInterface{bond}, all, 3, "bond0"},
		{"the interface below a VLAN has no IPv4 address", []ibv.GIDEntry{
			entry(0, v2, "fe80::ff:fe00:1", "eth0"), entry(1, v1, "10.7.0.1", "eth0.7"), entry(2, v2, "10.7.0.1", "eth0.7")},
			[]netInterface{eth0, vlan}, all, 2, "eth0.7"},
		{"IPv4 before IPv6", []ibv.GIDEntry{
			entry(4, v2, "2001:db8::7", "eth0.7"), entry(6, v2, "10.7.0.1", "eth0.7")}, []netInterface{vlan}, all, 6, "eth0.7"},
		{"the interface is down", []ibv.GIDEntry{
			entry(1, v2, "10.7.0.1", "eth0.7"), entry(3, v2, "10.0.0.2", "bond0")}, []netInterface{bond}, all, 3, "bond0"},
		{"only one from the hardware address", []ibv.GIDEntry{
			entry(0, v2, "fe80::ff:fe00:2", "bond0")}, []netInterface{bond}, all, 0, "bond0"},
		{"that of an interface of another namespace", []ibv.GIDEntry{
			entry(0, v2, "fe80::ff:fe00:9", "bond0"), entry(1, v2, "fe80::ff:fe00:2", "bond0")}, []netInterface{bond}, all, 1, "bond0"},
		{"no interface here, as in a container", []ibv.GIDEntry{
			entry(0, v2, "fe80::1", "lo"), entry(3, v2, "10.9.0.1", "lo")}, []netInterface{{name: "lo", loopback: true}}, all, 3, ""},
		{"the one that an option names", []ibv.GIDEntry{
			entry(2, v2, "10.9.0.1", "bond0"), entry(5, v2, "10.0.0.2", "bond0")}, []netInterface{bond}, options{gidIndex: 2}, 2, ""},
	} {
		got, found := bestGID(c.gids, c.o, c.nets)
		if found != (c.index >= 0) || found && (got.Index != c.index || got.NetDev != c.dev) {
			t.Errorf("%s: index %d on %q, want %d on %q", c.what, got.Index, got.NetDev, c.index, c.dev)
		}
	}
}

// A connection may use each GID that reaches as far as the port's and is on an interface of this namespace.
func TestSubnetsOfAPort(t *testing.T) {
	entry := func(index int, kind ibv.GIDType, addr string) ibv.GIDEntry {
		return ibv.GIDEntry{GID: netip.MustParseAddr(addr).As16(), Index: index, Type: kind}
	}
	gids := []ibv.GIDEntry{
		entry(0, ibv.GIDRoCEv2, "fe80::1"), entry(1, ibv.GIDRoCEv1, "10.7.0.1"), entry(2, ibv.GIDRoCEv2, "10.7.0.1"),
		entry(3, ibv.GIDRoCEv2, "10.8.0.1"), entry(4, ibv.GIDRoCEv2, "10.9.0.1"), entry(5, ibv.GIDRoCEv2, "2001:db8::7"),
		entry(300, ibv.GIDRoCEv2, "10.6.0.1"),
	}
	nets := []netInterface{
		{name: "eth0", addrs: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/24"), netip.MustParsePrefix("2001:db8::7/64")}},
		{name: "eth0.8", addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/16"), netip.MustParsePrefix("fe80::1/64")}},
		{name: "eth0.6", addrs: []netip.Prefix{netip.MustParsePrefix("10.6.0.1/24")}},
	}
	for own, want := range map[int]string{2: "2 10.7.0.1/24, 3 10.8.0.1/16", 3: "3 10.8.0.1/16, 2 10.7.0.1/24", 5: "5 2001:db8::7/64", 1: "1 10.7.0.1/24"} {
		var got []string
		for _, s := range subnets(gids[own], gids, nets) {
			got = append(got, fmt.Sprint(s.GIDIndex, " ", s.GID))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("beside GID %d: %q, want %s", own, got, want)
		}
	}
}

// queryPort has the connection manager oob listen at a port.
func queryPort(p *connect.Port) error {
	m, err := connect.Open(connect.Config{Incarnation: 1, Secret: []byte("a secret of the test"), Include: []string{"oob"}}, p)
	if err == nil {
		err = m.Close()
	}
	return err
}

// The keep-alive and the device's repetitions together end within the dead time.
func TestAckTimeoutKeepsTheDeadTime(t *testing.T) {
	for _, dead := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, time.Minute, 10 * time.Minute} {
		worst := func(n uint8) time.Duration { return 7*4*(4096*time.Nanosecond<<n) + 2*dead/keepAlives }
		n := ackTimeout(dead)
		if worst(n) > dead || worst(n+1) <= dead {
			t.Errorf("dead time %v: with time-out %d it takes %v, with %d %v", dead, n, worst(n), n+1, worst(n+1))
		}
	}
}

func TestPartitionKeyIsChosen(t *testing.T) {
	const ib, ethernet = ibv.LinkInfiniBand, ibv.LinkEthernet
	for _, c := range []struct {
		what   string
		layer  ibv.LinkLayer
		table  []uint16
		option int
		before uint16
		want   int // index; -1: an error
	}{
		{"the only one", ib, []uint16{0xffff}, -1, 0, 0},
		{"a full member of the second", ib, []uint16{0x7fff, 0x8001, 0x8002}, -1, 0, 1},
		{"the one so far", ib, []uint16{0x8001, 0x7fff, 0x8002}, -1, 0x8002, 2},
		{"the one so far is gone", ib, []uint16{0x7fff, 0x8001}, -1, 0x8002, 1},
		{"a limited member only", ib, []uint16{0, 0x7fff, 1}, -1, 0, 1},
		{"the option", ib, []uint16{0x7fff, 0x8001}, 0, 0, 0},
		{"an empty place", ib, []uint16{0, 0x8001}, 0, 0, -1},
		{"a full member of no partition", ib, []uint16{0x8000}, 0, 0, -1},
		{"an empty table", ib, []uint16{0, 0}, -1, 0, -1},
		{"RoCE without a table", ethernet, []uint16{0}, -1, 0, 0},
	} {
		p := port{dev: new(ibv.Context), attr: ibv.PortAttr{LinkLayer: c.layer, PKeys: len(c.table)}, pkey: c.before}
		err := p.readKey(options{pkeyIndex: c.option}, func(k int) (uint16, error) { return c.table[k], nil })
		switch {
		case c.want < 0:
			if !errors.Is(err, driver.ErrInvalid) && !isUnavailable(err) {
				t.Errorf("%s: %v", c.what, err)
			}
		case err != nil || p.pkeyIndex != c.want || p.pkey != c.table[c.want]:
			t.Errorf("%s: key %#x at %d, %v, want %d", c.what, p.pkey, p.pkeyIndex, err, c.want)
		}
	}
}
