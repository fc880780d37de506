//go:build linux

package hostile

import (
	"os"
	"testing"

	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
)

// programs are the honest peer and the attackers.
var programs = map[string]attack.Main{
	"peer": peerProgram, "random writer": randomWriterProgram, "flooder": flooderProgram, "descriptors": attack.Attacker(descriptors),
	"tenant": tenantProgram, "neighbour": neighbourProgram, "listener": listenerProgram,
	"replayer": replayProgram, "echo": echoProgram, "pinger": pingerProgram, "squatter": squatterProgram,
}

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	attack.RunIfStarted(programs)
	os.Setenv(launch.EnvDrivers, "shm")
	os.Exit(m.Run())
}
