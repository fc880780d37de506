//go:build linux && !(386 || arm || mips || mipsle)

package drivertest

import (
	"context"
	"os"
	"os/exec"
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
		deaths = 26 // two in each act
	}
	return Config{Driver: "toy", Hints: driver.Hints{Track: track, Options: o}, Dirs: []string{dir}, Path: "socket", Deaths: deaths}
}

// With -short the toy has what shows soonest that the suite is broken: shared memory passes all of it then. A fault
// names its check itself.
var (
	briefSmall = []string{
		"OpenOnce", "Properties", "URL", "Reaches", "AbsentFeatures", "ConnectInAnyOrder", "ConnectAbsentPeer", "ConnectForeignURL", "ConnectSelf",
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

// In an emulated machine the process of a peer plays one role after the other, and ends by itself after the last one. A
// process that is killed, or must not have lived before, plays one.
func TestPeersPlayManyRolesInTurn(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			started := 0
			c := toyConfig(t, track)
			c.TimeScale = 1.5
			c.Only = []string{
				"ConnectTwice", "ConnectRestartedPeer", "Order", "Truncation", "CancelRace", "DisconnectDelivers", "Close",
			}
			c.Launch = func(context.Context, *exec.Cmd) { started++ }
			t.Run("checks", func(t *testing.T) { Run(t, c) })
			if want := 1 + 4; started != want { // of which 4 are for ConnectRestartedPeer
				t.Errorf("%d processes were started, want %d", started, want)
			}
		})
	}
}
