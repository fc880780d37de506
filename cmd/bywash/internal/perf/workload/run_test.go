//go:build linux

package workload_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/control"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/report"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/workload"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
	_ "github.com/bywash/bywash/shm"
)

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	if len(os.Args) > 1 && os.Args[1] == control.PeerCommand {
		if err := control.ServeChild(context.Background(), "test"); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// collector keeps what a run reports.
type collector struct {
	results []*report.Result
	missing []report.Missing
	on      func()
}

func (c *collector) Result(r *report.Result) error {
	c.results = append(c.results, r)
	if c.on != nil {
		c.on()
	}
	return nil
}

func (c *collector) Missing(m report.Missing) error { c.missing = append(c.missing, m); return nil }

func (c *collector) Close() error { return nil }

func config(drivers string, tests ...bench.Test) *control.Config {
	return &control.Config{Drivers: strings.Split(drivers, ","), Tests: tests, Iters: 200, Warmup: time.Millisecond, Wait: "poll", Mem: "arena", Version: "test"}
}

func TestValidateFindsACorruptedMessage(t *testing.T) {
	tests, sizes := []bench.Test{bench.Lat, bench.BW, bench.BiBW}, []int{64, 4096, 1 << 20}
	if testing.Short() {
		tests, sizes = []bench.Test{bench.Lat, bench.BW}, []int{64, 1 << 20}
	}
	for _, test := range tests {
		for _, size := range sizes {
			if testing.Short() && (test == bench.Lat) != (size == 64) {
				continue
			}
			for _, lie := range []string{"", "yes"} {
				t.Setenv("LIAR", lie)
				c := config("corruptbare", test)
				c.Validate, c.Sizes = true, []int{size}
				err := control.Run(t.Context(), c, &collector{})
				if lie == "" && err != nil {
					t.Errorf("%s %d: %v", test, size, err)
				}
				if lie != "" && (err == nil || !strings.Contains(err.Error(), "validation failed")) {
					t.Errorf("%s %d: a spoilt byte gave %v", test, size, err)
				}
			}
		}
	}
}

func TestEveryTestRunsOnSharedMemory(t *testing.T) {
	modes := []struct {
		wait, mem string
		validate  bool
		peers     int
	}{
		{"block", "heap", true, 0}, {"poll", "arena", true, 40}, {"poll", "heap", false, 0}, {"block", "arena", false, 3}, // all pairs
	}
	if testing.Short() {
		modes = modes[:2]
	}
	for _, mode := range modes {
		tests, err := bench.ParseTests("all")
		if err != nil {
			t.Fatal(err)
		}
		c := config("shm", tests...)
		c.Wait, c.Mem, c.Validate, c.Peers = mode.wait, mode.mem, mode.validate, mode.peers
		c.Sizes = []int{3, 8, 4096, 100000}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		var got collector
		if err := control.Run(ctx, c, &got); err != nil {
			t.Errorf("%+v: %v", mode, err)
		}
		cancel()
		for _, m := range got.missing {
			if m.Test != bench.Rate && m.Test != bench.Barrier && m.Test != bench.Bcast && (m.Test != bench.FaddLat && m.Test != bench.CswapLat || mode.mem == "arena") {
				t.Errorf("%+v: %s", mode, m)
			}
		}
		// Two tests have all four sizes but rate, three have one.
		if want := 8*4 - 1 + 3; mode.mem == "arena" && len(got.results) != want {
			t.Errorf("%+v: %d results, want %d", mode, len(got.results), want)
		}
	}
}

func TestUpdatesOfRdvDataReachTheSender(t *testing.T) {
	for _, mode := range []struct{ driver, wait, mem string }{
		{"inparts", "poll", "arena"}, {"inparts", "block", "heap"}, {"inpartsbare", "poll", "heap"},
	} {
		c := config(mode.driver, bench.BW, bench.BiBW, bench.Lat)
		c.Wait, c.Mem, c.Validate = mode.wait, mode.mem, true
		// Small messages after large ones: nothing may be left for them.
		c.Sizes = []int{64, 1 << 10, 64 << 10}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		var got collector
		err := control.Run(ctx, c, &got)
		cancel()
		if err != nil || len(got.results) != 9 {
			t.Errorf("%+v: %v, %d results, want 9; missing: %v", mode, err, len(got.results), got.missing)
		}
	}
}

// A session runs its tests and those of drivers that it has, with every byte
// checked.
func TestSessionRunsItsTests(t *testing.T) {
	tests := []bench.Test{bench.TagLat, bench.TagBW, bench.AMRate, bench.WakeLat, bench.Lat, bench.BW, bench.Rate, bench.PutBW, bench.GetBW, bench.GetLat, bench.FaddLat}
	c := config(bench.Session, tests...)
	c.Validate = true
	c.Sizes = []int{8, 4096, 100000}
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got collector
	if err := control.Run(ctx, c, &got); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.missing {
		if m.Test != bench.Rate && m.Test != bench.AMRate { // too long for an active message
			t.Errorf("%s", m)
		}
	}
}

func TestSessionFindsWhatWasCorrupted(t *testing.T) {
	for _, test := range []bench.Test{bench.Rate, bench.AMRate, bench.PutBW, bench.GetBW, bench.GetLat} {
		for _, lie := range []string{"", "yes"} {
			t.Setenv("FORGER", lie)
			workload.Corrupted.Store(0)
			c := config(bench.Session, test)
			c.Validate, c.Sizes = true, []int{200}
			if err := c.SetRails("corrupting"); err != nil {
				t.Fatal(err)
			}
			err := control.Run(t.Context(), c, &collector{})
			if lie == "" && err != nil {
				t.Errorf("%s: %v", test, err)
			}
			if lie != "" && (err == nil || !strings.Contains(err.Error(), "validation failed")) {
				t.Errorf("%s: a spoilt byte gave %v", test, err)
			}
		}
	}
}

// rankConfig measures sessions of more than two over shm.
func rankConfig(t *testing.T, ranks int, tests ...bench.Test) *control.Config {
	t.Helper()
	c := config(bench.Session, tests...)
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetRanks(ranks); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGoroutinesSendActiveMessages(t *testing.T) {
	c := config(bench.Session, bench.AMRate)
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetGoroutines(20); err != nil {
		t.Fatal(err)
	}
	c.Iters, c.Sizes = 1999, []int{8, 1000}
	var got collector
	if err := control.Run(t.Context(), c, &got); err != nil || len(got.results) != 2 {
		t.Fatalf("%v, %d results, missing %v", err, len(got.results), got.missing)
	}
	for _, r := range got.results {
		if v, _ := r.Main(); v <= 0 || r.Iters != 1999 {
			t.Errorf("result %+v", r)
		}
	}
}

func TestSessionsOfManyRanksAreMeasured(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for n, tt := range []struct {
		ranks int
		tests []bench.Test
	}{
		{2, []bench.Test{bench.MultiPair, bench.AllToAll}},
		{3, []bench.Test{bench.AllToAll, bench.TurnLat, bench.BesideLat}},
		{4, []bench.Test{bench.TagLat, bench.MultiPair, bench.AllToAll}}, // one of two processes as well
		{6, []bench.Test{bench.MultiPair}},
	} {
		for k, mem := range []string{"arena", "heap"} {
			if testing.Short() && n%2 != k {
				continue // of each kind of memory some
			}
			c := rankConfig(t, tt.ranks, tt.tests...)
			c.Validate, c.Mem, c.Iters, c.Sizes = true, mem, 50, []int{0, 8, 4096, 100_000}
			var got collector
			if err := control.Run(ctx, c, &got); err != nil {
				t.Fatalf("%d ranks, %s: %v", tt.ranks, mem, err)
			}
			if want := len(tt.tests) * len(c.Sizes); len(got.results) != want || len(got.missing) > 0 {
				t.Errorf("%d ranks, %s: %d results, want %d; missing: %v", tt.ranks, mem, len(got.results), want, got.missing)
			}
			for _, r := range got.results {
				want := tt.ranks
				if r.Test == string(bench.TagLat) {
					want = 0
				}
				if v, _ := r.Main(); v <= 0 && r.Size > 0 || r.Iters != 50 || r.Ranks != want || !strings.HasPrefix(r.Path, "shm:") {
					t.Errorf("%d ranks, %s: result %+v", tt.ranks, mem, r)
				}
			}
		}
	}
}

// followers are the processes that a run of this one has started.
func followers(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "status"))
		line, _ := os.ReadFile(name)
		if bytes.Contains(status, fmt.Appendf(nil, "\nPPid:\t%d\n", os.Getpid())) && bytes.Contains(line, []byte("\x00"+control.PeerCommand+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// Whichever rank dies, the run ends with an error that names it, and no process stays.
func TestARankThatDiesEndsTheRun(t *testing.T) {
	const ranks = 4
	for _, test := range []bench.Test{bench.MultiPair, bench.AllToAll} {
		for victim := range ranks - 1 {
			c := rankConfig(t, ranks, test)
			c.Sizes, c.Iters = []int{8, 64}, 20
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var got collector
			got.on = func() { // the first size has been measured, the second comes
				if pids := followers(t); len(pids) != ranks-1 {
					t.Errorf("%d followers, want %d", len(pids), ranks-1)
				} else {
					_ = syscall.Kill(pids[victim], syscall.SIGKILL)
				}
				c.Iters = 1 << 30
			}
			err := control.Run(ctx, c, &got)
			if err == nil || ctx.Err() != nil {
				t.Errorf("%s, follower %d dies: %v", test, victim, err)
			}
			cancel()
			if pids := followers(t); len(pids) > 0 {
				t.Errorf("%s: processes %v are left", test, pids)
			}
		}
	}
}

func TestGroupsRunOnQNIXAndSockets(t *testing.T) {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "nic.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{path}, Idle: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nic.EnvPath, path)
	waits := []string{"block", "poll"}
	if testing.Short() { // eight processes that spin are slow on two processors
		waits = waits[:1]
	}
	for _, name := range []string{"qnix", "sock-unix"} {
		for _, wait := range waits {
			c := config(name, bench.Barrier, bench.Bcast)
			c.Wait, c.Validate, c.Sizes = wait, true, []int{1, 5000, 100_000}
			var got collector
			if err := control.Run(ctx, c, &got); err != nil || len(got.missing) > 0 || len(got.results) != 1+3 {
				t.Errorf("%s, wait %s: %v, %d results, want 4; missing: %v", name, wait, err, len(got.results), got.missing)
			}
		}
	}
}
