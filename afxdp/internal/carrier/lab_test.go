//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace without a name, which ends with its last descriptor:
// with the process at the latest.
type space struct {
	t  *testing.T
	fd *os.File
	nl *netlink.Handle
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates network namespaces")
	}
}

// onThread runs f on a thread of its own, which ends with f and so may change namespaces.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{t: t}
	if err := onThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		// The kernel's own link-local addresses come when it pleases; ours are there at once.
		if err = os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("1"), 0); err != nil {
			return err
		}
		if s.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		s.fd, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		t.Skipf("needs to create network namespaces: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.nl.Close()
		s.fd.Close()
	})
	s.up("lo")
	return s
}

// do runs f in the namespace.
func (s *space) do(f func() error) {
	s.t.Helper()
	s.must(onThread(func() error {
		if err := unix.Setns(int(s.fd.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return f()
	}))
}

func (s *space) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *space) sysctl(name, value string) {
	s.t.Helper()
	s.do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

func (s *space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.nl.LinkByName(name)
	s.must(err)
	return l
}

func (s *space) mac(name string) MAC { return MAC(s.link(name).Attrs().HardwareAddr) }

func (s *space) up(name string)   { s.t.Helper(); s.must(s.nl.LinkSetUp(s.link(name))) }
func (s *space) down(name string) { s.t.Helper(); s.must(s.nl.LinkSetDown(s.link(name))) }

func (s *space) addr(name string, addrs ...string) {
	s.t.Helper()
	for _, a := range addrs {
		parsed, err := netlink.ParseAddr(a)
		s.must(err)
		if parsed.IP.To4() == nil {
			parsed.Flags = unix.IFA_F_NODAD // usable without a second's wait for a double
		}
		link := s.link(name)
		ns := netns.NsHandle(int(s.fd.Fd()))
		routes, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
		s.must(netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{Namespace: &ns}))
		s.must(s.nl.AddrAdd(link, parsed))
		s.local(parsed.IP, link.Attrs().Index, routes)
		close(done)
		for range routes { // until the library has ended
		}
	}
}

// local waits until the kernel knows an address as its own, which for IPv6 a work queue does later. It looks again
// after each change of the routes.
func (s *space) local(addr net.IP, index int, routes chan netlink.RouteUpdate) {
	s.t.Helper()
	late := time.After(maxWait)
	for {
		r, err := s.nl.RouteGetWithOptions(addr, &netlink.RouteGetOptions{OifIndex: index})
		if err == nil && r[0].Type == unix.RTN_LOCAL {
			return
		}
		select {
		case <-routes:
		case <-late:
			s.t.Fatalf("%v does not become an address of the host: %v, %v", addr, r, err)
		}
	}
}

// route is to a prefix by a router, "" for everywhere.
func (s *space) route(name, to, by string) *netlink.Route {
	s.t.Helper()
	r := &netlink.Route{LinkIndex: s.link(name).Attrs().Index, Gw: net.ParseIP(by)}
	if to != "" {
		_, prefix, err := net.ParseCIDR(to)
		s.must(err)
		r.Dst = prefix
	}
	s.must(s.nl.RouteReplace(r))
	return r
}

// cable joins two namespaces by a veth pair, both ends up.
func cable(a *space, nameA string, b *space, nameB string) {
	a.t.Helper()
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(b.fd.Fd()),
	}
	a.must(a.nl.LinkAdd(pair))
	a.up(nameA)
	b.up(nameB)
}

// segment is two namespaces on one cable: eth0 at both ends, .1 and .2, ::1 and ::2.
func segment(t *testing.T) (a, b *space) {
	t.Helper()
	needRoot(t)
	a, b = newSpace(t), newSpace(t)
	cable(a, "eth0", b, "eth0")
	a.addr("eth0", "10.1.0.1/24", "fd01::1/64", "fe80::1/64")
	b.addr("eth0", "10.1.0.2/24", "fd01::2/64", "fe80::2/64")
	return a, b
}

// routed adds a third namespace behind b: eth1 of b has 10.2.0.1 and fd02::1, eth0 of c .2 and
// ::2.
func routed(t *testing.T) (a, b, c *space) {
	t.Helper()
	a, b = segment(t)
	c = newSpace(t)
	cable(b, "eth1", c, "eth0")
	b.addr("eth1", "10.2.0.1/24", "fd02::1/64", "fe80::1/64")
	c.addr("eth0", "10.2.0.2/24", "fd02::2/64", "fe80::2/64")
	b.sysctl("ipv4/ip_forward", "1")
	b.sysctl("ipv6/conf/all/forwarding", "1")
	for _, r := range [][2]string{{"10.2.0.0/24", "10.1.0.2"}, {"fd02::/64", "fd01::2"}} {
		a.route("eth0", r[0], r[1])
	}
	for _, r := range [][2]string{{"10.1.0.0/24", "10.2.0.1"}, {"fd01::/64", "fd02::1"}} {
		c.route("eth0", r[0], r[1])
	}
	return a, b, c
}

// socket is a UDP socket in the namespace; port 0 is any.
func (s *space) socket(at netip.AddrPort) *net.UDPConn {
	s.t.Helper()
	var c *net.UDPConn
	s.do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	s.t.Cleanup(func() { c.Close() })
	return c
}
