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
