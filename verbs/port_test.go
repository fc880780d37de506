//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

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
	p.Addrs = addresses(gid)
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}; !slices.Equal(p.Addrs, want) {
		t.Errorf("without an interface: %v, want %v", p.Addrs, want)
	}
	if err := queryPort(p); err != nil {
		t.Errorf("InfiniBand: %v", err)
	}
	gid.NetDev = "b"
	if p.Addrs, p.Zone = addresses(gid), gid.NetDev; !slices.Contains(p.Addrs, netip.MustParseAddr("fe80::1")) {
		t.Errorf("interface b: %v, want fe80::1 among them", p.Addrs)
	}
	if err := queryPort(p); err != nil {
		t.Errorf("interface b: %v", err)
	}
}

// queryPort has the connection manager oob listen at a port.
func queryPort(p *connect.Port) error {
	set, err := connect.Open(connect.Config{Incarnation: 1, Secret: []byte("a secret of the test"), Include: []string{"oob"}})
	if err != nil {
		return err
	}
	defer set.Close()
	_, err = set.Query(p)
	return err
}
