//go:build linux && !(386 || arm || mips || mipsle)

package rdma

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/machines"
)

// distant are the checks that a link between the ends can change: connections,
// order, credits, what goes on under way, and death, each on one of the tracks. The
// others ask what one end does by itself, which package verbs checks in one machine,
// or take minutes here, because they move many bytes or start many processes
// (EverySize, OpDepth, ConnectMany, ManyInstances).
var distant = []string{
	"ConnectInAnyOrder", "ConnectAbsentPeer", "ConnectRestartedPeer", "ConnectSecret", "Order", "CancelRace", "NoLostWakeup",
	"RdvDataDamaged", "PutGet", "KeyExpired", "DisconnectDelivers", "Death", "Stopped",
}

func checks(track driver.Track) []string {
	switch c := os.Getenv(envChecks); c {
	case "":
		return machines.OnTrack(distant, int(track))
	case "all":
		return nil
	default:
		return strings.Split(c, ",")
	}
}

// checkContract is machine 0: drivertest, whose peers run in machine 1.
func checkContract(t *testing.T) {
	machines.Hold(t)
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			query(t, driver.Hints{Track: track}) // no skip where the machine should have it
			drivertest.Run(t, drivertest.Config{
				Driver: "verbs", Hints: driver.Hints{Track: track}, TimeScale: 4, Deaths: 6, Only: checks(track),
				Launch: func(_ context.Context, cmd *exec.Cmd) { machines.Launch(cmd) }, Signal: machines.Signal,
			})
		})
	}
}
