//go:build linux && !(386 || arm || mips || mipsle)

package tcp_test

import (
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	_ "github.com/bywash/bywash/tcp"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func config(track driver.Track, options map[string]string) drivertest.Config {
	return drivertest.Config{Driver: "tcp", Hints: driver.Hints{Track: track, Options: options}}
}

func TestConformanceSmall(t *testing.T) { drivertest.Run(t, config(driver.Small, nil)) }

func TestConformanceLarge(t *testing.T) { drivertest.Run(t, config(driver.Large, nil)) }

// sealed are the checks that encryption changes.
var sealed = []string{
	"ConnectInAnyOrder", "ConnectSelf", "ConnectSecret", "EveryForm", "EverySize", "Order", "Busy", "Truncation",
	"ManyInstances", "CancelRace", "NoLostWakeup", "SendWait", "DisconnectDelivers", "Close", "Death", "Stopped",
	"CloseFrees",
}

func TestConformanceSealed(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			c := config(track, map[string]string{"encrypt": "on"})
			c.Only, c.Deaths = sealed, 20
			drivertest.Run(t, c)
		})
	}
}
