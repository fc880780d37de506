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
	return drivertest.Config{
		Driver: "verbs", Hints: driver.Hints{Track: track, Device: os.Getenv("BYWASH_RDMA_DEV")}, TimeScale: 4, Deaths: 20,
	}
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(driver.Small)) }

func TestConformanceShared(t *testing.T) {
	c := config(driver.Small)
	c.Hints.Options = map[string]string{"srq": "1024"}
	drivertest.Run(t, c)
}

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(driver.Large)) }
