//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

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
