//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// A device that was not named is not used, even if it is the only one. The error lists the devices and the merits of
// each.
func TestNoDeviceIsTakenUnnamed(t *testing.T) {
	p := newPair(t, veth.Config{Router: true})
	d, err := driver.Lookup("afxdp")
	if err != nil {
		t.Fatal(err)
	}
	end := &p.Ends[0]
	_, err = d.Query(driver.Hints{Options: map[string]string{"netns": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), end.Namespace)}})
	var u *driver.UnavailableError
	if !errors.As(err, &u) || u.Absent {
		t.Fatalf("query without a device: %v", err)
	}
	for _, part := range []string{"--dev " + end.Device, "Hints.Device", end.Device + " (" + end.IPv4.Addr().String(), "native XDP, has the default route)"} {
		if !strings.Contains(u.Remedy, part) {
			t.Errorf("the remedy lacks %q: %s", part, u.Remedy)
		}
	}
}

// A bond's native program sees frames with the queues of the members, which give them to no socket of the bond: opening
// it says so, instead of losing all frames.
func TestBondIsRefused(t *testing.T) {
	p := newPair(t, veth.Config{})
	end := &p.Ends[0]
	h, err := netlink.NewHandleAt(netns.NsHandle(end.Namespace), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond7"})
	if err := h.LinkAdd(bond); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("needs the kernel's module bonding")
	} else if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetUp(bond); err != nil {
		t.Fatal(err)
	}
	d, err := driver.Lookup("afxdp")
	if err != nil {
		t.Fatal(err)
	}
	options := map[string]string{"netns": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), end.Namespace), "carrier": "ether"}
	nic, err := d.Query(driver.Hints{Device: "bond7", Options: options})
	if err != nil {
		t.Fatal(err)
	}
	_, err = nic.Open(driver.Attributes{})
	if err == nil || !strings.Contains(err.Error(), "is a bond") || !strings.Contains(err.Error(), "mode=skb") {
		t.Errorf("opening a bond: got %v, want an error that names it and the remedy", err)
	}
}
