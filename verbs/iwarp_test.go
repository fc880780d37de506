//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// TestIWARPIsRefused needs a real iWARP device, such as siw0 in a virtual machine of hack/vm.
func TestIWARPIsRefused(t *testing.T) {
	if err := ibv.Available(); err != nil {
		t.Skip(err)
	}
	devs, err := ibv.Devices()
	if err != nil {
		t.Skip(err)
	}
	name := ""
	for _, d := range devs {
		if d.IWARP {
			name = d.Name
		}
	}
	if name == "" {
		t.Skip("needs an iWARP device (bin/vm -siw gives one)")
	}
	check := func(how string, err error) {
		t.Helper()
		if !isUnavailable(err) || !strings.Contains(err.Error(), "iWARP") || !strings.Contains(err.Error(), "immediate data") {
			t.Errorf("%s: got %v, want unavailable, iWARP, and what is missing", how, err)
		}
	}
	_, err = verbsDriver{}.Query(driver.Hints{Device: name})
	check("query", err)
	for _, d := range devs {
		if d.Name == name {
			for _, port := range describe(d) {
				check("list", port.Err)
			}
		}
	}
}
