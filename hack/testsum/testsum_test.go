package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// groupOf is a group of which gotestsum wrote this stream and hack/test this status ("": it has not ended).
func groupOf(t *testing.T, stream, status string) *group {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"all.json": stream, "all.status": status, "all.log": "what was printed\n"}
	if status == "" {
		delete(files, "all.status")
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return readGroup(dir, "all")
}

func checkSummary(t *testing.T, stream, status, want string, shows, hides []string) {
	t.Helper()
	var out bytes.Buffer
	good := printSummary(&out, []*group{groupOf(t, stream, status)}, "")
	if want := strings.Contains(want, " 0 failed") && !strings.HasPrefix(want, "0 passed"); good != want {
		t.Errorf("good is %v, want %v", good, want)
	}
	if got := lastLine(out.String()); got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
	for _, s := range shows {
		if !strings.Contains(out.String(), s) {
			t.Errorf("%q is missing from:\n%s", s, out.String())
		}
	}
	for _, s := range hides {
		if strings.Contains(out.String(), s) {
			t.Errorf("%q is in:\n%s", s, out.String())
		}
	}
}

func lastLine(s string) string {
	s = strings.TrimSuffix(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

const (
	ended  = "0 1.5 2 0.5"
	broken = "1 1.5 2 0.5"
)

// The files in testdata were recorded from go1.26 with "go test -json"; each holds one package.
func TestRecordedStreams(t *testing.T) {
	for _, tt := range []struct {
		file, status, want string
		shows, hides       []string
	}{
		{
			file: "pass", status: ended, want: "6 passed, 0 failed, 6 skipped",
			shows: []string{
				"   2  needs root\n        example.com/rec/pass TestSub/b, example.com/rec/pass TestSkipPlain",
				"first line second line", "no reason given", "needs 4 CPUs", "the rest needs root", "1.5s, 2.5s of CPU time\n",
			},
			hides: []string{"hello from a", "before", "Failed:", "=== "},
		},
		{
			file: "fail", status: broken, want: "3 passed, 2 failed, 0 skipped",
			shows: []string{
				"=== FAIL: example.com/rec/fail TestSub/bad [all]\n", "parent log", "child log", "got 1, want 2", "the parent itself",
				"  example.com/rec/fail TestSub/bad [all]: failed after",
			},
			hides: []string{"quiet please", "=== RUN", "fail TestSub [all]: "},
		},
		{
			file: "build", status: broken, want: "0 passed, 1 failed, 0 skipped",
			shows: []string{"undefined: undefined", "rec/build [all]: does not build\n"},
		},
		{
			file: "panics", status: broken, want: "1 passed, 1 failed, 0 skipped",
			shows: []string{"panic: runtime error", "panics TestBoom/sub"},
		},
		{
			file: "timeout", status: broken, want: "1 passed, 1 failed, 0 skipped",
			shows: []string{"test timed out after 1s", "timeout TestHang/sub [all]: never ended"},
		},
		{
			file: "mainfail", status: broken, want: "1 passed, 1 failed, 0 skipped",
			shows: []string{"leak: 3 goroutines", "rec/mainfail [all]: failed outside of its tests\n"},
		},
		{
			file: "race", status: broken, want: "0 passed, 1 failed, 0 skipped",
			shows: []string{"WARNING: DATA RACE", "race TestRace [all]"},
		},
		{
			file: "par", status: broken, want: "0 passed, 2 failed, 1 skipped",
			shows: []string{"about to die", "par TestA [all]: never ended", "   1  in parallel: needs root"},
		},
	} {
		t.Run(tt.file, func(t *testing.T) {
			stream, err := os.ReadFile(filepath.Join("testdata", tt.file+".json"))
			if err != nil {
				t.Fatal(err)
			}
			checkSummary(t, string(stream), tt.status, tt.want, tt.shows, tt.hides)
		})
	}
}

// ev is an event of a package p; words are Action, Test and more fields.
func ev(action, test string, more ...string) string {
	return fmt.Sprintf(`{"Action":%q,"Package":"%s/p","Test":%q%s}`+"\n", action, module, test, strings.Join(append([]string{""}, more...), ","))
}

func TestUnusualStreams(t *testing.T) {
	passes := ev("run", "TestA") + ev("pass", "TestA")
	skips := ev("run", "TestA") + ev("skip", "TestA") + ev("pass", "")
	for _, tt := range []struct {
		name, stream, status, want string
		shows                      []string
	}{
		{"nothing", "", ended, "0 passed, 1 failed, 0 skipped", []string{"no test ran"}},
		{"only skips", skips, ended, "0 passed, 1 failed, 1 skipped", []string{"no test ran"}},
		{"only skips, optional", skips, ended + " optional", "0 passed, 0 failed, 1 skipped", nil},
		{"nothing, optional", "", ended + " optional", "0 passed, 1 failed, 0 skipped", []string{"no test ran"}},
		{"no test files", ev("start", "") + ev("skip", ""), ended, "0 passed, 1 failed, 0 skipped", []string{"no test ran"}},
		{
			"go test fails without a word", passes + ev("pass", ""), broken, "1 passed, 1 failed, 0 skipped",
			[]string{"without naming a test: exit status 1", "what was printed"},
		},
		{"the lane is killed", passes + ev("pass", ""), "", "1 passed, 1 failed, 0 skipped", []string{"the group [all]: was killed"}},
		{
			"the stream stops", ev("run", "TestA") + ev("output", "TestA", `"Output":"last words\n"`) + `{"Action":"pa`, broken,
			"0 passed, 1 failed, 0 skipped", []string{"last words", "p TestA [all]: never ended"},
		},
		{
			"the package says ok but a test never ended", ev("run", "TestA") + ev("pass", ""), ended,
			"0 passed, 1 failed, 0 skipped", []string{"p TestA [all]: never ended"},
		},
		{"the package never ended", passes, ended, "1 passed, 1 failed, 0 skipped", []string{"  p [all]: never ended"}},
		{"waits for its turn", ev("run", "TestA") + ev("pause", "TestA"), broken, "0 passed, 1 failed, 0 skipped", []string{"waiting for its turn"}},
		{
			"a test runs twice and fails once (-count=2)",
			ev("run", "TestA") + ev("fail", "TestA") + passes + ev("fail", ""), broken,
			"1 passed, 1 failed, 0 skipped", []string{"p TestA [all]: failed"},
		},
		{
			"a subtest with slashes in its name", ev("run", "TestA") + ev("run", "TestA/b/c") + ev("pass", "TestA/b/c") + ev("pass", "TestA") + ev("pass", ""),
			ended, "1 passed, 0 failed, 0 skipped", nil,
		},
		{"lines that are no events", "go: downloading x\n{}\n" + passes + ev("pass", ""), ended, "1 passed, 0 failed, 0 skipped", nil},
		{
			"a race that is reported beside the test it fails",
			ev("run", "TestA") + ev("output", "TestA", `"Output":"WARNING: DATA RACE\n"`) + ev("pass", "TestA") +
				ev("run", "TestB") + ev("fail", "TestB") + ev("fail", ""),
			broken, "1 passed, 1 failed, 0 skipped", []string{"=== BESIDE IT: p TestA [all]\nWARNING: DATA RACE"},
		},
		{
			"slowest first", ev("run", "TestA") + ev("pass", "TestA", `"Elapsed":1.5`) + ev("run", "TestB") + ev("pass", "TestB", `"Elapsed":75`) + ev("pass", ""),
			ended, "2 passed, 0 failed, 0 skipped", []string{"Slowest:\n     1m15s  p TestB [all]\n      1.5s  p TestA [all]\n"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) { checkSummary(t, tt.stream, tt.status, tt.want, tt.shows, nil) })
	}
}

func TestSkipReason(t *testing.T) {
	for _, tt := range []struct{ output, want string }{
		{"", "no reason given"},
		{"--- SKIP: TestA (0.00s)\n", "no reason given"},
		{"    a_test.go:1: needs root\n--- SKIP: TestA (0.00s)\n", "needs root"},
		{"    a_test.go:1: log\n    a_test.go:2: needs root: see x.go:3: y\n", "needs root: see x.go:3: y"},
		{"        a_test.go:12: needs\n            two lines\n        --- SKIP: TestA/b (0.00s)\n", "needs two lines"},
		{"printed by the test\n    a_test.go:1: why\n", "why"},
		{"    not a file.go:1: text\n", "no reason given"},
	} {
		if got := skipReason(tt.output); got != tt.want {
			t.Errorf("skipReason(%q) = %q, want %q", tt.output, got, tt.want)
		}
	}
}

func TestLongOutputKeepsItsEnds(t *testing.T) {
	got := clip("first line\n" + strings.Repeat("x\n", 40_000) + "last line\n")
	if lines := strings.Count(got, "\n"); lines > 201 {
		t.Errorf("kept %d lines, want about 200", lines)
	}
	if !strings.HasPrefix(got, "first line\n") || !strings.HasSuffix(got, "last line\n") || !strings.Contains(got, "lines left out") {
		t.Errorf("kept %q ... %q", got[:40], got[len(got)-40:])
	}
}

func TestRunningTestsAreNamed(t *testing.T) {
	at := `"Time":"2026-01-01T00:00:00Z"`
	now := time.Date(2026, 1, 1, 0, 1, 1, 0, time.UTC)
	for stream, want := range map[string]string{
		"": "-- all: still running: building\n",
		ev("run", "TestA", at) + ev("run", "TestA/b", at) + ev("run", "TestWaits", at) + ev("pause", "TestWaits", at) +
			ev("run", "TestDone", at) + ev("pass", "TestDone", at): "-- all: still running: p TestA/b (1m1s)\n",
	} {
		var out bytes.Buffer
		printRunning(&out, []*group{groupOf(t, stream, "")}, now)
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
		out.Reset()
		if printRunning(&out, []*group{groupOf(t, stream, ended)}, now); out.Len() > 0 {
			t.Errorf("a group that has ended: %q", out.String())
		}
	}
}

func TestBudgetsArePrinted(t *testing.T) {
	table := filepath.Join(t.TempDir(), "budget")
	if err := os.WriteFile(table, []byte("# comment\n* 20\nafxdp/link 40\np 10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var stream strings.Builder
	for pkg, took := range map[string]int{"afxdp/internal/link": 41, "p": 9, "q": 19, "r": 21} {
		fmt.Fprintf(&stream, `{"Action":"pass","Package":"%s/%s","Elapsed":%d}`+"\n", module, pkg, took)
	}
	var out bytes.Buffer
	printBudget(&out, []*group{groupOf(t, stream.String(), ended)}, table)
	for want, shown := range map[string]bool{"41.0s of 40.0s  afxdp/link  OVER": true, "9.0s of 10.0s  p\n": true, "  q": false, "21.0s of 20.0s  r  OVER": true} {
		if strings.Contains(out.String(), want) != shown {
			t.Errorf("%q shown: %v, want %v:\n%s", want, !shown, shown, out.String())
		}
	}
}

// fakeGo is a go command whose tests are streams that the environment names by group; it builds with the real one, but
// not with -asan.
const fakeGo = `#!/bin/sh
case "$1 $2" in
"build -asan") printf '# runtime/cgo\ngo: -asan requires "cgo"\n' >&2; exit 2 ;;
test*) ;;
*) exec "$REAL_GO" "$@" ;;
esac
stream=${FIRST-pass}
[ -z "${BYWASH_HOSTILE-}" ] || stream=$SECOND
case $stream in
hang | hold)
	# An interrupt does not reach it: shells ignore that for what is in the background.
	if [ $stream = hold ]; then sleep 300 & else sleep 300 >/dev/null 2>&1 & fi
	echo '{"Action":"run","Package":"p","Test":"TestA"}'
	echo $! >>"$CHILDREN"
	trap 'echo "interrupted as asked" >&2; exit 1' INT
	wait
	wait
	;;
usage) echo "flag provided but not defined" >&2; exit 2 ;;
*) cat "$STREAMS/$stream.json" ;;
esac
[ $stream = pass ]
`

// script starts hack/test with the fake go command. Its programs are built once, in bin.
func script(t *testing.T, bin, first, second string, args ...string) *exec.Cmd {
	t.Helper()
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(fakeGo), 0o755); err != nil {
		t.Fatal(err)
	}
	streams, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../test", args...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "REAL_GO="+realGo, "STREAMS="+streams, "BYWASH_BIN="+bin,
		"CHILDREN="+filepath.Join(bin, "children"), "FIRST="+first, "SECOND="+second)
	return cmd
}

func TestLanes(t *testing.T) {
	bin := t.TempDir()
	for _, tt := range []struct {
		first, second, args string
		status              int
		last, shows         string
	}{
		{"pass", "pass", "cgocheck", 0, "6 passed, 0 failed, 6 skipped", "[cgocheck] PASS"},
		{"pass", "pass", "cgocheck ++ hostile", 0, "12 passed, 0 failed, 12 skipped", "hostile: 6 passed"},
		{"fail", "pass", "cgocheck hostile", 1, "9 passed, 2 failed, 6 skipped", "fail TestSub/bad [cgocheck]"},
		{"pass", "fail", "cgocheck ++ hostile", 1, "9 passed, 2 failed, 6 skipped", "fail TestSub/bad [hostile]"},
		{"usage", "pass", "cgocheck", 1, "0 passed, 1 failed, 0 skipped", "flag provided but not defined"},
		{"pass", "pass", "cgocheck asan", 0, "6 passed, 0 failed, 7 skipped", "-asan cannot be built here: go: -asan requires cgo"},
		{"pass", "pass", "asan", 1, "0 passed, 0 failed, 1 skipped", "asan: 0 passed"},
	} {
		t.Run(tt.first+" "+tt.second+" "+tt.args, func(t *testing.T) {
			cmd := script(t, bin, tt.first, tt.second, append([]string{"group"}, strings.Fields(tt.args)...)...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d\n%s", got, tt.status, out)
			}
			if got := lastLine(string(out)); got != tt.last {
				t.Errorf("last line %q, want %q", got, tt.last)
			}
			if got, _ := os.ReadFile(filepath.Join(bin, "testsum.last")); string(got) != tt.last+"\n" {
				t.Errorf("testsum.last holds %q, want %q", got, tt.last)
			}
			if !strings.Contains(string(out), tt.shows) {
				t.Errorf("%q is missing from:\n%s", tt.shows, out)
			}
		})
	}
	for _, args := range []string{"", "group none", "rest none", "nonsense"} {
		cmd := script(t, bin, "pass", "pass", strings.Fields(args)...)
		if out, _ := cmd.CombinedOutput(); args != "" && cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%q: exit status %d, want 2\n%s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// An interrupt reaches go test in every lane, the summary so far is printed, and nothing is left running.
func TestInterruptEndsEveryLane(t *testing.T) {
	bin := t.TempDir()
	for _, tt := range []struct {
		args, stream string // hang: until it is interrupted; hold: and a child keeps its output open
		signal       syscall.Signal
		last         string
	}{
		{"group cgocheck ++ hostile", "hang", syscall.SIGINT, "0 passed, 2 failed, 0 skipped"},
		{"group cgocheck ++ hostile", "hold", syscall.SIGTERM, "0 passed, 2 failed, 0 skipped"},
		{"group cgocheck ubsan", "hang", syscall.SIGINT, "0 passed, 2 failed, 0 skipped"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			if tt.stream == "hold" && testing.Short() {
				t.Skip("waits ten seconds, until hack/test kills what ignores an interrupt")
			}
			cmd := script(t, bin, tt.stream, tt.stream, strings.Fields(tt.args)...)
			children := filepath.Join(bin, "children")
			os.Remove(children)
			out, stop := startScript(t, cmd)
			defer stop()
			lanes := strings.Count(tt.args, "++") + 1
			waitFor(t, "the tests to run", func() bool { text, _ := os.ReadFile(children); return bytes.Count(text, []byte("\n")) == lanes })
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 130 {
				t.Errorf("exit status %d, want 130", got)
			}
			if got := lastLine(string(text)); got != tt.last {
				t.Errorf("last line %q, want %q\n%s", got, tt.last, text)
			}
			for _, want := range []string{"interrupted as asked", "p TestA [cgocheck]: never ended", "stopping the tests"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("%q is missing from:\n%s", want, text)
				}
			}
			checkGone(t, children)
		})
	}
}

func startScript(t *testing.T, cmd *exec.Cmd) (out io.Reader, stop func()) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return out, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// checkGone waits until the processes whose ids are in a file have ended.
func checkGone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(text)) {
		waitFor(t, "process "+pid+" to end", func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || bytes.Contains(stat, []byte(") Z ")) // a zombie nobody has waited for
		})
	}
}
