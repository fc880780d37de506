//go:build linux && !(386 || arm || mips || mipsle)

package qnix_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
)

func config(t *testing.T, track driver.Track) drivertest.Config {
	qnix.NeedNIC(t)
	c := drivertest.Config{Driver: "qnix", Hints: driver.Hints{Track: track, Device: lab.nic}, Deaths: 40}
	if testing.Short() {
		c.Deaths = 12
	}
	if strings.HasPrefix(lab.nic, "/dev/") { // most likely in an emulated machine
		c.TimeScale = 4
		c.Deaths /= 2
	}
	return c
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(t, driver.Small)) }

// briefLarge are the checks that the large track changes.
var briefLarge = []string{
	"Properties", "AbsentFeatures", "ConnectInAnyOrder", "ConnectTwice", "EveryForm", "Order", "Busy", "TooLong", "Truncation",
	"ManyInstances", "CancelBefore", "CancelRace", "NoLostWakeup", "SendWait", "RdvDataSize", "RdvDataDamaged", "Prefetch", "PrefetchOther",
	"DisconnectDelivers", "Close", "Death", "DeathIsolated", "CloseFrees", "DeathFrees", "Counters", "NoAllocations",
}

func TestConformanceLarge(t *testing.T) {
	c := config(t, driver.Large)
	if testing.Short() && c.TimeScale == 0 { // the module has all of them also then: it is not tested without
		c.Only = briefLarge
	}
	drivertest.Run(t, c)
}

// apart are the checks whose outcome may depend on whether both ends have the same NIC. The others check one end alone.
var (
	apart = []string{
		"Reaches", "ConnectInAnyOrder", "ConnectMany", "ConnectAbsentPeer", "ConnectRestartedPeer", "ConnectSecret",
		"EveryForm", "EverySize", "Order", "Busy", "Truncation", "CancelRace", "ProbeFair", "NoLostWakeup", "SendWait",
		"RdvDataDamaged", "DisconnectDelivers", "Close", "Death", "DeathIsolated", "Stopped", "DeathFrees",
	}
	apartShort = []string{"Reaches", "ConnectInAnyOrder", "EveryForm", "Order", "Truncation", "CancelRace", "NoLostWakeup", "DisconnectDelivers", "Death"}
)

// TestBetweenNICs has the suite's peers on another NIC of this host.
func TestBetweenNICs(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			c := config(t, track)
			if lab.other == "" {
				t.Skipf("one NIC, %s: name another one in %s", lab.nic, envOther)
			}
			c.Hints.Device = "" // each process's own
			c.Launch = func(_ context.Context, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, nic.EnvPath+"="+lab.other) }
			c.Only, c.Deaths = apart, max(4, c.Deaths/4)
			if testing.Short() {
				c.Only = apartShort
			}
			drivertest.Run(t, c)
		})
	}
}
