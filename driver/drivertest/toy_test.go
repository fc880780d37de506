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
	deaths := 0 // as many as drivers have with -short
	if !testing.Short() {
		deaths = 60
	}
	return Config{Driver: "toy", Hints: driver.Hints{Track: track, Options: o}, Dirs: []string{dir}, Path: "socket", Deaths: deaths}
}

// With -short the toy has what tells soonest that the suite is broken: shared memory passes all of it then. A fault names its
// check itself.
var (
	briefSmall = []string{
		"OpenOnce", "Properties", "URL", "AbsentFeatures", "ConnectInAnyOrder", "ConnectAbsentPeer", "ConnectForeignURL", "ConnectSelf",
		"ConnectTwice", "ConnectRestartedPeer", "ConnectSecret", "PostBeforeConnected", "EveryForm", "EverySize", "Order", "Busy",
		"TooLong", "Truncation", "CancelBefore", "CancelRace", "ProbeOnce", "ProbeConcurrent", "ProbeEnd", "WaitCancel", "NoLostWakeup",
		"PutGet", "Atomics", "Alignment", "Bounds", "KeyDamaged", "KeyExpired", "Access", "Flush", "Fence", "OpDepth",
		"DisconnectDelivers", "Close", "Death", "DeathIsolated", "CloseFrees", "DeathFrees", "OpenSweeps", "Counters",
	}
	briefLarge = []string{
		"Properties", "AbsentFeatures", "ConnectTwice", "EveryForm", "Order", "Busy", "TooLong", "Truncation", "CancelBefore",
		"CancelRace", "RdvDataSize", "RdvDataDamaged", "RdvUpdateDamaged", "Prefetch", "PrefetchOther", "PutGet", "DisconnectDelivers",
		"Close", "Death", "CloseFrees",
	}
)

func testToy(t *testing.T, track driver.Track, brief []string) {
	c := toyConfig(t, track)
	if testing.Short() && os.Getenv(envFault) == "" {
		c.Only = brief
	}
	Run(t, c)
}

func TestToySmall(t *testing.T) { testToy(t, driver.Small, briefSmall) }

func TestToyLarge(t *testing.T) { testToy(t, driver.Large, briefLarge) }
