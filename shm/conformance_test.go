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

// Of what the way of a long message can change: with -short, the ring has these, and "auto", which takes one of the other
// two, the first.
var (
	ofChoice = []string{"Properties", "ConnectTwice", "ConnectRestartedPeer", "EveryForm", "Order", "DisconnectDelivers", "Death"}
	ofPath   = append([]string{
		"EverySize", "Busy", "TooLong", "Truncation", "ManyInstances", "CancelBefore", "CancelRace", "NoLostWakeup", "SendWait",
		"RdvDataSize", "RdvDataDamaged", "Prefetch", "PrefetchOther", "Close", "DeathIsolated", "Stopped", "CloseFrees", "DeathFrees",
		"Counters", "NoAllocations",
	}, ofChoice...)
)

// TestConformanceLarge forces each way that a long message can take.
func TestConformanceLarge(t *testing.T) {
	for _, x := range []struct {
		path  string
		brief []string // nil: all
	}{{"auto", ofChoice}, {"cma", nil}, {"ring", ofPath}} {
		t.Run(x.path, func(t *testing.T) {
			c := drivertest.Config{Driver: "shm", Hints: driver.Hints{
				Track: driver.Large, Options: map[string]string{"path": x.path},
			}}
			if testing.Short() {
				c.Only = x.brief
			}
			drivertest.Run(t, c)
		})
	}
}
