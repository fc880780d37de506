//go:build linux && !(386 || arm || mips || mipsle)

package control

import (
	"testing"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// The device of a listener is for the drivers that its -d names, also as rails of a session.
func TestListenersDeviceIsForItsDrivers(t *testing.T) {
	for _, tt := range []struct {
		mine, driver, rails, want string
	}{
		{"all", "tcp", "", "mine"},
		{"tcp", "tcp", "", "mine"},
		{"tcp", "sock-tcp", "", "theirs"},
		{"session", "session", "tcp", "mine"},
		{"verbs", "session", "verbs", "mine"},
		{"verbs", "session", "verbs:mlx5_1", "mine"},
		{"tcp", "session", "verbs,tcp", "theirs"},
		{"verbs", "session", "verbs+tcp", "theirs"},
		{"verbs", "session", "", "theirs"},
	} {
		c := &Config{Drivers: []string{tt.mine}, Device: "mine"}
		p := &bench.Plan{Driver: tt.driver, Device: "theirs", Options: map[string]string{bench.RailsOption: tt.rails}}
		if c.override(p); p.Device != tt.want {
			t.Errorf("listener -d %s, lead -d %s --rails %q: device %q, want %q", tt.mine, tt.driver, tt.rails, p.Device, tt.want)
		}
	}
}
