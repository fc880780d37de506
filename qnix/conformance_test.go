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
	"github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// lab is the NIC that the tests run on: what nic.EnvPath names, as in virtual machines the module's, or a softnic of their own.
var lab string

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	lab = os.Getenv(nic.EnvPath)
	if lab != "" {
		drivertest.Main(m)
		return
	}
	dir, err := os.MkdirTemp("", "qnix-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab = filepath.Join(dir, "nic.sock")
	os.Setenv(nic.EnvPath, lab)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	if err := softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{lab}, Idle: time.Minute}); err != nil {
		os.Setenv(qnix.EnvWhy, err.Error())
	}
	cancel()
	drivertest.Main(m)
}

func config(t *testing.T, track driver.Track) drivertest.Config {
	qnix.NeedNIC(t)
	c := drivertest.Config{Driver: "qnix", Hints: driver.Hints{Track: track, Device: lab}, Deaths: 40}
	if strings.HasPrefix(lab, "/dev/") {
		c.TimeScale = 4 // most likely in an emulated machine
	}
	if testing.Short() {
		c.Deaths = 12
	}
	return c
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(t, driver.Small)) }

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(t, driver.Large)) }
