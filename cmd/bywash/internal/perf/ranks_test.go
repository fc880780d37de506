package perf

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rankConfig measures sessions of more than two over shm.
func rankConfig(t *testing.T, ranks int, tests ...Test) *Config {
	t.Helper()
	c := config(SessionName, tests...)
	if err := c.SetRails("shm"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetRanks(ranks); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSessionsOfManyRanksAreMeasured(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for n, tt := range []struct {
		ranks int
		tests []Test
	}{
		{2, []Test{MultiPair, AllToAll}},
		{3, []Test{AllToAll}},
		{4, []Test{TagLat, MultiPair, AllToAll}}, // one of two processes as well
		{6, []Test{MultiPair}},
	} {
		for k, mem := range []string{"arena", "heap"} {
			if testing.Short() && n%2 != k {
				continue // of each kind of memory some
			}
			c := rankConfig(t, tt.ranks, tt.tests...)
			c.Validate, c.Mem, c.Iters, c.Sizes = true, mem, 50, []int{0, 8, 4096, 100_000}
			var got collector
			if err := Run(ctx, c, &got); err != nil {
				t.Fatalf("%d ranks, %s: %v", tt.ranks, mem, err)
			}
			if want := len(tt.tests) * len(c.Sizes); len(got.results) != want || len(got.missing) > 0 {
				t.Errorf("%d ranks, %s: %d results, want %d; missing: %v", tt.ranks, mem, len(got.results), want, got.missing)
			}
			for _, r := range got.results {
				want := tt.ranks
				if r.Test == string(TagLat) {
					want = 0
				}
				if v, _ := r.main(); v <= 0 && r.Size > 0 || r.Iters != 50 || r.Ranks != want || !strings.HasPrefix(r.Path, "shm:") {
					t.Errorf("%d ranks, %s: result %+v", tt.ranks, mem, r)
				}
			}
		}
	}
}

func TestFiguresOfManyRanksAreSums(t *testing.T) {
	for _, tt := range []struct {
		test       Test
		ranks      int
		msgs, perS float64
	}{
		{MultiPair, 8, 4, 4 * 1000 / 2}, // 1000 operations in 2 s
		{AllToAll, 4, 12, 12 * 1e6 / 5}, // 5 µs each
	} {
		c := Case{Test: tt.test, Size: 100, Ranks: tt.ranks}
		if got := c.messages(); float64(got) != tt.msgs {
			t.Errorf("%s of %d ranks: %d messages an operation, want %v", tt.test, tt.ranks, got, tt.msgs)
		}
		j := &job{Case: c, n: 1000, rec: newRecorder(), elapsed: 2 * time.Second}
		j.rec.add(5*time.Millisecond, 1000)
		r := (&Config{}).result(SessionName, &c, j, "ring", time.Millisecond)
		if *r.MsgPerS != tt.perS || *r.MBPerS != tt.perS*100/1e6 || *r.CPUNsPerByte != *figure(1e6 / (tt.msgs * 1000 * 100)) {
			t.Errorf("%s of %d ranks: %v messages a second, %v MB/s, %v ns a byte", tt.test, tt.ranks, *r.MsgPerS, *r.MBPerS, *r.CPUNsPerByte)
		}
		other := *r
		if other.Ranks++; other.key() == r.key() {
			t.Errorf("%s: a run with another number of ranks is compared", tt.test)
		}
	}
}

func TestRanksThatCannotBeAreRefused(t *testing.T) {
	for _, tt := range []struct {
		ranks int
		test  Test
		d     string
		ok    bool
	}{
		{0, MultiPair, SessionName, true}, {8, MultiPair, SessionName, true}, {3, AllToAll, SessionName, true}, {maxRanks, AllToAll, SessionName, true},
		{3, MultiPair, SessionName, false}, {1, AllToAll, SessionName, false}, {-2, AllToAll, SessionName, false}, {maxRanks + 1, AllToAll, SessionName, false},
		{4, TagLat, SessionName, false}, {4, MultiPair, "shm", false}, {0, TagLat, SessionName, true},
	} {
		if err := config(tt.d, tt.test).SetRanks(tt.ranks); (err == nil) != tt.ok {
			t.Errorf("%d ranks for %s of %s: %v", tt.ranks, tt.test, tt.d, err)
		}
	}
	for _, c := range []Case{
		{Test: Lat, Ranks: 4, Wait: "poll", Mem: "heap"}, {Test: MultiPair, Wait: "poll", Mem: "heap"}, {Test: MultiPair, Ranks: 5, Wait: "poll", Mem: "heap"},
	} {
		if c.check() == nil {
			t.Errorf("a follower takes %+v", c)
		}
	}
}

func TestCSVHasRanksWhereTheyDiffer(t *testing.T) {
	for _, tt := range []struct {
		tests []Test
		want  string
	}{
		{[]Test{Lat}, "version,change_percent"},
		{[]Test{TagLat, MultiPair}, "version,ranks,change_percent"},
	} {
		var b bytes.Buffer
		r := NewCSV(&b, io.Discard, config(SessionName, tt.tests...), true)
		if err := r.Result(&Result{Ranks: 4}); err != nil {
			t.Fatal(err)
		}
		head, row, _ := strings.Cut(b.String(), "\n")
		if !strings.HasSuffix(head, tt.want) || strings.Count(head, ",") != strings.Count(row, ",") {
			t.Errorf("%v: header %s, row %s, want a header that ends in %s", tt.tests, head, row, tt.want)
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
		if bytes.Contains(status, fmt.Appendf(nil, "\nPPid:\t%d\n", os.Getpid())) && bytes.Contains(line, []byte("\x00"+PeerCommand+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// Whichever rank dies, the run ends with an error that says so, and no process stays.
func TestARankThatDiesEndsTheRun(t *testing.T) {
	const ranks = 4
	for _, test := range []Test{MultiPair, AllToAll} {
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
			err := Run(ctx, c, &got)
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
