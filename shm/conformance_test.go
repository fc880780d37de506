package shm_test

import (
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	_ "github.com/bywash/bywash/shm"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformanceSmall(t *testing.T) {
	drivertest.Run(t, drivertest.Config{Driver: "shm", Path: "ring"})
}

// TestConformanceLarge forces each way that a long message can take.
func TestConformanceLarge(t *testing.T) {
	for _, path := range []string{"auto", "cma", "ring"} {
		t.Run(path, func(t *testing.T) {
			drivertest.Run(t, drivertest.Config{Driver: "shm", Hints: driver.Hints{
				Track: driver.Large, Options: map[string]string{"path": path},
			}})
		})
	}
}
