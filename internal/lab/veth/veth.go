//go:build linux

package veth

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config configures a pair. The zero value means MTU 1500 and one queue.
type Config struct {
	// MTU of all devices in bytes; 0: 1500. The kernel takes 68 to 65535. A
	// native XDP program without multi-buffer support allows at most 3506.
	MTU int

	// Queues is the number of receive and of transmit queues of each device;
	// 0: 1.
	Queues int

	// Router puts a third namespace between the two ends, which then lie in
	// different subnets.
	Router bool

	// Box puts a third namespace between the two ends, which lie in one subnet, and a program there that delays and
	// loses frames between them.
	Box *Box

	// Offloads keeps the devices' offloads, which are otherwise turned off: frames from the kernel's stack
	// then carry partial checksums and segments of up to 64 KiB.
	Offloads bool

	// NoIPv6 leaves the devices without IPv6, as a kernel without it does.
	NoIPv6 bool
}

// A Pair is the namespaces and their devices. Its methods may be called from any goroutine.
type Pair struct {
	// Ends are the two ends, which reach each other as soon as New returns.
	Ends [2]End

	// Router holds the two devices in the middle, in one namespace: Router[i]
	// is joined to Ends[i]. Without [Config.Router] and [Config.Box] its
	// elements are zero. The devices of a box have no address.
	Router [2]End

	box    *box
	close  sync.Once
	closed error
	undo   []func() error // in the order of making
}

// An End is one device in its namespace.
type End struct {
	// Namespace is a descriptor of the network namespace, which the Pair owns.
	Namespace int

	Device string
	Index  int // of the device in its namespace
	MAC    net.HardwareAddr

	// IPv4 and IPv6 are the static addresses, usable at once (no duplicate
	// address detection). IPv6 is invalid with [Config.NoIPv6].
	IPv4, IPv6 netip.Prefix
}

// New makes the namespaces and devices. Without the privilege its error wraps [os.ErrPermission] and names the missing
// one; without veth in the kernel it wraps [errors.ErrUnsupported].
func New(cfg Config) (*Pair, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if cfg.Box != nil {
		if err := cfg.Box.check(cfg); err != nil {
			return nil, fmt.Errorf("veth: %w", err)
		}
	}
	p := &Pair{}
	if err := p.build(cfg); err != nil {
		return nil, fmt.Errorf("veth: %w", errors.Join(err, p.Close()))
	}
	return p, nil
}

func (p *Pair) build(cfg Config) error {
	spaces := 2
	if cfg.Router || cfg.Box != nil {
		spaces = 3
	}
	var ns [3]int
	for i := range spaces {
		fd, err := p.space()
		if err != nil {
			return err
		}
		ns[i] = fd
	}
	if !cfg.Router {
		p.Ends[0] = newEnd(ns[0], "veth0", 0, 1)
		p.Ends[1] = newEnd(ns[1], "veth1", 0, 2)
		if cfg.Box == nil {
			return p.join(cfg, &p.Ends[0], &p.Ends[1])
		}
		for i := range 2 {
			p.Router[i] = End{Namespace: ns[2], Device: fmt.Sprintf("box%d", i)}
			if err := p.join(cfg, &p.Ends[i], &p.Router[i]); err != nil {
				return err
			}
		}
		return p.startBox(cfg)
	}
	for i := range 2 {
		p.Ends[i] = newEnd(ns[i], fmt.Sprintf("veth%d", i), i, 2)
		p.Router[i] = newEnd(ns[2], fmt.Sprintf("router%d", i), i, 1)
		if err := p.join(cfg, &p.Ends[i], &p.Router[i]); err != nil {
			return err
		}
	}
	return p.route(cfg)
}

// space makes a namespace whose loopback device is up.
func (p *Pair) space() (int, error) {
	fd, err := newNamespace()
	if err != nil {
		return -1, err
	}
	p.undo = append(p.undo, func() error { return unix.Close(fd) })
	return fd, p.loopbackUp(fd)
}

// newEnd chooses the addresses of a host on a subnet, from the blocks reserved
// for benchmarks (RFC 2544, RFC 5180).
func newEnd(ns int, device string, subnet, host int) End {
	return End{
		Namespace: ns,
		Device:    device,
		IPv4:      netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(subnet), byte(host)}), 24),
		IPv6: netip.PrefixFrom(netip.AddrFrom16(
			[16]byte{0: 0x20, 1: 0x01, 3: 0x02, 7: byte(subnet), 15: byte(host)}), 64),
	}
}

// in runs f with a netlink handle of a namespace.
func in(namespace int, f func(*netlink.Handle) error) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(namespace), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", explain(err))
	}
	defer h.Close()
	return f(h)
}

func (p *Pair) loopbackUp(ns int) error {
	return in(ns, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err == nil {
			err = h.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("set the loopback device up: %w", err)
		}
		return nil
	})
}

// join makes a pair of devices between two ends.
func (p *Pair) join(cfg Config, a, b *End) error {
	err := in(a.Namespace, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = a.Device, cfg.MTU
		attrs.NumRxQueues, attrs.NumTxQueues = cfg.Queues, cfg.Queues
		// If both devices of a pair have the same index, the kernel does not recognise a pair, and the carrier may come
		// a second later.
		attrs.Index = 100
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace, v.PeerMTU = b.Device, netlink.NsFd(b.Namespace), uint32(cfg.MTU)
		v.PeerNumRxQueues, v.PeerNumTxQueues = uint32(cfg.Queues), uint32(cfg.Queues)
		if err := h.LinkAdd(v); err != nil {
			return fmt.Errorf("create the pair %s, %s: %w", a.Device, b.Device, explain(err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.undo = append(p.undo, a.deleteDevice)
	for _, e := range []*End{a, b} {
		if err := e.configure(cfg); err != nil {
			return err
		}
	}
	for _, e := range []*End{a, b} {
		if err := errors.Join(e.await(), e.awaitGroups()); err != nil {
			return err
		}
	}
	return nil
}

func (e *End) configure(cfg Config) error {
	if cfg.NoIPv6 {
		e.IPv6 = netip.Prefix{}
	}
	if !cfg.Offloads {
		if err := e.Do(func() error { return offloadsOff(e.Device) }); err != nil {
			return err
		}
	}
	return in(e.Namespace, func(h *netlink.Handle) error {
		dev, err := h.LinkByName(e.Device)
		if err != nil {
			return fmt.Errorf("find device %s: %w", e.Device, err)
		}
		e.Index, e.MAC = dev.Attrs().Index, dev.Attrs().HardwareAddr
		// The link-local address that the kernel makes is checked for
		// duplicates first. A router cannot ask for neighbours without one.
		if err := h.LinkSetIP6AddrGenMode(dev, ip6AddrGenModeNone); err != nil && e.IPv6.IsValid() {
			return fmt.Errorf("set the IPv6 address mode of %s (is IPv6 disabled?): %w", e.Device, err)
		}
		for _, prefix := range []netip.Prefix{e.IPv4, e.IPv6, e.linkLocal()} {
			if !prefix.IsValid() {
				continue
			}
			addr := &netlink.Addr{IPNet: ipNet(prefix)}
			if prefix.Addr().Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := h.AddrAdd(dev, addr); err != nil {
				return fmt.Errorf("add address %s to %s: %w", prefix, e.Device, err)
			}
		}
		if err := h.LinkSetUp(dev); err != nil {
			return fmt.Errorf("set %s up: %w", e.Device, err)
		}
		return nil
	})
}

func (e *End) linkLocal() netip.Prefix {
	if !e.IPv6.IsValid() {
		return netip.Prefix{}
	}
	a := e.IPv6.Addr().As16()
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: a[15]}), 64)
}

// await waits until the device has its carrier, without which frames are
// dropped: the kernel turns it on in the background.
func (e *End) await() error {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer func() {
		close(done)
		for range updates { // until the library has closed it
		}
	}()
	ns := netns.NsHandle(e.Namespace)
	err := netlink.LinkSubscribeWithOptions(updates, done,
		netlink.LinkSubscribeOptions{Namespace: &ns, ListExisting: true})
	if err != nil {
		close(updates)
		return fmt.Errorf("watch %s: %w", e.Device, err)
	}
	timeout := time.After(carrierTimeout)
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				updates = make(chan netlink.LinkUpdate)
				close(updates)
				return fmt.Errorf("watch %s: netlink ended", e.Device)
			}
			if u.Attrs().Name == e.Device && u.Attrs().OperState == netlink.OperUp {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("%s has no carrier after %v", e.Device, carrierTimeout)
		}
	}
}

// awaitGroups waits until the device has joined the multicast groups by which neighbours ask for its IPv6 addresses.
// The kernel joins in the background without an event. A neighbour that asks earlier repeats the question only a second
// later.
func (e *End) awaitGroups() error {
	var groups []string
	for _, p := range []netip.Prefix{e.IPv6, e.linkLocal()} {
		if p.IsValid() { // ff02::1:ff00:0/104 and the address's last three bytes (RFC 4291)
			a := p.Addr().As16()
			groups = append(groups, fmt.Sprintf("ff0200000000000000000001ff%x", a[13:]))
		}
	}
	return e.Do(func() error {
		const groupsFile = "/proc/thread-self/net/igmp6"
		for end := time.Now().Add(carrierTimeout); ; time.Sleep(time.Millisecond) {
			joined, err := os.ReadFile(groupsFile)
			if err != nil && len(groups) > 0 {
				return fmt.Errorf("read the multicast groups of %s: %w", e.Device, err)
			}
			if !slices.ContainsFunc(groups, func(g string) bool { return !bytes.Contains(joined, []byte(g)) }) {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s has not joined multicast groups %s after %v", e.Device, groups, carrierTimeout)
			}
		}
	})
}

const carrierTimeout = 10 * time.Second

// ip6AddrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const ip6AddrGenModeNone = 1

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (e *End) deleteDevice() error {
	return in(e.Namespace, func(h *netlink.Handle) error {
		dev, err := h.LinkByName(e.Device)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil // deleted by the user, or with its peer
		}
		if err == nil {
			err = h.LinkDel(dev)
		}
		if err != nil {
			return fmt.Errorf("delete device %s: %w", e.Device, err)
		}
		return nil
	})
}

// Do runs f on the caller's goroutine with its thread inside the namespace: sockets and descriptors that f opens belong
// to it. Goroutines that f starts run outside. If the thread cannot leave the namespace again, it ends with the
// goroutine, and Do returns an error.
func (e *End) Do(f func() error) error {
	return inside(func() error {
		if err := unix.Setns(e.Namespace, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace of %s: %w", e.Device, explain(err))
		}
		return nil
	}, f)
}

// Start starts cmd inside the namespace, as [exec.Cmd.Start] does: a child
// inherits the namespace of the thread that forks it.
func (e *End) Start(cmd *exec.Cmd) error {
	return e.Do(cmd.Start)
}

// SetUp sets the device up or down.
func (e *End) SetUp(up bool) error {
	return in(e.Namespace, func(h *netlink.Handle) error {
		dev, err := h.LinkByName(e.Device)
		if err != nil {
			return fmt.Errorf("veth: find device %s: %w", e.Device, err)
		}
		set := h.LinkSetDown
		if up {
			set = h.LinkSetUp
		}
		if err := set(dev); err != nil {
			return fmt.Errorf("veth: set %s up %t: %w", e.Device, up, err)
		}
		return nil
	})
}

// Delete deletes the device and its peer.
func (e *End) Delete() error { return e.deleteDevice() }

// Close deletes the devices and releases the namespaces, which then end with the last process or socket in them.
// Further calls return the same result.
func (p *Pair) Close() error {
	p.close.Do(func() {
		var errs []error
		for i := len(p.undo) - 1; i >= 0; i-- {
			errs = append(errs, p.undo[i]())
		}
		p.closed = errors.Join(errs...)
	})
	return p.closed
}
