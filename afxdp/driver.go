//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func init() { driver.Register(afxdpDriver{}) }

type afxdpDriver struct{}

// Optional interfaces of a driver, which sessions and the bywash command find by type assertions.
var (
	_ driver.Configurable = afxdpDriver{}
	_ driver.Ranked       = afxdpDriver{}
	_ driver.Reserved     = afxdpDriver{}
)

func (afxdpDriver) Name() string { return Name }

// exclusivity is the value of driver.Profile.Exclusivity of all its NICs.
const exclusivity = 16

func (afxdpDriver) MaxExclusivity() int { return exclusivity }

func (afxdpDriver) Reserved() string {
	return "it attaches a program to a network interface of the machine and takes its queues"
}

func (afxdpDriver) Devices() []driver.Device {
	list, err := candidates()
	if err != nil || len(list) == 0 {
		if err == nil {
			err = noDevice()
		}
		return []driver.Device{{Name: Name, Description: "Ethernet devices", Err: err}}
	}
	var devs []driver.Device
	for _, i := range list {
		d := driver.Device{Name: i.Name, Description: "Ethernet device", Err: check(i)}
		d.Details = details(i)
		devs = append(devs, d)
	}
	return devs
}

func noDevice() error {
	return &driver.UnavailableError{
		Driver: Name, Reason: "this machine has no Ethernet device besides loopback", Absent: true,
		Remedy: "as root, bywash perf -d afxdp makes a pair of virtual ones for itself",
	}
}

func unavailable(device, reason, remedy string, err error) error {
	return &driver.UnavailableError{Driver: Name, Device: device, Reason: reason, Remedy: remedy, Err: err}
}

// candidates lists the Ethernet devices of this network namespace.
func candidates() (list []net.Interface, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, unavailable("", "network devices cannot be listed", "", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 {
			list = append(list, i)
		}
	}
	return list, nil
}

// check returns why a device cannot be used, or nil.
func check(i net.Interface) error {
	if i.Flags&net.FlagUp == 0 {
		return unavailable(i.Name, "it is down", "ip link set "+i.Name+" up", nil)
	}
	if err := xsk.Probe(xsk.FeatureSocket); errors.Is(err, errors.ErrUnsupported) {
		return unavailable(i.Name, "the kernel has no AF_XDP", "use Linux 5.9 or later, built with CONFIG_XDP_SOCKETS", err)
	} else if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EPERM) {
		return unprivileged(i.Name, err)
	}
	if os.Geteuid() != 0 && !capable() {
		return unprivileged(i.Name, nil)
	}
	return nil
}

func unprivileged(device string, err error) error {
	return unavailable(device, "it takes privileges to open it",
		"run as root, or give the program CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK (setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep PROGRAM)", err)
}

// capable reports whether the process has the capabilities that opening needs.
func capable() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	has := func(c uint) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	return has(unix.CAP_NET_ADMIN) && has(unix.CAP_NET_RAW) && (has(unix.CAP_BPF) || has(unix.CAP_SYS_ADMIN))
}

// details returns facts about a device for people.
func details(i net.Interface) (list []driver.Detail) {
	add := func(name, format string, args ...any) {
		list = append(list, driver.Detail{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	add("MTU", "%d bytes", i.MTU)
	if q, err := xsk.DeviceQueues(i.Name); err == nil {
		add("queues", "%d to receive, %d to transmit", q.Rx, q.Tx)
	}
	if f, err := xsk.DeviceFeatures(i.Name); err == nil {
		yes := map[bool]string{true: "yes", false: "no"}
		add("native XDP", "%s", yes[f.Native])
		add("zero-copy", "%s", yes[f.ZeroCopy])
		add("multi-buffer", "%s", yes[f.MultiBuffer])
		add("checksums when sending", "%s", yes[f.TxChecksum])
		add("time stamps when sending", "%s", yes[f.TxTimestamp])
	}
	if _, a, err := chooseAddress(0, carrier.Link{Name: i.Name, MTU: i.MTU}, addresses(i)); err == nil && a.ip.IsValid() {
		add("address", "%v", a.ip)
		var others []string
		for _, b := range addresses(i) {
			if b != a.ip {
				others = append(others, b.String())
			}
		}
		if len(others) > 0 {
			add("other addresses", "%s", strings.Join(others, ", "))
		}
	}
	return list
}

// addresses returns the addresses of a device, last those that the kernel replaces or does not use yet.
func addresses(i net.Interface) []netip.Addr {
	const later = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE
	all, _ := netlink.AddrList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i.Index}}, netlink.FAMILY_ALL)
	var list, last []netip.Addr
	for _, a := range all {
		switch ip, _ := netip.AddrFromSlice(a.IP); {
		case !ip.IsValid() || a.Flags&unix.IFA_F_DADFAILED != 0:
		case a.Flags&later != 0:
			last = append(last, ip.Unmap())
		default:
			list = append(list, ip.Unmap())
		}
	}
	return append(list, last...)
}

func (afxdpDriver) Query(h driver.Hints) (driver.NIC, error) {
	o, err := optionTable.Parse(h.Options)
	if h.Track > driver.Large {
		err = fmt.Errorf("%w: unknown track %d (want Small or Large)", driver.ErrInvalid, h.Track)
	}
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	var n *kit.NIC
	err = kit.InNamespace(o.netns, func() (err error) {
		n, err = query(h, o)
		return err
	})
	if err != nil {
		if e := new(driver.UnavailableError); errors.As(err, &e) {
			return nil, err
		}
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	return n, nil
}

func query(h driver.Hints, o options) (*kit.NIC, error) {
	i, err := chooseDevice(h.Device)
	if err != nil {
		return nil, err
	}
	if err := check(*i); err != nil {
		return nil, err
	}
	l := carrier.Link{Name: i.Name, MAC: carrier.MAC(i.HardwareAddr), MTU: i.MTU}
	kind, addr, err := chooseAddress(o.kind, l, addresses(*i))
	if err != nil {
		return nil, unavailable(i.Name, err.Error(), "ip addr add ADDRESS dev "+i.Name, nil)
	}
	o.kind, addr.port = kind, o.port
	if h.Peers > 0 && h.Options["frames"] == "" { // each peer needs frames, and a quarter is kept for new connections
		o.frames = framesOf(h.Peers)
	}
	o.peers = h.Peers
	props := driver.Properties{Driver: Name, Device: i.Name, Track: h.Track, Capabilities: capabilities(h.Track, o, i.MTU), Profile: profile(i.Name)}
	return kit.NewNIC(props, func(a driver.Attributes) (*share, error) { return openContext(props, o, addr, i.MTU, a) }), nil
}

// chooseDevice returns the device with that name. It uses no device that was not named: a device may be the machine's
// only way to others.
func chooseDevice(name string) (*net.Interface, error) {
	list, err := candidates()
	if err != nil {
		return nil, err
	}
	if name != "" {
		for k := range list {
			if list[k].Name == name {
				return &list[k], nil
			}
		}
		return nil, unavailable(name, "there is no Ethernet device of that name", "bywash info -d afxdp lists them", nil)
	}
	if len(list) == 0 {
		return nil, noDevice()
	}
	return nil, unnamed(list)
}

// unnamed is the error for a device that was not named.
func unnamed(list []net.Interface) error {
	routes := defaultRoutes()
	rank := func(i net.Interface) int { // the machine's way to others comes after devices that are spare
		switch {
		case i.Flags&net.FlagUp == 0:
			return 2
		case slices.Contains(routes, i.Index):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b net.Interface) int { return rank(a) - rank(b) })
	var known []string
	for _, i := range list {
		known = append(known, i.Name+" ("+merits(i, slices.Contains(routes, i.Index))+")")
	}
	return unavailable("", "no device is named: this driver attaches a program to the device and takes its queues",
		"name one, such as --dev "+list[0].Name+", BYWASH_DRIVERS=afxdp:"+list[0].Name+" or driver.Hints.Device; there are "+
			strings.Join(known, ", "), nil)
}

// merits returns in a few words the advantages and disadvantages of a device.
func merits(i net.Interface, hasDefaultRoute bool) string {
	if i.Flags&net.FlagUp == 0 {
		return "down"
	}
	var words []string
	if _, a, err := chooseAddress(0, carrier.Link{}, addresses(i)); err == nil && a.ip.IsValid() {
		words = append(words, a.ip.String())
	} else {
		words = append(words, "no address")
	}
	if f, err := xsk.DeviceFeatures(i.Name); err == nil {
		switch {
		case f.ZeroCopy:
			words = append(words, "zero-copy")
		case f.Native:
			words = append(words, "native XDP")
		}
	}
	if hasDefaultRoute {
		words = append(words, "has the default route")
	}
	return strings.Join(words, ", ")
}

// defaultRoutes are the indices of the devices with a default route.
func defaultRoutes() (list []int) {
	all, _ := netlink.RouteList(nil, netlink.FAMILY_ALL) // without it the error is less detailed
	for _, r := range all {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		list = append(list, r.LinkIndex)
		for _, hop := range r.MultiPath {
			list = append(list, hop.LinkIndex)
		}
	}
	return list
}

func capabilities(t driver.Track, o options, mtu int) driver.Capabilities {
	c := driver.Capabilities{
		IOVec: true, Data: true, SendWait: true, RecvWait: true, DeadTime: o.deadTime,
	}
	if t == driver.Small {
		// A buffer is the payload of one packet on the queried device.
		size := min(mtu-o.kind.Overhead(), 4096-xsk.RxReserve-o.kind.HeaderLen(true), 4096-dataAt) - prefixSize - link.HeaderSize - 16
		c.MaxMessage, c.BufferSize = maxSmall, min(size&^7, maxSmall)
		c.BufferSend, c.BufferRecv, c.Probe = true, true, true
		c.SendDepth, c.RecvDepth = smallDepth, smallDepth
		c.Ordered = true
		return c
	}
	c.MaxMessage, c.RdvSize = maxMessage, kit.RdvBytes
	c.SendDepth, c.RecvDepth = transferDepth, transferDepth
	return c
}

// profile describes Ethernet of the device's speed.
func profile(device string) driver.Profile {
	return driver.Profile{Latency: 3 * time.Microsecond, Bandwidth: kit.LinkSpeed(device), Exclusivity: exclusivity}
}
