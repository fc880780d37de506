package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const module = "github.com/bywash/bywash"

// A test is a test or, with an empty name, a package, which is the parent of its tests.
type test struct {
	group, pkg, name string
	parent           *test
	state            string // its last event but output: start, run, pause, cont, pass, fail, skip
	container        bool
	broken           bool // it or a test below failed or never ended
	brokenBelow      bool
	since            time.Time
	elapsed          time.Duration
	failedBuild      string
	why              string // of what is no test
	output           strings.Builder
}

func (t *test) ended() bool   { return t.state == "pass" || t.state == "fail" || t.state == "skip" }
func (t *test) running() bool { return !t.ended() && t.state != "pause" }
func (t *test) String() string {
	return strings.TrimSpace(t.pkg + " " + t.name)
}

// verdict describes how a test failed.
func (t *test) verdict() string {
	switch {
	case t.why != "":
		return t.why
	case t.failedBuild != "":
		return "does not build"
	case t.state == "pause":
		return "never ended: was waiting for its turn"
	case !t.ended():
		return "never ended"
	case t.name == "":
		return "failed outside of its tests"
	}
	return "failed after " + seconds(t.elapsed)
}

type group struct {
	name         string
	begun, ended bool
	exit         int
	took, cpu    time.Duration
	optional     bool // all its tests may be skipped
	tests        []*test
	latest       map[string]*test // by package and name
	builds       map[string]*strings.Builder
	log          string
	problem      *test // of no package
}

// An event is a line of "go test -json" (see "go doc test2json" and "go help buildjson").
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Time                                                   time.Time
	Elapsed                                                float64
}

// readGroup reads the files of a group, which may be incomplete.
func readGroup(dir, name string) *group {
	g := &group{name: name, latest: map[string]*test{}, builds: map[string]*strings.Builder{}}
	base := filepath.Join(dir, name)
	log, _ := os.ReadFile(base + ".log")
	g.log = string(log)
	if stream, err := os.Open(base + ".json"); err == nil {
		defer stream.Close()
		g.begun = true
		g.read(stream)
	}
	if status, err := os.ReadFile(base + ".status"); err == nil {
		var took, user, system float64
		var word string
		n, _ := fmt.Sscan(string(status), &g.exit, &took, &user, &system, &word)
		g.ended, g.optional = n >= 4, word == "optional"
		g.took, g.cpu = duration(took), duration(user+system)
	}
	return g
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func (g *group) read(stream io.Reader) {
	for in := bufio.NewReader(stream); ; {
		line, err := in.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil && e.Action != "" {
			g.take(e)
		}
		if err != nil {
			return
		}
	}
}

func (g *group) take(e event) {
	if e.Action == "build-output" {
		if g.builds[e.ImportPath] == nil {
			g.builds[e.ImportPath] = &strings.Builder{}
		}
		g.builds[e.ImportPath].WriteString(e.Output)
	}
	if e.Package == "" {
		return
	}
	t := g.find(e)
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			t.output.WriteString(e.Output)
		}
	case "start", "run", "pause", "cont", "pass", "fail", "skip":
		t.state, t.since, t.elapsed, t.failedBuild = e.Action, e.Time, duration(e.Elapsed), e.FailedBuild
	}
}

// find returns the test of an event. A test that has ended and runs again (-count) is another one.
func (g *group) find(e event) *test {
	key := e.Package + " " + e.Test
	if t := g.latest[key]; t != nil && !(e.Action == "run" && t.ended()) {
		return t
	}
	t := &test{group: g.name, pkg: strings.TrimPrefix(e.Package, module+"/"), name: e.Test, state: "run", since: e.Time}
	// A subtest's own name may hold slashes ("seed/1/x"): its parent is the longest prefix that is a test.
	for at := strings.LastIndexByte(e.Test, '/'); at > 0 && t.parent == nil; at = strings.LastIndexByte(e.Test[:at], '/') {
		t.parent = g.latest[e.Package+" "+e.Test[:at]]
	}
	if e.Test == "" {
		t.container = true
	} else if t.parent == nil {
		t.parent = g.find(event{Package: e.Package, Time: e.Time})
	}
	if t.parent != nil {
		t.parent.container = true
	}
	g.latest[key], g.tests = t, append(g.tests, t)
	return t
}

// count sorts the tests by their results.
func (g *group) count() (passed, failed, skipped []*test) {
	for _, t := range slices.Backward(g.tests) { // a subtest comes after its parent
		t.broken = t.broken || t.state == "fail" || !t.ended()
		if t.broken && t.parent != nil {
			t.parent.broken, t.parent.brokenBelow = true, true
		}
	}
	for _, t := range g.tests {
		switch {
		case t.broken && !t.brokenBelow:
			failed = append(failed, t)
		case t.state == "skip" && t.name != "":
			skipped = append(skipped, t)
		case !t.broken && !t.container:
			passed = append(passed, t)
		}
	}
	why := ""
	switch {
	case !g.begun && !g.ended:
		why = "did not run"
	case !g.ended:
		why = "was killed"
	case g.exit != 0 && len(failed) == 0:
		why = fmt.Sprintf("go test failed without naming a test: exit status %d", g.exit)
	case len(passed)+len(failed) == 0 && (!g.optional || len(skipped) == 0):
		why = "no test ran"
	}
	if why == "" {
		return passed, failed, skipped
	}
	g.problem = &test{group: g.name, pkg: "the group", state: "fail", why: why}
	if len(failed) == 0 {
		failed = append(failed, g.problem)
	}
	return passed, failed, skipped
}

// printFailures prints the output of failed tests, and of passed tests that contain the report of a race or of a dying
// process, which can appear in the output of another test.
func (g *group) printFailures(w io.Writer) {
	broken := slices.ContainsFunc(g.tests, func(t *test) bool { return t.broken })
	for _, t := range g.tests {
		text := t.output.String()
		dying := broken && regexp.MustCompile("WARNING: DATA RACE|panic: |fatal error: ").MatchString(text)
		if !t.broken && !dying {
			continue
		}
		if out := g.builds[t.failedBuild]; out != nil {
			text += out.String()
		}
		fmt.Fprintf(w, "\n=== %s: %s [%s]\n%s", map[bool]string{true: "FAIL", false: "BESIDE IT"}[t.broken], t, g.name, clip(text))
	}
	if g.problem != nil {
		fmt.Fprintf(w, "\n=== FAIL: %s: %s\n%s", g.name, g.problem.why, clip(g.log))
	}
}

// clip shortens a text of more than 200 lines to its beginning and its end.
func clip(text string) string {
	const head, tail = 60, 140
	lines := strings.SplitAfter(text, "\n")
	if len(lines) > head+tail {
		gap := fmt.Sprintf("... %d lines left out (bin/test has them) ...\n", len(lines)-head-tail)
		lines = slices.Concat(lines[:head], []string{gap}, lines[len(lines)-tail:])
	}
	text = strings.Join(lines, "")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// logged matches what t.Log wrote, "    file_test.go:12: text", and its further lines, which are indented.
var logged = regexp.MustCompile(`(?m)^ {4,}[^\s:]+\.go:\d+: (.*(?:\n {8,}[^\s-].*)*)`)

// skipReason is the last thing a skipped test logged, as one line: t.Skip logs its reason and ends the test.
func skipReason(output string) string {
	all := logged.FindAllStringSubmatch(output, -1)
	if len(all) == 0 {
		return "no reason given"
	}
	return cmp.Or(strings.Join(strings.Fields(all[len(all)-1][1]), " "), "no reason given")
}
