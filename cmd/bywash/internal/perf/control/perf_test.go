//go:build linux

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/report"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
	_ "github.com/bywash/bywash/shm"
	_ "github.com/bywash/bywash/tcp"
)

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	if len(os.Args) > 1 && os.Args[1] == PeerCommand {
		if err := ServeChild(context.Background(), "test"); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// followed is a team of two in this process, whose rank 1 serves with c.
func followed(t *testing.T, c *Config) (lead *team, end chan error) {
	t.Helper()
	ln, err := launch.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	secret := launch.NewSecret()
	server := launch.Serve(ln, 2, secret)
	t.Cleanup(func() { server.Close() })
	teams := make([]*team, 2)
	for rank := range teams {
		job, err := launch.Join(t.Context(), server.Addr(), rank, 2, secret)
		if err != nil {
			t.Fatal(err)
		}
		teams[rank] = newTeam(t.Context(), job)
	}
	t.Cleanup(teams[0].close)
	end = make(chan error, 1)
	go func() { end <- serve(teams[1], c, true) }()
	return teams[0], end
}

// A lead that sends something else than a follower expects gets an error, at each step.
func TestFollowerEndsOnInvalidMessages(t *testing.T) {
	helloLine, err := json.Marshal(hello{Version: "test", Boot: bootID(), Plan: &bench.Plan{Driver: "sock-udp"}})
	if err != nil {
		t.Fatal(err)
	}
	good := [][]byte{
		helloLine,
		nil,                     // opened
		[]byte(`["127.0.0.1"]`), // the host's address
		[]byte(`["9"]`),         // its socket's
		[]byte(`{"test":"lat","size":8,"wait":"block","mem":"heap"}`), // the case
		nil, nil, // prepared, started
		[]byte("1"), // operations
	}
	for at := range good {
		if good[at] == nil {
			continue
		}
		for _, bad := range []string{"nonsense", `{"plan":[]}`, `"x"`, "-1", "99999999999999999"} {
			lead, end := followed(t, &Config{Version: "test"})
			err := error(nil)
			for k := 0; k < at && err == nil; k++ {
				_, err = lead.give(good[k])
			}
			if err != nil {
				t.Fatalf("step %d: %v", at, err)
			}
			_, err = lead.give([]byte(bad))
			for k := 0; k < 3 && err == nil; k++ {
				_, err = lead.give(nil)
			}
			if err == nil {
				t.Errorf("%q instead of %q: no error", bad, good[at])
			}
			lead.close()
			if err := <-end; err == nil {
				t.Errorf("%q instead of %q: the follower ended without an error", bad, good[at])
			}
		}
	}
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

func config(drivers string, tests ...bench.Test) *Config {
	return &Config{Drivers: strings.Split(drivers, ","), Tests: tests, Iters: 200, Warmup: time.Millisecond, Wait: "poll", Mem: "arena", Version: "test"}
}

func TestSocketsAreMeasuredInEveryMode(t *testing.T) {
	for _, wait := range []string{"poll", "block"} {
		for _, validate := range []bool{false, true} {
			if testing.Short() && validate == (wait == "block") {
				continue // each way to wait once, and with validation and without
			}
			c := config("sock-tcp,sock-unix,sock-udp", bench.Lat, bench.BW, bench.Rate, bench.BiBW, bench.Connect)
			c.Sizes, c.Wait, c.Validate = []int{1, 9, 4096, 100000}, wait, validate
			var got collector
			if err := Run(t.Context(), c, &got); err != nil {
				t.Fatalf("wait %s, validate %v: %v", wait, validate, err)
			}
			// sock-udp has neither connect nor bibw with 9 bytes.
			if want := 3*(4*4+1) - 2; len(got.results) != want {
				t.Errorf("wait %s, validate %v: %d results, want %d; missing: %v", wait, validate, len(got.results), want, got.missing)
			}
			for _, r := range got.results {
				if v, _ := r.Main(); v <= 0 || r.Iters != 200 || r.Path == "" {
					t.Errorf("result %+v", r)
				}
			}
		}
	}
}

// Copies between the two processes arrive whole at every size, below, at and above the size of a slot and that from
// which both ends copy.
func TestCopiesAreMeasured(t *testing.T) {
	for _, unbound := range []bool{false, true} {
		c := config("copy-ring,copy-cma", bench.Lat, bench.BW)
		c.Sizes, c.Validate, c.Unbound, c.Iters = []int{0, 1, 8191, 8192, 16384, 300_000}, true, unbound, 20
		var got collector
		if err := Run(t.Context(), c, &got); err != nil {
			t.Fatal(err)
		}
		// Only lat can be measured.
		if len(got.results) != 12 || len(got.missing) != 12 {
			t.Errorf("unbound %v: %d results, %d missing, want 12 of each", unbound, len(got.results), len(got.missing))
		}
		for _, r := range got.results {
			if v, _ := r.Main(); v <= 0 || r.Mem != "heap" || (r.Bind == "none") != unbound {
				t.Errorf("unbound %v: %+v", unbound, r)
			}
		}
	}
}

// The processes of a measurement have one CPU each, or all that there are.
func TestBindingIsKept(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for _, unbound := range []bool{false, true} {
		c := config("sock-unix", bench.Lat)
		c.Sizes, c.Unbound = []int{8}, unbound
		want := 1
		if unbound {
			want = all.Count()
		}
		got := collector{on: func() {
			for _, pid := range []int{0, child(t)} {
				var set unix.CPUSet
				if err := unix.SchedGetaffinity(pid, &set); err != nil || set.Count() != want {
					t.Errorf("unbound %v: process %d has %d CPUs, %v; want %d", unbound, pid, set.Count(), err, want)
				}
			}
		}}
		if err := Run(t.Context(), c, &got); err != nil {
			t.Error(err)
		}
	}
}

// child returns the one process that this one has started.
func child(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		b, _ := os.ReadFile(name)
		if f := strings.Fields(string(b)); len(f) > 0 {
			pid, _ := strconv.Atoi(f[0])
			return pid
		}
	}
	t.Fatal("no child process")
	return 0
}

func TestKilledPeerIsAnErrorSoon(t *testing.T) {
	for _, wait := range []string{"poll", "block"} {
		for _, d := range []string{"sock-unix", "sock-tcp", "sock-udp"} {
			if testing.Short() && (d == "sock-tcp") == (wait == "poll") {
				continue // streams and datagrams that poll, and streams that block
			}
			c := config(d, bench.Lat)
			c.Wait, c.Sizes, c.Iters = wait, []int{8}, 1<<30
			c.self = []string{"/bin/sh", "-c", "exec /proc/" + "$PPID/exe " + PeerCommand + " & p=$!; sleep 0.4; kill -9 $p"}
			start := time.Now()
			err := Run(t.Context(), c, &collector{})
			if err == nil || time.Since(start) > 5*time.Second {
				t.Errorf("%s, wait %s: %v after %v, want an error within 5 s", d, wait, err, time.Since(start))
			}
		}
	}
}

func TestCancelEndsARun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("Ctrl-C")
	time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
	c := config("sock-unix", bench.Lat)
	c.Sizes, c.Iters = []int{8}, 1<<30
	start := time.Now()
	if err := Run(ctx, c, &collector{}); !errors.Is(err, cause) || time.Since(start) > 5*time.Second {
		t.Errorf("Run = %v after %v, want %v", err, time.Since(start), cause)
	}
}

// listening serves measurements until the test ends.
func listening(t *testing.T) (addr, secret string) {
	t.Helper()
	secret = filepath.Join(t.TempDir(), "secret")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, &Config{SecretFile: secret, Version: "test"}, addr, io.Discard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return addr, secret
}

// A test of many ranks, which are processes of one machine, is reported as missing, and the others are measured.
func TestManyRanksAreMissingWithAListener(t *testing.T) {
	addr, secret := listening(t)
	c := config("session", bench.TagLat, bench.MultiPair)
	c.Sizes, c.Remote, c.SecretFile, c.Ranks = []int{8, 16}, addr, secret, 4
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 2 {
		t.Errorf("Run: %v, %d results, want 2", err, len(got.results))
	}
	if m := got.missing; len(m) != 1 || m[0].Test != bench.MultiPair {
		t.Errorf("missing: %v", m)
	}
}

// A driver that was named twice is measured once.
func TestDriversAreMeasuredOnce(t *testing.T) {
	c := config("sock-unix,sock-unix", bench.Lat)
	c.Sizes = []int{8}
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 1 {
		t.Errorf("Run: %v, %d results, want 1", err, len(got.results))
	}
}

// Unauthenticated peers that send nothing, garbage, or half of a hello do not delay a lead that comes later.
func TestUnauthenticatedPeersDelayNoLead(t *testing.T) {
	addr, secret := listening(t)
	for k := range 300 { // more than a rendezvous keeps
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte([]string{"", "GET / HTTP/1.0\r\n", "\x01half a hello"}[k%3])); err != nil {
			t.Fatal(err)
		}
	}
	c := config("shm", bench.Lat)
	c.Sizes, c.Remote, c.SecretFile, c.Wait = []int{8}, addr, secret, "block"
	c.Options = map[string]string{"path": "ring"}
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 1 {
		t.Errorf("Run: %v, %d results; %v", err, len(got.results), got.missing)
	}
}

// Both ends need the same secret and the same release to measure.
func TestTwoMachinesAuthenticateAndMeasure(t *testing.T) {
	addr, secret := listening(t)
	c := config("shm", bench.Lat)
	c.Sizes, c.Remote, c.SecretFile = []int{8}, addr, secret
	c.Wait = "block" // both ends are in this process: if they spun, each message would wait until the other is preempted
	c.Options = map[string]string{"path": "ring"}
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 1 {
		t.Errorf("Run: %v, %d results; %v", err, len(got.results), got.missing)
	}
	c.Version = "other"
	if err := Run(t.Context(), c, &collector{}); err == nil || !strings.Contains(err.Error(), "same release") {
		t.Errorf("another version: %v", err)
	}
	c.Version, c.SecretFile = "test", filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(c.SecretFile, []byte("0123456789abcdef0123"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), c, &collector{}); err == nil || !strings.Contains(err.Error(), "another secret") {
		t.Errorf("another secret: %v", err)
	}
}

func TestRanksThatCannotBeAreRefused(t *testing.T) {
	for _, tt := range []struct {
		ranks int
		test  bench.Test
		d     string
		ok    bool
	}{
		{0, bench.MultiPair, bench.Session, true}, {8, bench.MultiPair, bench.Session, true}, {3, bench.AllToAll, bench.Session, true}, {bench.MaxRanks, bench.AllToAll, bench.Session, true},
		{3, bench.BesideLat, bench.Session, true}, {2, bench.TurnLat, bench.Session, true}, {2, bench.BesideLat, bench.Session, false},
		{3, bench.MultiPair, bench.Session, false}, {1, bench.AllToAll, bench.Session, false}, {-2, bench.AllToAll, bench.Session, false}, {bench.MaxRanks + 1, bench.AllToAll, bench.Session, false},
		{4, bench.TagLat, bench.Session, false}, {4, bench.MultiPair, "shm", false}, {0, bench.TagLat, bench.Session, true},
	} {
		if err := config(tt.d, tt.test).SetRanks(tt.ranks); (err == nil) != tt.ok {
			t.Errorf("%d ranks for %s of %s: %v", tt.ranks, tt.test, tt.d, err)
		}
	}
	for _, c := range []bench.Case{
		{Test: bench.Lat, Ranks: 4, Wait: "poll", Mem: "heap"}, {Test: bench.MultiPair, Wait: "poll", Mem: "heap"}, {Test: bench.MultiPair, Ranks: 5, Wait: "poll", Mem: "heap"},
	} {
		if c.Check() == nil {
			t.Errorf("a follower takes %+v", c)
		}
	}
}

func TestRailsGoWithASession(t *testing.T) {
	if err := (&Config{Drivers: []string{"shm"}}).SetRails("shm"); err == nil {
		t.Error("rails of a driver are taken")
	}
	if err := (&Config{Drivers: []string{bench.Session}}).SetRails("nothing"); err == nil {
		t.Error("a rail that does not exist is taken")
	}
}

func TestRanksDifferInTestsOfMany(t *testing.T) {
	for _, c := range []struct {
		tests []bench.Test
		want  bool
	}{{[]bench.Test{bench.Lat}, false}, {[]bench.Test{bench.TagLat, bench.MultiPair}, true}} {
		if got := config(bench.Session, c.tests...).HasRanks(); got != c.want {
			t.Errorf("%v: %v, want %v", c.tests, got, c.want)
		}
	}
}

// A lead that waits for the end of another says so, once.
func TestWaitForAnotherLeadIsSaid(t *testing.T) {
	ln, err := launch.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c := &Config{SecretFile: filepath.Join(t.TempDir(), "secret")}
	secret := []byte("0123456789abcdef0123")
	if err := os.WriteFile(c.SecretFile, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	server := launch.Serve(ln, 2, secret)
	defer server.Close()
	other, err := launch.Join(t.Context(), server.Addr(), 0, 2, secret)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Notes = w
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.dial(ctx, server.Addr())
		w.Close()
		ended <- err
	}()
	_ = r.SetReadDeadline(time.Now().Add(30 * time.Second))
	said, err := bufio.NewReader(r).ReadString('\n')
	cancel()
	if !strings.Contains(said, "serves another measurement") {
		t.Errorf("it says %q, %v", said, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("dial: %v", err)
	}
}
