//go:build linux && !(386 || arm || mips || mipsle)

package verbs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// providers are the profiles of testdata/provider that have reliable connections.
var providers = []string{"least", "mlx5", "binds", "mlx4", "irdma", "bnxt_re", "hns", "erdma", "mana", "pvrdma"}

// withoutSRQ are those without shared receive queues: option srq=1024, which TestConformanceShared sets, is an error there.
var withoutSRQ = []string{"least", "irdma", "erdma", "mana"}

// libProvider builds the library that refuses what the adapters of a profile refuse. It skips without a device to stand
// behind it.
func libProvider(t *testing.T) string {
	t.Helper()
	if err := ibv.Available(); err != nil {
		t.Skip(err)
	}
	d, err := driver.Lookup("verbs")
	if err != nil {
		t.Fatal(err)
	}
	var gone *driver.UnavailableError
	if _, err := d.Query(driver.Hints{Device: os.Getenv("BYWASH_RDMA_DEV")}); errors.As(err, &gone) {
		t.Skip(gone)
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	lib := filepath.Join(t.TempDir(), "provider.so")
	build := exec.Command("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", lib,
		"testdata/provider/provider.c", "-Wl,--no-as-needed", "-libverbs")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return lib
}

// as runs tests of this program again, on a device that behaves like the profile.
func as(t *testing.T, lib, profile, run string) {
	t.Helper()
	args := []string{"-test.run=" + run, "-test.count=1", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "BYWASH_LIBIBVERBS="+lib, "BYWASH_PROVIDER="+profile)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as %s: %v\n%s", profile, err, out)
	}
	if !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("as %s: no test has run:\n%s", profile, out)
	}
}

// TestConformanceAsProvider runs the conformance suite as on other adapters: with fewer inline bytes, completion queues
// that cannot grow, without memory windows, shared receives or atomics.
func TestConformanceAsProvider(t *testing.T) {
	lib := libProvider(t)
	profiles, run := providers, "^TestConformance(Small|Large|Shared)$"
	if testing.Short() {
		profiles = providers[:1]
		run = "^TestConformance(Small|Large)$/^(EveryForm|PutGet|CancelRace|NoAllocations)$"
	}
	for _, profile := range profiles {
		t.Run(profile, func(t *testing.T) {
			run := run
			if slices.Contains(withoutSRQ, profile) {
				run = strings.ReplaceAll(run, "|Shared", "")
			}
			as(t, lib, profile, run)
		})
	}
}

// TestRefusedBinds: a receive whose window the device does not bind, and the later ones, arrive all the same.
func TestRefusedBinds(t *testing.T) { as(t, libProvider(t), "binds", "^TestReceiveAfterARefusedBind$") }

// TestNoReliableConnectionsIsNamed: an adapter without them is unavailable, with the reason and the remedy.
func TestNoReliableConnectionsIsNamed(t *testing.T) {
	if os.Getenv("BYWASH_PROVIDER") != "efa" {
		as(t, libProvider(t), "efa", "^TestNoReliableConnectionsIsNamed$")
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
}
