package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The files in testdata were recorded from go1.26 with "go test -json"; each holds one package.
func TestCountsRecordedStreams(t *testing.T) {
	tests := []struct {
		file   string
		status error // of go test
		want   counts
		shows  []string
		hides  []string
	}{
		{
			file: "pass", want: counts{6, 0, 6},
			shows: []string{
				"ok    pass", "   2  needs root\n        pass TestSub/b, pass TestSkipPlain",
				"first line second line", "no reason given", "needs 4 CPUs", "the rest needs root",
			},
			hides: []string{"hello from a", "before", "Failed:", "=== "},
		},
		{
			file: "fail", status: errExit, want: counts{3, 2, 0},
			shows: []string{"FAIL  fail", "parent log", "child log", "got 1, want 2", "the parent itself", "  fail TestSub/bad\n"},
			hides: []string{"quiet please", "=== RUN", "  fail TestSub\n"},
		},
		{
			file: "build", status: errExit, want: counts{0, 1, 0},
			shows: []string{"undefined: undefined", "  build: does not build\n"},
		},
		{
			file: "panics", status: errExit, want: counts{1, 1, 0},
			shows: []string{"panic: runtime error", "panics TestBoom/sub"},
		},
		{
			file: "timeout", status: errExit, want: counts{1, 1, 0},
			shows: []string{"test timed out after 1s", "timeout TestHang/sub: never ended"},
		},
		{
			file: "mainfail", status: errExit, want: counts{1, 1, 0},
			shows: []string{"leak: 3 goroutines", "  mainfail: failed outside of its tests\n"},
		},
		{
			file: "race", status: errExit, want: counts{0, 1, 0},
			shows: []string{"WARNING: DATA RACE", "race TestRace\n"},
		},
		{
			file: "par", status: errExit, want: counts{0, 2, 1},
			shows: []string{"about to die", "par TestA: never ended", "   1  in parallel: needs root"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			stream, err := os.ReadFile(filepath.Join("testdata", tt.file+".json"))
			if err != nil {
				t.Fatal(err)
			}
			checkReport(t, string(stream), tt.status, tt.want, tt.shows, tt.hides)
		})
	}
}

func TestCountsUnusualStreams(t *testing.T) {
	const pkg = `"Package":"example.com/rec/p"`
	tests := []struct {
		name   string
		stream string
		status error
		want   counts
		shows  []string
	}{
		{name: "nothing ran", want: counts{0, 1, 0}, shows: []string{"no test ran"}},
		{
			name:   "only skips",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"skip","Test":"TestA"`, pkg) + ev(`"Action":"pass"`, pkg),
			want:   counts{0, 1, 1}, shows: []string{"no test ran"},
		},
		{
			name:   "no test files",
			stream: ev(`"Action":"output","Output":"?   \tp\t[no test files]\n"`, pkg) + ev(`"Action":"skip"`, pkg),
			want:   counts{0, 1, 0}, shows: []string{"no test ran", "and 1 without tests"},
		},
		{
			name:   "go test fails without a word",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"pass","Test":"TestA"`, pkg) + ev(`"Action":"pass"`, pkg),
			status: errExit, want: counts{1, 1, 0}, shows: []string{"without naming a test: exit status 1"},
		},
		{
			name:   "the stream stops",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"output","Test":"TestA","Output":"last words\n"`, pkg),
			status: errExit, want: counts{0, 1, 0}, shows: []string{"last words", "p TestA: never ended"},
		},
		{
			name:   "the package says ok but a test never ended",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"pass"`, pkg),
			want:   counts{0, 1, 0}, shows: []string{"FAIL  p"},
		},
		{
			name: "a test runs twice and fails once (-count=2)",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"fail","Test":"TestA"`, pkg) +
				ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"pass","Test":"TestA"`, pkg) + ev(`"Action":"fail"`, pkg),
			status: errExit, want: counts{1, 1, 0}, shows: []string{"p TestA\n"},
		},
		{
			name: "a subtest with slashes in its name",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"run","Test":"TestA/b/c"`, pkg) +
				ev(`"Action":"pass","Test":"TestA/b/c"`, pkg) + ev(`"Action":"pass","Test":"TestA"`, pkg) + ev(`"Action":"pass"`, pkg),
			want: counts{1, 0, 0},
		},
		{
			name:   "lines that are not events are shown",
			stream: "go: downloading x\n{}\n" + ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"pass","Test":"TestA"`, pkg) + ev(`"Action":"pass"`, pkg),
			want:   counts{1, 0, 0}, shows: []string{"go: downloading x"},
		},
		{
			name: "a race that is reported beside the test it fails",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"output","Test":"TestA","Output":"WARNING: DATA RACE\n"`, pkg) +
				ev(`"Action":"pass","Test":"TestA"`, pkg) + ev(`"Action":"run","Test":"TestB"`, pkg) +
				ev(`"Action":"fail","Test":"TestB"`, pkg) + ev(`"Action":"fail"`, pkg),
			status: errExit, want: counts{1, 1, 0}, shows: []string{"WARNING: DATA RACE"},
		},
		{
			name: "slowest first",
			stream: ev(`"Action":"run","Test":"TestA"`, pkg) + ev(`"Action":"pass","Test":"TestA","Elapsed":1.5`, pkg) +
				ev(`"Action":"run","Test":"TestB"`, pkg) + ev(`"Action":"pass","Test":"TestB","Elapsed":75`, pkg) + ev(`"Action":"pass"`, pkg),
			want: counts{2, 0, 0}, shows: []string{"Slowest:\n     1m15s  p TestB\n      1.5s  p TestA\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkReport(t, tt.stream, tt.status, tt.want, tt.shows, nil)
		})
	}
}

var errExit = fmt.Errorf("exit status 1")

func ev(fields, pkg string) string { return "{" + fields + "," + pkg + "}\n" }

func checkReport(t *testing.T, stream string, status error, want counts, shows, hides []string) {
	t.Helper()
	var out bytes.Buffer
	r := newReport(&out, time.Now)
	r.module = "example.com/rec"
	r.beginGroup(groupSpec{name: "all", args: []string{"./..."}})
	for line := range strings.Lines(stream) {
		r.line([]byte(line))
	}
	r.endGroup(status, false)
	if got := r.summary(5); got != want {
		t.Errorf("counted %v, want %v\n%s", got, want, out.String())
	}
	if got := r.ok(); got != (want.failed == 0) {
		t.Errorf("ok is %v with %v", got, want)
	}
	if got := lastLine(out.String()); got != want.String() {
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

func TestSkipReason(t *testing.T) {
	for _, tt := range []struct{ output, want string }{
		{"", "no reason given"},
		{"--- SKIP: TestA (0.00s)\n", "no reason given"},
		{"    a_test.go:1: needs root\n--- SKIP: TestA (0.00s)\n", "needs root"},
		{"    a_test.go:1: log\n    a_test.go:2: needs root: see x.go:3: y\n", "needs root: see x.go:3: y"},
		{"        a_test.go:12: needs\n            two lines\n    --- SKIP: TestA/b (0.00s)\n", "needs two lines"},
		{"printed by the test\n    a_test.go:1: why\n", "why"},
		{"    not a file.go:1: text\n", "no reason given"},
	} {
		if got := skipReason(tt.output); got != tt.want {
			t.Errorf("skipReason(%q) = %q, want %q", tt.output, got, tt.want)
		}
	}
}

func TestParseGroups(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string // groups as name|args, those of a lane after &, or an error's beginning
	}{
		{"./...", "group 1|./..."},
		{"all: -p 1 ./... -- race: -race ./...", "all|-p 1 ./...;race|-race ./..."},
		{"-run TestA: ./a -- ./b", "group 1|-run TestA: ./a;group 2|./b"},
		{"a: ./a -- b: ./b ++ ./c", "a|./a;b|./b&group 3|./c"},
		{"a: X=1 GO_Y=a=b ./a -run Z=1 -- b: ./b", "a|X=1 GO_Y=a=b $ ./a -run Z=1;b|./b"},
		{"a: X=1", "error: group 1 has no arguments"},
		{"a: ./a ++ a: ./b", "error: two groups are named"},
		{"a: ./a ++", "error: group 2 has no arguments"},
		{"", "error: group 1 has no arguments"},
		{"a: ./... --", "error: group 2 has no arguments"},
		{"a: ./... -- a: ./...", "error: two groups are named"},
	} {
		lanes, err := parseGroups(strings.Fields(tt.args))
		var parts []string
		for _, groups := range lanes {
			var names []string
			for _, g := range groups {
				if len(g.env) > 0 {
					g.args = slices.Concat(g.env, []string{"$"}, g.args)
				}
				names = append(names, g.name+"|"+strings.Join(g.args, " "))
			}
			parts = append(parts, strings.Join(names, ";"))
		}
		got := strings.Join(parts, "&")
		if err != nil {
			got = "error: " + err.Error()
		}
		if !strings.HasPrefix(got, tt.want) || err == nil && got != tt.want {
			t.Errorf("parseGroups(%q) = %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestOptionalGroupMaySkip(t *testing.T) {
	const recPkg = `"Package":"example.com/rec/p"`
	for _, tt := range []struct {
		name, stream string
		want         bool
	}{
		{"vm?:", ev(`"Action":"run","Test":"TestA"`, recPkg) + ev(`"Action":"skip","Test":"TestA"`, recPkg) + ev(`"Action":"pass"`, recPkg), true},
		{"vm:", ev(`"Action":"run","Test":"TestA"`, recPkg) + ev(`"Action":"skip","Test":"TestA"`, recPkg) + ev(`"Action":"pass"`, recPkg), false},
		{"vm?:", ev(`"Action":"pass"`, recPkg), false},
		{"vm?:", ev(`"Action":"run","Test":"TestA"`, recPkg) + ev(`"Action":"fail","Test":"TestA"`, recPkg) + ev(`"Action":"fail"`, recPkg), false},
	} {
		lanes, err := parseGroups([]string{tt.name, "./..."})
		if err != nil || lanes[0][0].name != "vm" {
			t.Fatalf("%+v, %v", lanes, err)
		}
		r := newReport(io.Discard, time.Now)
		r.beginGroup(lanes[0][0])
		for line := range strings.Lines(tt.stream) {
			r.line([]byte(line))
		}
		r.endGroup(nil, false)
		g := r.groups[0]
		if got := g.failed == 0 && g.problem == ""; got != tt.want {
			t.Errorf("%s, %s: good %v, want %v (%s)", tt.name, tt.stream, got, tt.want, g.problem)
		}
	}
}

func TestHugeOutputKeepsItsEnds(t *testing.T) {
	var c clip
	c.WriteString("first line\n")
	line := strings.Repeat("x", 999) + "\n"
	for range 40_000 {
		c.WriteString(line)
	}
	c.WriteString("last line\n")
	got := c.String()
	if max := clipHead + 2*clipTail + 100; len(got) > max {
		t.Errorf("kept %d bytes, want at most %d", len(got), max)
	}
	if !strings.HasPrefix(got, "first line\n") || !strings.HasSuffix(got, "last line\n") || !strings.Contains(got, "bytes of output left out") {
		t.Errorf("kept %q ... %q", got[:40], got[len(got)-40:])
	}
}

func TestHeartbeatNamesRunningTests(t *testing.T) {
	now := time.Unix(0, 0)
	var out bytes.Buffer
	r := newReport(&out, func() time.Time { return now })
	r.module = "example.com/rec"
	r.beginGroup(groupSpec{name: "all"})
	out.Reset()

	beat := func(want string) {
		t.Helper()
		r.beat(time.Minute)
		if got := out.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		out.Reset()
	}
	beat("")
	now = now.Add(time.Minute)
	beat("-- 1m0s: still running: building\n")
	const pkg = `"Package":"example.com/rec/p"`
	r.line([]byte(ev(`"Action":"run","Test":"TestA"`, pkg)))
	r.line([]byte(ev(`"Action":"run","Test":"TestA/b"`, pkg)))
	r.line([]byte(ev(`"Action":"run","Test":"TestWaits"`, pkg)))
	r.line([]byte(ev(`"Action":"pause","Test":"TestWaits"`, pkg)))
	now = now.Add(59 * time.Second)
	beat("")
	now = now.Add(2 * time.Second)
	beat("-- 2m1s: still running: p TestA/b (1m1s)\n")
}

// The program as a whole, with this test binary in the place of the go command.

func TestMain(m *testing.M) {
	if os.Getenv("TESTSUM_FAKE_GO") != "" {
		os.Exit(fakeGo(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func fakeGoCommand(t *testing.T) {
	t.Setenv("TESTSUM_FAKE_GO", "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // with -race, every exit would take a second
}

func fakeGo(args []string) int {
	switch args[0] {
	case "list":
		fmt.Println("example.com/rec")
		return 0
	case "build":
		fmt.Fprintln(os.Stderr, "go: -race requires cgo; enable cgo by setting CGO_ENABLED=1")
		return 2
	}
	switch target := args[len(args)-1]; target {
	case "env": // passes only with the group's environment
		if os.Getenv("TESTSUM_X") != "ab" {
			return 1
		}
		return fakeGo([]string{"test", "pass"})
	case "hang":
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		fmt.Print(ev(`"Action":"run","Test":"TestA"`, `"Package":"example.com/rec/p"`))
		fmt.Fprintln(os.Stderr, "hanging")
		select {
		case <-interrupts:
			fmt.Fprintln(os.Stderr, "interrupted as asked")
		case <-time.After(time.Minute):
		}
		return 1
	case "usage":
		fmt.Fprintln(os.Stderr, "flag provided but not defined")
		return 2
	default:
		stream, err := os.Open(filepath.Join("testdata", target+".json"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer stream.Close()
		if _, err := io.Copy(os.Stdout, stream); err != nil || target != "pass" {
			return 1
		}
		return 0
	}
}

func TestExitStatusAndLastLine(t *testing.T) {
	fakeGoCommand(t)
	for _, tt := range []struct {
		args   string
		status int
		last   string
		shows  string
	}{
		{"pass", 0, "6 passed, 0 failed, 6 skipped", "pass TestSkipBare"},
		{"plain: pass -- race: -race pass", 0, "6 passed, 0 failed, 7 skipped", "the race detector cannot be built here: -race requires cgo"},
		{"a: TESTSUM_X=ab env -- b: pass", 0, "12 passed, 0 failed, 12 skipped", "a: 6 passed"},
		{"a: TESTSUM_X=a env", 1, "0 passed, 1 failed, 0 skipped", "go test failed without naming a test"},
		{"a: pass -- b: pass", 0, "12 passed, 0 failed, 12 skipped", "b: 6 passed"},
		{"a: fail -- b: pass", 1, "9 passed, 2 failed, 6 skipped", "fail TestSub/bad [a]"},
		{"a: fail -- b: pass ++ c: pass", 1, "15 passed, 2 failed, 12 skipped", "6 passed, 0 failed, 6 skipped [c]"},
		{"a: pass ++ b: fail", 1, "9 passed, 2 failed, 6 skipped", "fail TestSub/bad [b]"},
		{"race: -race pass", 1, "0 passed, 0 failed, 1 skipped", "No test ran."},
		{"usage", 1, "0 passed, 1 failed, 0 skipped", "flag provided but not defined"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var out, errOut bytes.Buffer
			file := filepath.Join(t.TempDir(), "last")
			args := append([]string{"-go", os.Args[0], "-o", file}, strings.Fields(tt.args)...)
			if got := run(args, &out, &errOut); got != tt.status {
				t.Errorf("exit status %d, want %d\n%s%s", got, tt.status, out.String(), errOut.String())
			}
			if got := lastLine(out.String()); got != tt.last {
				t.Errorf("last line %q, want %q", got, tt.last)
			}
			if got, _ := os.ReadFile(file); string(got) != tt.last+"\n" {
				t.Errorf("-o wrote %q, want %q", got, tt.last)
			}
			if !strings.Contains(out.String(), tt.shows) {
				t.Errorf("%q is missing from:\n%s", tt.shows, out.String())
			}
		})
	}
	if got := run(nil, io.Discard, io.Discard); got != 2 {
		t.Errorf("without arguments: exit status %d, want 2", got)
	}
	if got := run([]string{"-go", "/nonexistent/go", "./..."}, io.Discard, io.Discard); got != 1 {
		t.Errorf("without go: exit status %d, want 1", got)
	}
}

// An interrupt reaches go test in every lane, and the summary so far is printed. It runs in this process, which
// catches the signal.
func TestInterruptIsPassedOn(t *testing.T) {
	fakeGoCommand(t)
	for args, last := range map[string]string{
		"hang":               "0 passed, 1 failed, 0 skipped",
		"hang ++ hang":       "0 passed, 2 failed, 0 skipped",
		"pass -- hang -- no": "6 passed, 1 failed, 6 skipped",
	} {
		t.Run(args, func(t *testing.T) { checkInterrupt(t, args, last) })
	}
}

func checkInterrupt(t *testing.T, args, last string) {
	var text strings.Builder
	hanging := strings.Count(args, "hang")
	out := writerFunc(func(p []byte) (int, error) {
		text.Write(p)
		if hanging -= strings.Count(string(p), "hanging\n"); hanging == 0 && strings.Contains(string(p), "hanging") {
			return len(p), syscall.Kill(os.Getpid(), syscall.SIGINT)
		}
		return len(p), nil
	})
	start := time.Now()
	status := run(append([]string{"-go", os.Args[0]}, strings.Fields(args)...), out, io.Discard)
	if status != 130 {
		t.Errorf("exit status %d, want 130", status)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
	for _, want := range []string{"interrupted as asked", "  p TestA", ": never ended", "interrupt: stopping the tests"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing from:\n%s", want, text.String())
		}
	}
	if got := lastLine(text.String()); got != last {
		t.Errorf("last line %q, want %q", got, last)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRaceGroupsAreFound(t *testing.T) {
	for args, want := range map[string]string{
		"-race ./...": "-race", "./... -args -race": "", "./...": "", "-race=true ./...": "-race", "-asan ./a": "-asan", "./a -args -asan": "",
	} {
		if got := (groupSpec{args: strings.Fields(args)}).sanitizer(); got != want {
			t.Errorf("sanitizer(%q) = %q, want %q", args, got, want)
		}
	}
}
