package drivertest

import (
	"os"
	"testing"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/driver/drivertest/internal/toy"
)

func TestMain(m *testing.M) { Main(m) }

// The first makes the toy faulty, in a run that must fail.
const (
	envFault = "BYWASH_DRIVERTEST_FAULT"
	envDir   = "BYWASH_DRIVERTEST_DIR"
)

func toyConfig(t *testing.T, track driver.Track) Config {
	dir := os.Getenv(envDir)
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "toy"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	o := map[string]string{"dir": dir}
	if f := os.Getenv(envFault); f != "" {
		o["fault"] = f
	}
	return Config{Driver: "toy", Hints: driver.Hints{Track: track, Options: o}, Dirs: []string{dir}, Path: "socket"}
}

func TestToySmall(t *testing.T) { Run(t, toyConfig(t, driver.Small)) }

// briefLarge are the checks that the large track changes most.
var briefLarge = []string{
	"Properties", "AbsentFeatures", "ConnectTwice", "EveryForm", "Order", "Busy", "TooLong", "Truncation", "CancelBefore", "CancelRace",
	"RdvDataSize", "RdvDataDamaged", "RdvUpdateDamaged", "Prefetch", "PrefetchOther", "PutGet", "DisconnectDelivers", "Close", "Death", "CloseFrees",
}

func TestToyLarge(t *testing.T) {
	c := toyConfig(t, driver.Large)
	if testing.Short() && os.Getenv(envFault) == "" { // a fault names its check itself
		c.Only = briefLarge
	}
	Run(t, c)
}
