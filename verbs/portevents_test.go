//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/bywash/bywash/driver"
)

// interfaceUnder is the network interface under the RDMA device, whose addresses and link the test may change.
func interfaceUnder(t *testing.T, c *opened) netlink.Link {
	t.Helper()
	inMachine(t)
	nl, err := netlink.LinkByName(c.gid.NetDev)
	if err != nil {
		t.Fatal(err)
	}
	return nl
}

// TestConnectsAfterTheGIDHasMoved: addresses of the host come and go, and the device's GID has another index in the
// table than when the context was opened. Later connections use that.
func TestConnectsAfterTheGIDHasMoved(t *testing.T) {
	a, b := openDevice(t, driver.Small, nil), openDevice(t, driver.Small, nil)
	nl := interfaceUnder(t, a)
	before, gid := a.gid.Index, netip.AddrFrom16(a.gid.GID).Unmap()
	all, err := netlink.AddrList(nl, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var own *netlink.Addr
	for k := range all {
		if at, _ := netip.AddrFromSlice(all[k].IP.To4()); at == gid {
			own = &all[k]
		}
	}
	if own == nil {
		t.Fatalf("the interface has no address %v", gid)
	}
	other, err := netlink.ParseAddr("198.18.99.2/32")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = netlink.AddrDel(nl, other), netlink.AddrReplace(nl, own) })
	indexOf := func(at netip.Addr) int {
		gids, err := a.dev.GIDs(a.num)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range gids {
			if netip.AddrFrom16(g.GID).Unmap() == at {
				return g.Index
			}
		}
		return -1
	}
	if err := netlink.AddrDel(nl, own); err != nil {
		t.Fatal(err)
	}
	within(t, "the GID to go", func() bool { return indexOf(gid) < 0 })
	if err := netlink.AddrAdd(nl, other); err != nil {
		t.Fatal(err)
	}
	within(t, "another address to come", func() bool { return indexOf(netip.MustParseAddr("198.18.99.2")) >= 0 })
	if err := netlink.AddrAdd(nl, own); err != nil {
		t.Fatal(err)
	}
	within(t, "the GID to come back", func() bool { return indexOf(gid) >= 0 })
	if indexOf(gid) == before {
		t.Fatalf("the GID has index %d again", before)
	}
	within(t, "a connection", func() bool { return connectOnce(t, a, b) == nil })
}

// TestConnectsAfterTheMTUHasChanged: the network interface gets a lower MTU, of which Soft-RoCE reports no event. Later
// connections use it.
func TestConnectsAfterTheMTUHasChanged(t *testing.T) {
	c := openDevice(t, driver.Small, nil)
	nl := interfaceUnder(t, c)
	before := nl.Attrs().MTU
	t.Cleanup(func() { _ = netlink.LinkSetMTU(nl, before) })
	set := func(mtu, active int) {
		if err := netlink.LinkSetMTU(nl, mtu); err != nil {
			t.Fatal(err)
		}
		within(t, "the MTU", func() bool { a, err := c.dev.QueryPort(c.num); return err == nil && a.ActiveMTU.Bytes() == active })
	}
	a, b := openDevice(t, driver.Small, nil), openDevice(t, driver.Small, nil)
	set(700, 512)
	if err := connectOnce(t, a, b); err != nil {
		t.Error(err)
	}
}

// connectOnce connects two contexts and disconnects them again.
func connectOnce(t *testing.T, a, b *opened) error {
	t.Helper()
	ia, ib, err := connectBoth(t, a, b)
	if err == nil {
		err = exchange(ia, ib)
	}
	for _, i := range []driver.Instance{ia, ib} {
		within(t, "disconnect", func() bool { return i.Disconnect() != driver.ErrBusy })
	}
	return err
}

// exchange sends a message of 8 bytes, and returns the error of either side.
func exchange(from, to driver.Instance) error {
	send, recv := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := to.RecvPost(&recv); err != nil {
		return err
	}
	if err := from.SendPost(&send); err != nil {
		return err
	}
	sent, received := false, false
	for end := time.Now().Add(limit); !sent || !received; {
		var err error
		if !sent {
			if sent, err = from.SendPoll(&send); err != nil {
				return err
			}
		}
		if !received {
			if received, err = to.RecvPoll(&recv); err != nil {
				return err
			}
		}
		if time.Now().After(end) {
			return context.DeadlineExceeded
		}
	}
	return nil
}

// TestLinkGoesDownAndUp: messages go on when the link is back, or the error names the link. New connections work.
func TestLinkGoesDownAndUp(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	nl := interfaceUnder(t, a.ctx)
	t.Cleanup(func() { _ = netlink.LinkSetUp(nl) })
	if err := exchange(a.api, b.api); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(nl); err != nil {
		t.Fatal(err)
	}
	back := time.AfterFunc(300*time.Millisecond, func() { _ = netlink.LinkSetUp(nl) })
	defer back.Stop()
	begin := time.Now()
	for time.Since(begin) < time.Second {
		if err := exchange(a.api, b.api); err != nil {
			t.Log(err)
			if !strings.Contains(err.Error(), "link of port") {
				t.Errorf("the error does not name the link: %v", err)
			}
			break
		}
	}
	if err := netlink.LinkSetUp(nl); err != nil {
		t.Fatal(err)
	}
	within(t, "a connection", func() bool {
		err := connectOnce(t, a.ctx, b.ctx)
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
}
