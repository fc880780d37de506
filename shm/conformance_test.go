//go:build linux && !(386 || arm || mips || mipsle)

package shm_test

import (
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	_ "github.com/bywash/bywash/shm"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformanceSmall(t *testing.T) {
	drivertest.Run(t, drivertest.Config{Driver: "shm", Path: "ring", Deaths: deaths()})
}

// deaths is how many peers are killed on each way: four in each act. With BYWASH_SOAK they are killed for that long.
func deaths() int {
	if testing.Short() {
		return 10
	}
	return 52
}

// Checks that depend on the path of a long message: with -short both paths run these, and "auto", which takes one of
// them, runs the first. Checks that do not depend on it, such as puts, run on the small track; EverySize takes long
// over the ring.
var (
	ofChoice = []string{"Properties", "ConnectTwice", "ConnectRestartedPeer", "EveryForm", "Order", "DisconnectDelivers", "Death"}
	ofPath   = append([]string{
		"Busy", "TooLong", "Truncation", "ManyInstances", "CancelBefore", "CancelRace", "NoLostWakeup", "SendWait",
		"RdvDataSize", "RdvDataDamaged", "Close", "DeathIsolated", "Stopped", "CloseFrees", "DeathFrees",
		"Counters", "NoAllocations",
	}, ofChoice...)
)

// TestConformanceLarge forces each way that a long message can take.
func TestConformanceLarge(t *testing.T) {
	for _, x := range []struct {
		path  string
		brief []string
	}{{"auto", ofChoice}, {"cma", append([]string{"EverySize"}, ofPath...)}, {"ring", ofPath}} {
		t.Run(x.path, func(t *testing.T) {
			c := drivertest.Config{Driver: "shm", Hints: driver.Hints{
				Track: driver.Large, Options: map[string]string{"path": x.path},
			}, Deaths: deaths()}
			if testing.Short() {
				c.Only = x.brief
			}
			drivertest.Run(t, c)
		})
	}
}
