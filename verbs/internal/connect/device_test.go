//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/bywash/bywash/verbs/ibv"
)

// testDevice is an opened RDMA device with an address.
type testDevice struct {
	verbs *ibv.Context
	port  ibv.PortAttr
	gid   ibv.GIDEntry
	addrs []netip.Addr
}

// openDevice opens BYWASH_RDMA_DEV, or the first device with an active port and a RoCE v2 GID that is an IPv4 address.
// t is nil in children.
func openDevice(t testing.TB) *testDevice {
	give := func(why any) *testDevice {
		if t == nil {
			panic(why)
		}
		t.Helper()
		t.Skipf("needs an RDMA device with an active port and an IPv4 address (Soft-RoCE will do): %v", why)
		return nil
	}
	if err := ibv.Available(); err != nil {
		return give(err)
	}
	devs, err := ibv.Devices()
	if err != nil && !errors.Is(err, syscall.ENOSYS) {
		return give(err)
	}
	want := os.Getenv("BYWASH_RDMA_DEV")
	for _, info := range devs {
		if want != "" && info.Name != want {
			continue
		}
		c, err := ibv.Open(info.Name)
		if err != nil {
			return give(err)
		}
		d := &testDevice{verbs: c}
		d.port, _ = c.QueryPort(1)
		gids, _ := c.GIDs(1)
		for _, g := range gids {
			if a := netip.AddrFrom16(g.GID); d.port.State == ibv.PortActive && g.Type == ibv.GIDRoCEv2 && a.Is4In6() {
				d.gid, d.addrs = g, []netip.Addr{a.Unmap()}
				return d
			}
		}
		_ = c.Close()
	}
	return give("there is none")
}

// describe fills in what a Port must contain of the device.
func (d *testDevice) describe(p *Port) {
	p.Device, p.Verbs, p.Addrs = d.verbs.Name(), d.verbs, d.addrs
	p.LinkLayer, p.GIDType, p.GID, p.GIDIndex = LinkLayer(d.port.LinkLayer), GIDType(d.gid.Type), d.gid.GID, uint8(d.gid.Index)
	p.MTU = d.port.ActiveMTU.Bytes()
	if n, err := net.InterfaceByName(d.gid.NetDev); err == nil {
		p.Zone = n.Name
	}
}

func (d *testDevice) close(t testing.TB) {
	if err := d.verbs.Close(); err != nil {
		t.Errorf("after the test: %v", err)
	}
}
