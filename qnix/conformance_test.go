package qnix_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	_ "github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// The NIC that the tests run on: what nic.EnvPath names, as in virtual machines the module's, or a softnic of their own.
var lab struct {
	nic string
	why error // there is none
}

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	lab.nic = os.Getenv(nic.EnvPath)
	if lab.nic != "" {
		drivertest.Main(m)
		return
	}
	dir, err := os.MkdirTemp("", "qnix-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab.nic = filepath.Join(dir, "nic.sock")
	os.Setenv(nic.EnvPath, lab.nic)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	lab.why = softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{lab.nic}, Idle: time.Minute})
	cancel()
	if lab.why != nil {
		os.Setenv("BYWASH_QNIX_WHY", lab.why.Error()) // for the tests inside of the package
	}
	drivertest.Main(m)
}

func needNIC(t testing.TB) {
	t.Helper()
	switch {
	case lab.why == nil:
	case strings.Contains(lab.why.Error(), "without cgo"):
		t.Skip(lab.why)
	default:
		t.Fatalf("no NIC: %v", lab.why)
	}
}

func config(t *testing.T, track driver.Track) drivertest.Config {
	needNIC(t)
	c := drivertest.Config{Driver: "qnix", Hints: driver.Hints{Track: track, Device: lab.nic}, Deaths: 40}
	if strings.HasPrefix(lab.nic, "/dev/") {
		c.TimeScale = 4 // most likely in an emulated machine
	}
	if testing.Short() {
		c.Deaths = 12
	}
	return c
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(t, driver.Small)) }

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(t, driver.Large)) }
