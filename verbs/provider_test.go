//go:build linux && !(386 || arm || mips || mipsle)

package verbs_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/provider"
)

// withoutSRQ are the profiles without shared receive queues: option srq=1024, which TestConformanceShared sets, is an
// error there.
var withoutSRQ = []string{"least", "irdma", "erdma", "mana"}

// TestConformanceAsProvider runs the conformance suite as on other adapters: with fewer inline bytes, completion queues
// that cannot grow, without memory windows, shared receives or atomics.
func TestConformanceAsProvider(t *testing.T) {
	lib := provider.Build(t)
	profiles, run := provider.Profiles, "^TestConformance(Small|Large|Shared)$"
	if testing.Short() {
		profiles = profiles[:1]
		run = "^TestConformance(Small|Large)$/^(EveryForm|PutGet|CancelRace|NoAllocations)$"
	}
	for _, profile := range profiles {
		t.Run(profile, func(t *testing.T) {
			run := run
			if slices.Contains(withoutSRQ, profile) {
				run = strings.ReplaceAll(run, "|Shared", "")
			}
			provider.Run(t, lib, profile, run)
		})
	}
}

// TestRefusedBinds: a receive whose window the device does not bind, and the later ones, arrive all the same.
func TestRefusedBinds(t *testing.T) {
	provider.Run(t, provider.Build(t), "binds", "^TestReceiveAfterARefusedBind$")
}

// TestLastSharedReceiveIsAwaited: a queue pair is neither reset nor destroyed while the device still completes shared
// receives for it; the library ends the process otherwise.
func TestLastSharedReceiveIsAwaited(t *testing.T) {
	provider.Run(t, provider.Build(t), "last", "^(TestSharedReceivesServeAll|TestFloodOfSharedReceives)$")
}

// TestNoReliableConnectionsIsNamed: an adapter without them is unavailable, with the reason and the remedy.
func TestNoReliableConnectionsIsNamed(t *testing.T) {
	if provider.Profile() != "efa" {
		provider.Run(t, provider.Build(t), "efa", "^TestNoReliableConnectionsIsNamed$")
		return
	}
	d, _ := driver.Lookup("verbs")
	nic, err := d.Query(driver.Hints{Device: os.Getenv("BYWASH_RDMA_DEV")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = nic.Open(driver.Attributes{Secret: []byte("a secret of the test")})
	if err == nil || !strings.Contains(err.Error(), "no reliable connections") || !strings.Contains(err.Error(), "tcp") {
		t.Fatalf("opening it: %v", err)
	}
	for _, dev := range d.Devices() {
		if dev.Err == nil {
			t.Errorf("%s is listed as one that can be used", dev.Name)
		}
	}
}

// TestFastestLanes: the speed of XDR, which the port's old field for it cannot hold.
func TestFastestLanes(t *testing.T) {
	if provider.Profile() != "mlx5" {
		provider.Run(t, provider.Build(t), "mlx5", "^TestFastestLanes$")
		return
	}
	d, _ := driver.Lookup("verbs")
	nic, err := d.Query(driver.Hints{Device: os.Getenv("BYWASH_RDMA_DEV")})
	if err != nil {
		t.Fatal(err)
	}
	if got, lane := nic.Properties().Profile.Bandwidth, 200e9/8; got < lane {
		t.Fatalf("the bandwidth is %g bytes a second, less than the %g of one lane", got, lane)
	}
}
