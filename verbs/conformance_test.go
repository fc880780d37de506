//go:build linux && !(386 || arm || mips || mipsle)

package verbs_test

import (
	"os"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	_ "github.com/bywash/bywash/verbs"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func config(track driver.Track) drivertest.Config {
	c := drivertest.Config{
		Driver: "verbs", Hints: driver.Hints{Track: track, Device: os.Getenv("BYWASH_RDMA_DEV")}, TimeScale: 4, Deaths: 20,
	}
	if testing.Short() {
		c.Deaths = 6
	}
	return c
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(driver.Small)) }

func TestConformanceShared(t *testing.T) {
	c := config(driver.Small)
	c.Hints.Options = map[string]string{"srq": "1024"}
	if testing.Short() { // the tests that use receives and credits
		c.Only = []string{
			"ConnectTwice", "EveryForm", "EverySize", "Order", "Busy", "Truncation", "ManyInstances", "ProbeFair", "ProbeEnd",
			"DisconnectDelivers", "Death", "DeathFrees", "CloseFrees", "NoAllocations",
		}
	}
	drivertest.Run(t, c)
}

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(driver.Large)) }
