//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the program.
func TestMain(m *testing.M) {
	if os.Getenv("BYWASH_TEST_MAIN") != "" {
		main()
	}
	if os.Getenv(envTransfer) != "" {
		os.Exit(transferMain())
	}
	// A shell cannot trap what was ignored when it began (SIGHUP under nohup); what this process handles is not ignored in
	// the processes that it starts.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(m.Run())
}

func bywash(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "BYWASH_TEST_MAIN=1")
	return cmd
}

func status(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var x *exec.ExitError
	if err != nil && !errors.As(err, &x) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func TestWrongUseIsOneLineAndStatus2(t *testing.T) {
	for _, args := range []string{
		"nonsense", "perf --nonsense", "perf -d nonsense", "perf -d shm --rails shm", "perf --rails shm", "perf -t nonsense", "perf -s 8:4", "perf -s x",
		"perf -n -1", "perf -d sock-unix@veth", "perf -d tcp@veth --dev lo", "perf --duration 0s", "perf --wait sleep", "perf --mem stack", "perf --prefetch on", "perf -d session -t am-rate --goroutines -1", "perf -d shm --goroutines 4", "perf -d session -t am-rate --goroutines 4 --validate", "perf -d session --prefetch maybe", "perf --peers -1", "perf --json --csv", "perf --plot x.png", "perf -t rate --plot x.svg", "perf -s 0 --plot x.svg", "perf -d session --rails shm,nonsense", "perf -d session --rails shm+nonsense", "perf -d session --rails sock-tcp",
		"perf a:1 b:2", "perf nohost", "perf --listen :1 a:2", "perf --listen :1 -t lat", "perf --listen 7", "perf --listen :7", "info -d nonsense", "info x", "doctor x", "stat x", "stat -w 1ns", "completion", "completion tcsh",
		"man", "perf -n", "perf --duration x", "perf -n 0", "perf -d sock-unix 127.0.0.1:1", "perf 127.0.0.1:65536 --secret-file x", "perf --listen :99999",
		"perf -d sock-unix --baseline /nonexistent", "perf -d sock-unix,", "perf -d shm --option x", "perf -d shm --option =x", "perf --option path=cma", "perf -d shm,verbs --option path=cma",
		"perf -d sock-tcp --option path=cma", "perf -d session --option rails=shm", "perf -d session --dev lo", "perf -d session,tcp --dev lo", "perf -d shm --secret-file x", "perf -d unix", "perf -d udp", "perf -d shm --ranks 4", "perf -d session -t tag-lat --ranks 4", "perf -d session -t multi-pair --ranks 3",
		"perf -d session -t all-to-all --ranks 0", "perf -d session -t all-to-all --ranks 1000", "help nonsense", "help perf x",
		"run", "run true", "run -n 2", "run -n 0 true", "run -n x true", "run -n 70000 true", "run --nonsense true", "run -n 1 --grace -1s true",
		"capture", "capture -o x y", "capture -o x --snap 0", "capture -o x -c 0", "capture -o x --duration 0s",
		"capture -o x 0",
		"softnic x", "softnic --nics 0", "softnic --nics 2 --socket a", "softnic --peer a", "softnic --key-file x", "softnic --listen :0", "softnic --idle -1s", "softnic --nics 65", "softnic --first 0x", "softnic --first 70000", "softnic --first 0", "softnic --first -1", "softnic --packet-size 1", "softnic --max-per-user -1", "softnic --listen :99999 --key-file x", "softnic --listen :0 --key-file x --peer a:99999",
	} {
		code, out, stderr := status(t, bywash(strings.Fields(args)...))
		if code != 2 || out != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "bywash: ") {
			t.Errorf("bywash %s: status %d, stdout %q, stderr %q; want 2 and one line", args, code, out, stderr)
		}
	}
}

func TestFailuresAreOneLineAndStatus1(t *testing.T) {
	dir := t.TempDir()
	loose, tight := filepath.Join(dir, "loose"), filepath.Join(dir, "tight")
	if err := os.WriteFile(tight, []byte("0123456789abcdef0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loose, []byte("0123456789abcdef0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"perf -d sock-unix --plot /nonexistent/x.svg", "perf -d all --secret-file " + tight + " 127.0.0.1:1",
		"perf -d sock-unix --secret-file /nonexistent 127.0.0.1:1", "perf -d sock-unix -t put-lat", "perf -d session --rails shm -t tag-lat -n 10 --wait block", "perf --secret-file " + loose + " 127.0.0.1:1", "perf -d sock-unix -t put-lat --dev x",
		"perf -d shm -t lat -s 8 -n 10 --option no-such-option=1", "perf -d shm -t lat -s 8 -n 10 --option path=nonsense",
		"man --dir /dev/null/x", "stat 1", "run-guard", "capture -o /nonexistent/x", "capture -o /dev/null 1", "info --dev nonsense", "info -d shm --dev nonsense:2",
	} {
		code, _, stderr := status(t, bywash(strings.Fields(args)...))
		if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "bywash: ") {
			t.Errorf("bywash %s: status %d, stderr %q; want 1 and one line", args, code, stderr)
		}
	}
}

func TestWhatShouldWorkIsStatus0(t *testing.T) {
	dir := t.TempDir()
	for _, args := range []string{
		"", "--help", "help", "help perf", "perf -d sock-udp -t lat,bw -s 0 -n 100 --warmup 5ms", "--version", "version", "info", "info --json", "perf --help", "stat", "stat --json", "doctor --help", "run --help", "run -n 3 true", "run -n 2 --explain --tag-output true -n 5",
		"completion bash", "completion zsh", "completion fish", "man --dir " + dir + "/man/man1",
		"perf -d sock-unix -t lat -s 8 -n 100 --warmup 5ms", "perf -d shm,sock-unix --option path=ring --option ends=both -t bw -s 1M -n 10 --warmup 5ms", "perf -d sock-unix,sock-tcp -t lat,bw -s 8:16 -n 100 --warmup 5ms --csv --plot " + dir + "/x.html",
		"perf -d session --rails shm -t multi-pair,all-to-all -s 8:16 -n 20 --warmup 5ms --plot " + dir + "/y.svg", "perf -d session --rails shm -t all-to-all --ranks 3 -n 20 --warmup 5ms --json",
	} {
		if code, _, stderr := status(t, bywash(strings.Fields(args)...)); code != 0 || stderr != "" {
			t.Errorf("bywash %s: status %d, stderr %q", args, code, stderr)
		}
	}
	for _, name := range []string{"man/man1/bywash.1", "man/man1/bywash-perf.1", "man/man1/bywash-run.1", "x.html", "y.svg"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestRepeatedDriversAreAllMeasured(t *testing.T) {
	code, out, stderr := status(t, bywash("perf", "-d", "sock-unix", "-d", "sock-tcp", "-t", "lat", "-s", "8", "-s", "16", "-n", "100", "--json"))
	for _, what := range []string{`"sock-unix"`, `"sock-tcp"`, `"size":8,`, `"size":16,`} {
		if code != 0 || !strings.Contains(out, what) {
			t.Errorf("status %d, %q is missing in %s%s", code, what, out, stderr)
		}
	}
}

func TestInterruptIsStatus130AndLeavesNothing(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) { interrupt(t, s) })
	}
}

func interrupt(t *testing.T, s syscall.Signal) {
	t.Helper()
	dir := t.TempDir()
	picture := filepath.Join(dir, "x.svg")
	cmd := bywash("perf", "-d", "all", "--duration", "30s", "--plot", picture)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir, "XDG_RUNTIME_DIR="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || time.Since(start) > 5*time.Second {
		t.Errorf("status %d after %v, want 130 within 5 s", code, time.Since(start))
	}
	var left []string
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, _ error) error {
		if !d.IsDir() {
			left = append(left, p)
		}
		return nil
	})
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// keys lists the names in a JSON object, in order, with nested ones as a.b.
func keys(t *testing.T, b []byte) []string {
	t.Helper()
	var out []string
	var walk func(prefix string, raw json.RawMessage)
	walk = func(prefix string, raw json.RawMessage) {
		raw = bytes.TrimSpace(raw)
		if len(raw) > 0 && raw[0] == '[' {
			var a []json.RawMessage
			if err := json.Unmarshal(raw, &a); err != nil {
				t.Fatal(err)
			}
			if len(a) > 0 {
				walk(prefix, a[0])
			}
			return
		}
		if len(raw) == 0 || raw[0] != '{' || strings.HasSuffix(prefix, "details.") {
			return
		}
		m := map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		for k, v := range m {
			out = append(out, prefix+k)
			walk(prefix+k+".", v)
		}
	}
	walk("", b)
	slices.Sort(out)
	return out
}

func TestInfoJSONIsPinned(t *testing.T) {
	b, err := json.Marshal(driverInfo{
		Unavailable: &whyNot{}, Devices: []deviceInfo{{Unavailable: &whyNot{}}}, Options: []optionInfo{{}},
		Tracks: []trackInfo{{Capabilities: capabilitiesInfo{OneSided: &oneSidedInfo{}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/info.fields")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(keys(t, b), "\n") + "\n"; got != string(want) {
		t.Errorf("fields of info --json\n got %s\nwant %s", got, want)
	}
}
