//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// port is a port of an open device, with its addresses.
type port struct {
	dev       *ibv.Context
	num       int
	attr      ibv.PortAttr
	gid       ibv.GIDEntry
	gids      []ibv.GIDEntry // all of the port
	pkey      uint16         // partition key
	pkeyIndex int
}

// splitDevice splits a name like "mlx5_0:1" into device and port; 0 if it names no port.
func splitDevice(name string) (device string, num int, err error) {
	device, rest, ok := strings.Cut(name, ":")
	if !ok {
		return device, 0, nil
	}
	num, err = strconv.Atoi(rest)
	if err != nil || num < 1 || num > 255 {
		return "", 0, fmt.Errorf("%w: device %q: want a name, or name:port", driver.ErrInvalid, name)
	}
	return device, num, nil
}

// portName returns a port's name as users write it: without its number if the device has one port only.
func portName(dev *ibv.Context, num int) string {
	if dev.Query().Ports <= 1 {
		return dev.Name()
	}
	return fmt.Sprintf("%s:%d", dev.Name(), num)
}

// openPort opens the device and chooses the port that name asks for, or else the first active one.
func openPort(o options, name string) (*port, error) {
	device, num, err := splitDevice(name)
	if err != nil {
		return nil, err
	}
	dev, err := ibv.Open(device)
	switch {
	case errors.Is(err, unix.ENOSYS):
		return nil, noDevice()
	case err != nil:
		return nil, unavailable(device, "it cannot be opened", "", err)
	}
	ports := max(dev.Query().Ports, 1)
	if err := checkPort(device, ports, num); err != nil {
		_ = dev.Close()
		return nil, err
	}
	first, last := num, num
	if num == 0 {
		first, last = 1, ports
	}
	p, err := usePort(dev, o, first, last)
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	return p, nil
}

// checkPort returns an error if the device has no port of that number. The number 0 means that no port is named.
func checkPort(device string, ports, num int) error {
	switch {
	case num <= ports:
		return nil
	case ports == 1:
		return fmt.Errorf("%w: device %s has no port %d, only port 1", driver.ErrInvalid, device, num)
	}
	return fmt.Errorf("%w: device %s has no port %d: its ports are %s:1 to %s:%d", driver.ErrInvalid, device, num, device, device, ports)
}

// usePort chooses the first active port from first to last. With an error it returns the attributes of the last port
// that it tried.
func usePort(dev *ibv.Context, o options, first, last int) (p *port, err error) {
	p = &port{dev: dev}
	for k := first; k <= last; k++ {
		if p.attr, err = dev.QueryPort(k); err != nil {
			return nil, err
		}
		if p.num = k; p.attr.State == ibv.PortActive {
			break
		}
	}
	if p.attr.State != ibv.PortActive {
		return p, unavailable(portName(dev, p.num), fmt.Sprintf("its port is %v", p.attr.State),
			"connect the cable, or bring its network interface up (ip link set DEV up)", nil)
	}
	if dev.IWARP() { // which has no partition keys to read
		return p, noIWARP(portName(dev, p.num))
	}
	return p, p.readTables(o)
}

// hasRC returns an error if the device makes no RC queue pairs. What else goes wrong is reported when the device is opened.
func (p *port) hasRC() error {
	pd, err := p.dev.AllocPD()
	if err != nil {
		return nil
	}
	defer pd.Close()
	cq, err := p.dev.CreateCQ(2, nil, 0)
	if err != nil {
		return nil
	}
	defer cq.Close()
	qp, err := pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err == nil {
		_ = qp.Close()
	}
	return noRC(portName(p.dev, p.num), err)
}

// noRC returns an error if err, of the making of an RC queue pair, means that the device has none.
func noRC(device string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return &driver.UnavailableError{
			Driver: Name, Device: device, Reason: "it has no reliable connections (RC queue pairs)", Absent: true,
			Remedy: "use the driver tcp or afxdp on its interface", Err: err,
		}
	}
	return nil
}

// readTables reads the port's partition key, and chooses its GID. The GID stays the same, if it is still there and the
// options do not name an index.
func (p *port) readTables(o options) (err error) {
	if err := p.readKey(o, func(k int) (uint16, error) { return p.dev.PKey(p.num, k) }); err != nil {
		return err
	}
	if p.gids, err = p.dev.GIDs(p.num); err != nil {
		return err
	}
	gids := p.gids
	if o.gidIndex < 0 {
		i := slices.IndexFunc(gids, func(g ibv.GIDEntry) bool { return g.GID == p.gid.GID && g.Type == p.gid.Type })
		if i >= 0 {
			gids = gids[i : i+1]
		}
	}
	return p.takeGID(gids, o)
}

// Parts of a partition key: the top bit is that of a full member, who communicates with all members; limited members
// communicate with full ones only.
const (
	fullMember = 0x8000
	partition  = 0x7fff // 0: the place in the port's table is empty
)

// readKey chooses the partition key, unless the options do: the one so far, else the first of a full member, else the
// first. at returns an entry of the port's table.
func (p *port) readKey(o options, at func(int) (uint16, error)) error {
	first, last := 0, max(p.attr.PKeys, 1)-1
	if o.pkeyIndex >= 0 {
		first, last = o.pkeyIndex, o.pkeyIndex
	}
	old := p.pkey
	p.pkey, p.pkeyIndex = 0, first
	for k := first; k <= last; k++ {
		key, err := at(k)
		if err != nil {
			return err
		}
		if key&partition == 0 {
			continue
		}
		better := p.pkey == 0 || p.pkey&fullMember < key&fullMember
		if better || key == old {
			p.pkey, p.pkeyIndex = key, k
		}
		if key == old || old == 0 && key&fullMember != 0 {
			break
		}
	}
	switch {
	case p.pkey != 0 || p.attr.LinkLayer != ibv.LinkInfiniBand:
		return nil
	case o.pkeyIndex >= 0:
		return fmt.Errorf("%w: port %d has no partition key at index %d (option pkey-index)", driver.ErrInvalid, p.num, o.pkeyIndex)
	}
	return unavailable(portName(p.dev, p.num), "its port has no partition key", "ask the administrator of the subnet manager", nil)
}

func (p *port) takeGID(gids []ibv.GIDEntry, o options) error {
	var found bool
	p.gid, found = bestGID(gids, o, interfaces())
	switch {
	case found:
		return nil
	case o.gidIndex >= 0 || o.gid.IsValid():
		return fmt.Errorf("%w: port %d has no such GID (bywash info lists them)", driver.ErrInvalid, p.num)
	case p.attr.LinkLayer == ibv.LinkInfiniBand: // whose ports have LIDs
		return nil
	}
	return unavailable(p.dev.Name(), fmt.Sprintf("port %d has no GID", p.num), "give its network interface an address", nil)
}

// bestGID chooses among the GIDs that the options allow. The index does not count: it changes when addresses do. The
// GID's network interface is set anew, because the kernel lists the GIDs of all network namespaces, with the interface
// numbers of theirs.
func bestGID(gids []ibv.GIDEntry, o options, nets []netInterface) (gid ibv.GIDEntry, found bool) {
	best := -1
	for _, g := range gids {
		if o.gidIndex >= 0 && g.Index != o.gidIndex || o.gid.IsValid() && netip.AddrFrom16(g.GID).Unmap() != o.gid {
			continue
		}
		if g.Index > math.MaxUint8 { // a queue pair's attributes have 8 bits for it
			continue
		}
		g.NetDev = interfaceOf(g, nets)
		if r := rankGID(g); r > best {
			best, gid = r, g
		}
	}
	return gid, best >= 0
}

// netInterface is a network interface of this namespace that is up.
type netInterface struct {
	name     string
	mac      net.HardwareAddr
	loopback bool
	addrs    []netip.Prefix
}

// has reports whether the interface has the address, and the address with the length of its prefix.
func (n *netInterface) has(at netip.Addr) (netip.Prefix, bool) {
	for _, p := range n.addrs {
		if p.Addr() == at {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func interfaces() (up []netInterface) {
	all, _ := net.Interfaces()
	for _, n := range all {
		if n.Flags&net.FlagUp == 0 {
			continue
		}
		x := netInterface{name: n.Name, mac: n.HardwareAddr, loopback: n.Flags&net.FlagLoopback != 0}
		list, _ := n.Addrs()
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				x.addrs = append(x.addrs, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
		up = append(up, x)
	}
	return up
}

// interfaceOf returns the name of the interface that has the GID's address, or "" if none has. That of a link-local
// address, which several interfaces can have, is the one that the kernel names. The kernel makes one GID from an
// interface's hardware address, whether the interface has that address or not.
func interfaceOf(g ibv.GIDEntry, nets []netInterface) string {
	at := netip.AddrFrom16(g.GID).Unmap()
	local := at.Is6() && at.IsLinkLocalUnicast()
	for _, n := range nets {
		if local && (n.name != g.NetDev || len(n.mac) != 6) {
			continue
		}
		if _, has := n.has(at); has {
			return n.name
		}
		if m := n.mac; local && [8]byte(g.GID[8:]) == [8]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]} {
			return n.name
		}
	}
	return ""
}

// rankGID orders GIDs: those on an interface of this namespace that is up first, then RoCE v2 before v1, then routable
// ones before local ones.
func rankGID(g ibv.GIDEntry) int {
	r := 0
	if g.NetDev != "" {
		r += 8
	}
	if g.Type == ibv.GIDRoCEv2 {
		r += 4
	}
	switch a := netip.AddrFrom16(g.GID); {
	case a.Is4In6() && !a.Unmap().IsLinkLocalUnicast():
		r += 3
	case !a.IsLinkLocalUnicast():
		r += 2
	}
	return r
}

// forManagers returns the port's description for the connection managers.
func (p *port) forManagers(o options) *connect.Port {
	attr := p.dev.Query()
	c := &connect.Port{
		Device: p.dev.Name(), Num: uint8(p.num), LinkLayer: connect.LinkLayer(p.attr.LinkLayer), LID: p.attr.LID,
		GID: p.gid.GID, GIDIndex: uint8(p.gid.Index), GIDType: connect.GIDType(p.gid.Type),
		MTU: p.attr.ActiveMTU.Bytes(), PKey: p.pkey, PKeyIndex: uint16(p.pkeyIndex),
		MaxResponder: uint8(min(attr.MaxQPRdAtom, 16)), MaxInitiator: uint8(min(attr.MaxQPInitAtom, 16)),
		Quality: o.quality, Verbs: p.dev, PresentMTU: p.presentMTU,
	}
	nets := interfaces()
	if o.gidIndex < 0 && !o.gid.IsValid() {
		c.Subnets = subnets(p.gid, p.gids, nets)
	}
	for _, s := range c.Subnets { // before others, of which a manager may have too many
		c.Addrs = append(c.Addrs, s.GID.Addr())
	}
	for _, a := range addresses(p.gid, nets) {
		if !slices.Contains(c.Addrs, a) {
			c.Addrs = append(c.Addrs, a)
		}
	}
	c.Zone = p.gid.NetDev
	return c
}

// presentMTU returns the active MTU of the port as it is now, in bytes, or 0 with an error of the device.
func (p *port) presentMTU() int {
	attr, err := p.dev.QueryPort(p.num)
	if err != nil {
		return 0
	}
	return attr.ActiveMTU.Bytes()
}

// subnets returns g and the GIDs that a connection may use instead, because the peer shares their subnet: of the same type
// and family, on interfaces of this namespace that are up, and not link-local.
func subnets(g ibv.GIDEntry, gids []ibv.GIDEntry, nets []netInterface) (list []connect.Subnet) {
	four := netip.AddrFrom16(g.GID).Is4In6()
	for _, x := range gids {
		at := netip.AddrFrom16(x.GID)
		if x.Type != g.Type || at.Is4In6() != four || at.Unmap().IsLinkLocalUnicast() || x.Index > 255 {
			continue
		}
		for _, n := range nets {
			p, has := n.has(at.Unmap())
			switch s := (connect.Subnet{GID: p, GIDIndex: uint8(x.Index)}); {
			case has && x.GID == g.GID:
				list = slices.Insert(list, 0, s)
			case has:
				list = append(list, s)
			}
		}
	}
	return list
}

// addresses returns the addresses at which connection managers reach this host: the GID if it is an IP address, then
// the other addresses of its interface. A GID of InfiniBand has no interface, and that of RoCE may be in another
// network namespace: then they are the addresses of all interfaces, IP over InfiniBand first, without the link-local
// ones, which a peer cannot reach without knowing the interface.
func addresses(g ibv.GIDEntry, nets []netInterface) (addrs []netip.Addr) {
	own := netip.AddrFrom16(g.GID).Unmap()
	if g.NetDev == "" {
		const infiniBand = 20 // bytes of a hardware address
		slices.SortStableFunc(nets, func(a, b netInterface) int {
			return cmp.Compare(len(b.mac)/infiniBand, len(a.mac)/infiniBand)
		})
	}
	for _, n := range nets {
		if g.NetDev != "" && n.name != g.NetDev || g.NetDev == "" && n.loopback {
			continue
		}
		for _, p := range n.addrs {
			switch at := p.Addr(); {
			case at == own:
				addrs = append([]netip.Addr{at}, addrs...)
			case g.NetDev != "" || !at.IsLinkLocalUnicast():
				addrs = append(addrs, at)
			}
		}
	}
	return addrs
}

// noIWARP returns the parts of the driver that an iWARP device cannot support.
func noIWARP(device string) error {
	return unavailable(device, "it is an iWARP device, which the driver does not support: its messages need immediate data, "+
		"and its queue pairs are not connected through rdma_cm", "use an InfiniBand or RoCE device, or the driver tcp", nil)
}

func mtuOf(size int) (ibv.MTU, error) {
	m := ibv.MTU(bits.Len(uint(size)) - 8)
	if m.Bytes() != size {
		return 0, fmt.Errorf("%w: path MTU of %d bytes", driver.ErrInvalid, size)
	}
	return m, nil
}

func unavailable(device, reason, remedy string, err error) error {
	return &driver.UnavailableError{Driver: Name, Device: device, Reason: reason, Remedy: remedy, Err: err}
}

// detailGID describes a GID for people.
func detailGID(g ibv.GIDEntry) string {
	s := fmt.Sprintf("%v, %v", g.GID, g.Type)
	if g.NetDev != "" {
		s += ", " + g.NetDev
	}
	return s
}

// softPackets bounds the packets of one write on Soft-RoCE. There only the acknowledgement of a whole request resets
// the count of retries, so that a few losses within a long request break the connection.
const softPackets = 16
