package drivertest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// Config defines what is tested. Only Driver is required.
type Config struct {
	// Driver is the name of a registered driver.
	Driver string
	// Hints and Attributes are given to each context. The track in Hints
	// decides which checks apply; run the suite once a track, and once for
	// each path that Options can force.
	Hints      driver.Hints
	Attributes driver.Attributes

	// Path, if not empty, is what Instance.Path must return after messages.
	Path string

	// TimeScale multiplies every dead time and limit, for emulation; 0 is 1. If
	// it is more, -short moves fewer bytes, and the process of a peer plays one role after the other.
	TimeScale float64

	// Deaths is how many peers are killed; 0 is 200, or 10 with -short. With
	// BYWASH_SOAK=duration in the environment killing goes on for so long.
	Deaths int

	// Seed makes a run repeatable; 0 is BYWASH_SEED from the environment,
	// else random. It is logged.
	Seed uint64

	// Only, if not empty, names the checks to run, for a variant of what another
	// run checks as a whole.
	Only []string

	// Dirs are directories where the driver, and nothing else, has files
	// while a context is open, and none afterwards.
	Dirs []string

	// Launch, if set, changes the command that starts a peer, e.g. to run it
	// under "ip netns exec" or ssh. Standard input and output must stay
	// connected.
	Launch func(context.Context, *exec.Cmd)
	// Signal, if set, sends a signal to the process that calls itself pid
	// where the peer runs. nil signals the process that Launch started.
	Signal func(cmd *exec.Cmd, pid int, sig os.Signal) error

	limit time.Duration // for anything that has no limit in the contract
}

// Environment.
const (
	envSeed  = "BYWASH_SEED"
	envSoak  = "BYWASH_SOAK"
	envLimit = "BYWASH_DRIVERTEST_LIMIT" // for tests of the suite itself
)

// Run checks one driver on one track. Each check is a subtest named after the
// promise. A NIC that is unavailable here is a skip, with the reason.
func Run(t *testing.T, cfg Config) {
	cfg.fill(t)
	d, err := driver.Lookup(cfg.Driver)
	if err != nil {
		t.Fatal(err)
	}
	nic, err := d.Query(cfg.Hints)
	var gone *driver.UnavailableError
	if errors.As(err, &gone) {
		t.Skip(gone)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := nic.Properties()
	for _, name := range cfg.Only {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			t.Fatalf("Only: there is no check %q", name)
		}
	}
	var idle *idlePeers
	if cfg.TimeScale > 1 {
		idle = &idlePeers{}
		t.Cleanup(func() { idle.end(&end{tb: t, cfg: &cfg}) })
	}
	for _, c := range checks {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.need != nil && !c.need(p) {
				t.Skip("not announced by the capabilities (that it is absent is checked by AbsentFeatures)")
			}
			e := &end{tb: t, cfg: &cfg, caps: p.Capabilities, large: cfg.Hints.Track == driver.Large, child: false, idle: idle}
			t.Cleanup(func() { e.over.Store(true) }) // runs last
			c.run(e)
		})
	}
}

func (c *Config) fill(t *testing.T) {
	if c.TimeScale == 0 {
		c.TimeScale = 1
	}
	if c.Deaths == 0 {
		c.Deaths = 200
		if testing.Short() {
			c.Deaths = 10
		}
	}
	if c.Seed == 0 {
		c.Seed, _ = strconv.ParseUint(os.Getenv(envSeed), 0, 64)
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: %s=%d", envSeed, c.Seed)
	c.limit = c.scale(20 * time.Second)
	if d, err := time.ParseDuration(os.Getenv(envLimit)); err == nil {
		c.limit = d
	}
}

// brief reports whether less must do: in an emulated machine bytes, messages and processes are expensive.
func (e *end) brief() bool { return short() && e.cfg.TimeScale > 1 }

// times is n, or few where less must do. Promises do not depend on the number, but it makes rare failures likelier.
func (e *end) times(n, few int) int {
	if e.brief() {
		return few
	}
	return n
}

func (c *Config) scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * c.TimeScale)
}
