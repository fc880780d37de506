package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// An event is a line of "go test -json" (see "go doc test2json" and "go help buildjson").
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail, instead of Package
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// counts are leaf tests, as the package documentation defines them.
type counts struct{ passed, failed, skipped int }

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

func (c *counts) add(d counts) {
	c.passed += d.passed
	c.failed += d.failed
	c.skipped += d.skipped
}

type testState int

const (
	running testState = iota
	paused            // waits for its turn among parallel tests
	passed
	failed
	skipped
)

type testRun struct {
	name     string
	parent   *testRun
	subtests bool // it has some, so it is not a leaf
	broken   bool // it or a test below it failed or never ended
	state    testState
	since    time.Time
	elapsed  time.Duration
	output   clip
}

func (t *testRun) ended() bool { return t.state >= passed }

type pkgRun struct {
	name    string
	tests   map[string]*testRun
	order   []*testRun
	output  clip // what belongs to no test
	cached  bool
	noFiles bool
	started time.Time
}

// A result is a test worth naming in the summary.
type result struct {
	group, pkg, test string
	what             string
	elapsed          time.Duration
}

func (r result) String() string {
	return strings.TrimSpace(r.pkg + " " + r.test)
}

type groupRun struct {
	groupSpec
	counts
	skipReason string
	pkgs       map[string]*pkgRun
	builds     map[string]*clip // output by import path, until its package reports it
	packages   int
	untested   int
	started    time.Time
	took       time.Duration
	ran        bool // a test passed or failed
	problem    string
}

// A report turns events into lines for people. It is used by one goroutine; those of lanes share the output, which is
// whose turn it is.
type report struct {
	turn      *sync.Mutex
	beside    bool // others print at the same time: say whose a line is
	w         io.Writer
	now       func() time.Time
	module    string
	begun     time.Time
	lastPrint time.Time

	groups   []*groupRun
	cur      *groupRun
	skips    map[string][]result // by reason
	failures []result
	slow     []result
}

func newReport(w io.Writer, now func() time.Time) *report {
	return &report{turn: &sync.Mutex{}, w: w, now: now, begun: now(), lastPrint: now(), skips: map[string][]result{}}
}

// lane returns a report of groups that run beside others.
func (r *report) lane(beside bool) *report {
	l := newReport(r.w, r.now)
	l.turn, l.module, l.begun, l.beside = r.turn, r.module, r.begun, beside
	return l
}

// join takes over what a lane has found.
func (r *report) join(l *report) {
	r.groups = append(r.groups, l.groups...)
	r.failures = append(r.failures, l.failures...)
	r.slow = append(r.slow, l.slow...)
	for why, results := range l.skips {
		r.skips[why] = append(r.skips[why], results...)
	}
}

// inTurn calls f while no other lane prints.
func (r *report) inTurn(f func()) {
	r.turn.Lock()
	defer r.turn.Unlock()
	f()
}

// take takes one line of go test's output.
func (r *report) take(in input) {
	if in.stderr {
		r.stray(string(in.line))
	} else {
		r.line(in.line)
	}
}

func (r *report) printf(format string, args ...any) {
	fmt.Fprintf(r.w, format, args...)
	r.lastPrint = r.now()
}

func (r *report) note(format string, args ...any) { r.printf("-- "+format+"\n", args...) }

// short cuts the module's path from a package's name.
func (r *report) short(pkg string) string {
	if pkg == r.module {
		return "."
	}
	return strings.TrimPrefix(pkg, r.module+"/")
}

func (r *report) beginGroup(spec groupSpec) {
	r.cur = &groupRun{groupSpec: spec, pkgs: map[string]*pkgRun{}, builds: map[string]*clip{}, started: r.now()}
	r.groups = append(r.groups, r.cur)
	r.note("%s: %s", spec.name, strings.Join(slices.Concat(spec.env, []string{"go", "test"}, spec.args), " "))
}

// skipGroup replaces the run of a group that this machine cannot run.
func (r *report) skipGroup(why string) {
	r.cur.skipReason = why
	r.cur.skipped++
	r.skips[why] = append(r.skips[why], result{pkg: "all tests of " + r.cur.name})
	r.note("%s: skipped: %s", r.cur.name, why)
}

// endGroup closes what the stream left open and judges the run by go test's own exit status too.
func (r *report) endGroup(status error, interrupted bool) {
	g := r.cur
	g.took = r.now().Sub(g.started)
	for _, p := range slices.SortedFunc(maps.Values(g.pkgs), func(a, b *pkgRun) int { return cmp.Compare(a.name, b.name) }) {
		r.endPackage(p, event{Action: "fail", Elapsed: r.now().Sub(p.started).Seconds()}, "never ended")
	}
	for _, out := range g.builds {
		r.printf("%s", out.String()) // warnings, or a build that failed for no package we heard of
	}
	clear(g.builds)
	switch {
	case interrupted:
		g.problem = "interrupted"
	case status != nil && g.failed == 0:
		g.problem = "go test failed without naming a test: " + status.Error()
	case !g.ran && g.failed == 0 && (!g.optional || g.skipped == 0):
		g.problem = "no test ran"
	default:
		return
	}
	if g.failed == 0 {
		g.failed++
		r.failures = append(r.failures, result{group: g.name, what: g.problem})
	}
	r.printf("%s: %s\n", g.name, g.problem)
}

// stray shows what is not part of the stream: downloads, warnings, go's own errors.
func (r *report) stray(line string) {
	if !strings.HasSuffix(line, "\n") {
		line += "\n"
	}
	r.printf("%s", line)
}

// line takes one line of the stream.
func (r *report) line(b []byte) {
	var e event
	if err := json.Unmarshal(b, &e); err != nil || e.Action == "" {
		r.stray(string(b))
		return
	}
	r.event(e)
}

func (r *report) event(e event) {
	g := r.cur
	switch e.Action {
	case "build-output":
		out := g.builds[e.ImportPath]
		if out == nil {
			out = &clip{}
			g.builds[e.ImportPath] = out
		}
		out.WriteString(e.Output)
		return
	case "build-fail":
		return // the package's own event names it in FailedBuild
	}
	if e.Package == "" {
		return
	}
	p := g.pkgs[e.Package]
	if p == nil {
		p = &pkgRun{name: r.short(e.Package), tests: map[string]*testRun{}, started: r.now()}
		g.pkgs[e.Package] = p
	}
	if e.Test == "" {
		r.packageEvent(p, e)
	} else {
		r.testEvent(p, e)
	}
}

func (r *report) packageEvent(p *pkgRun, e event) {
	switch e.Action {
	case "output":
		switch {
		case strings.HasPrefix(e.Output, "ok  \t"):
			p.cached = strings.Contains(e.Output, "\t(cached)")
		case strings.Contains(e.Output, "\t[no test files]"):
			p.noFiles = true
		case e.Output == "PASS\n", e.Output == "FAIL\n", strings.HasPrefix(e.Output, "FAIL\t"):
		default:
			p.output.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		delete(r.cur.pkgs, e.Package)
		r.endPackage(p, e, "")
	}
}

func (r *report) testEvent(p *pkgRun, e event) {
	t := p.tests[e.Test]
	if t == nil || e.Action == "run" && t.ended() { // the second case is -count
		t = &testRun{name: e.Test, since: r.now()}
		// A subtest's own name may hold slashes ("seed/1/x"), so its parent is the longest prefix that is a test.
		for at := strings.LastIndexByte(e.Test, '/'); at > 0 && t.parent == nil; at = strings.LastIndexByte(e.Test[:at], '/') {
			t.parent = p.tests[e.Test[:at]]
		}
		if t.parent != nil {
			t.parent.subtests = true
		}
		p.tests[e.Test] = t
		p.order = append(p.order, t)
	}
	switch e.Action {
	case "pause":
		t.state = paused
	case "cont":
		t.state, t.since = running, r.now()
	case "output":
		if !isFraming(e.Output) {
			t.output.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		t.elapsed = time.Duration(e.Elapsed * float64(time.Second))
		switch e.Action {
		case "pass":
			t.state = passed
			// The report of a race or a dying process can land in a test beside the one that it fails.
			if !t.output.containsAny("WARNING: DATA RACE", "panic: ", "fatal error: ") {
				t.output = clip{}
			}
		case "fail":
			t.state = failed
		case "skip":
			t.state = skipped
		}
	}
}

// isFraming reports whether a line of output only says which test the next lines belong to.
func isFraming(line string) bool {
	for _, p := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "=== ATTR "} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

// endPackage counts a package's tests and prints its line, with the output of what failed. Why says what stopped it,
// when that was not its own end.
func (r *report) endPackage(p *pkgRun, e event, why string) {
	g := r.cur
	if e.Action == "skip" && len(p.order) == 0 || p.noFiles && e.Action != "fail" {
		g.untested++
		return
	}
	g.packages++
	c := r.countTests(p)
	if e.Action == "fail" && c.failed == 0 {
		c.failed++
		what := cmp.Or(why, "failed outside of its tests")
		if e.FailedBuild != "" {
			what = "does not build"
		}
		r.failures = append(r.failures, result{group: g.name, pkg: p.name, what: what})
	}
	g.add(c)
	g.ran = g.ran || c.passed > 0 || len(p.order) > 0 && c.failed > 0

	word := "ok  "
	if c.failed > 0 {
		word = "FAIL"
		r.printFailure(p, e)
	}
	took := seconds(time.Duration(e.Elapsed * float64(time.Second)))
	if p.cached {
		took = "cached"
	}
	of := ""
	if r.beside {
		of = " [" + g.name + "]"
	}
	r.printf("%s  %-32s %8s  %s%s\n", word, p.name, took, c, of)
}

// countTests counts a package's leaf tests and notes those the summary names.
func (r *report) countTests(p *pkgRun) counts {
	for _, t := range slices.Backward(p.order) { // subtests come after their parents
		if t.state == failed || !t.ended() {
			t.broken = true
		}
		if t.broken && t.parent != nil {
			t.parent.broken = true
		}
	}
	brokenBelow := map[*testRun]bool{}
	for _, t := range p.order {
		if t.broken && t.parent != nil {
			brokenBelow[t.parent] = true
		}
	}
	var c counts
	for _, t := range p.order {
		res := result{group: r.cur.name, pkg: p.name, test: t.name, elapsed: t.elapsed}
		switch {
		case t.state == skipped:
			c.skipped++
			why := skipReason(t.output.String())
			r.skips[why] = append(r.skips[why], res)
			continue
		case brokenBelow[t]: // counted there
			continue
		case !t.ended():
			c.failed++
			res.what = "never ended"
			if t.state == paused {
				res.what = "never ended: was waiting for its turn"
			}
			r.failures = append(r.failures, res)
		case t.state == failed:
			c.failed++
			r.failures = append(r.failures, res)
		case t.subtests: // a container that passed
			continue
		default:
			c.passed++
		}
		r.noteSlow(res)
	}
	return c
}

func (r *report) printFailure(p *pkgRun, e event) {
	if out := r.cur.builds[e.FailedBuild]; out != nil {
		r.printf("%s", out.String())
		delete(r.cur.builds, e.FailedBuild)
	}
	for _, t := range p.order {
		if t.broken || t.state == passed {
			r.printf("%s", t.output.String())
		}
	}
	r.printf("%s", p.output.String())
}

// skipReason is the last thing a skipped test logged, as one line: t.Skip logs its reason and ends the test.
func skipReason(output string) string {
	var reason []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		switch text, ok := logText(line); {
		case ok:
			reason = []string{text}
		case strings.HasPrefix(strings.TrimSpace(line), "--- SKIP"):
		case reason != nil && strings.HasPrefix(line, "        "):
			reason = append(reason, strings.TrimSpace(line))
		}
	}
	return cmp.Or(strings.TrimSpace(strings.Join(reason, " ")), "no reason given")
}

// logText returns the text of a line that t.Log wrote: "    file_test.go:12: text".
func logText(line string) (string, bool) {
	file, rest, ok := strings.Cut(strings.TrimLeft(line, " "), ".go:")
	if !ok || !strings.HasPrefix(line, "    ") || strings.ContainsAny(file, " \t") {
		return "", false
	}
	number, text, ok := strings.Cut(rest, ": ")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return "", false
	}
	return text, true
}

// noteSlow keeps a bounded list of the slowest tests.
func (r *report) noteSlow(res result) {
	const keep = 64
	r.slow = append(r.slow, res)
	if len(r.slow) > 4*keep {
		r.sortSlow()
		r.slow = r.slow[:keep]
	}
}

func (r *report) sortSlow() {
	slices.SortStableFunc(r.slow, func(a, b result) int { return cmp.Compare(b.elapsed, a.elapsed) })
}

// beat names what is running when nothing was printed for a while.
func (r *report) beat(after time.Duration) {
	now := r.now()
	if now.Sub(r.lastPrint) < after {
		return
	}
	var names []string
	for _, p := range slices.SortedFunc(maps.Values(r.cur.pkgs), func(a, b *pkgRun) int { return cmp.Compare(a.name, b.name) }) {
		parents := map[*testRun]bool{}
		for _, t := range p.order {
			if !t.ended() && t.parent != nil {
				parents[t.parent] = true
			}
		}
		before := len(names)
		for _, t := range p.order {
			if t.state == running && !parents[t] {
				names = append(names, fmt.Sprintf("%s %s (%s)", p.name, t.name, seconds(now.Sub(t.since))))
			}
		}
		if len(names) == before {
			names = append(names, fmt.Sprintf("%s (%s)", p.name, seconds(now.Sub(p.started))))
		}
	}
	const most = 4
	switch {
	case len(names) == 0:
		names = []string{"building"}
	case len(names) > most:
		names = append(names[:most], fmt.Sprintf("%d more", len(names)-most))
	}
	whose := ""
	if r.beside {
		whose = r.cur.name + " "
	}
	r.note("%s: %sstill running: %s", seconds(now.Sub(r.begun)), whose, strings.Join(names, ", "))
}

// ok reports whether tests ran and none failed.
func (r *report) ok() bool {
	ran := false
	for _, g := range r.groups {
		if g.failed > 0 || g.problem != "" {
			return false
		}
		ran = ran || g.ran
	}
	return ran
}

// summary prints everything that is worth knowing at the end and returns the total.
func (r *report) summary(slowest int) counts {
	r.printf("\n")
	var total counts
	for _, g := range r.groups {
		total.add(g.counts)
		line := fmt.Sprintf("%s; packages: %d", g.counts, g.packages)
		if g.untested > 0 {
			line += fmt.Sprintf(" and %d without tests", g.untested)
		}
		if g.skipReason != "" {
			line = "skipped: " + g.skipReason
		}
		if g.problem != "" {
			line += "; " + g.problem
		}
		r.printf("%s: %s; %s\n", g.name, line, seconds(g.took))
	}
	r.sortSlow()
	for i, t := range r.slow {
		if i == slowest || t.elapsed < 100*time.Millisecond {
			break
		}
		if i == 0 {
			r.printf("\nSlowest:\n")
		}
		r.printf("  %8s  %s%s\n", seconds(t.elapsed), t, r.in(t))
	}
	if len(r.skips) > 0 {
		r.printf("\nSkipped, by reason:\n")
		reasons := slices.SortedFunc(maps.Keys(r.skips), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(r.skips[b]), len(r.skips[a])), cmp.Compare(a, b))
		})
		for _, why := range reasons {
			r.printf("  %4d  %s\n        %s\n", len(r.skips[why]), why, r.names(r.skips[why], 3))
		}
	}
	if len(r.failures) > 0 {
		r.printf("\nFailed:\n")
		for _, f := range r.failures {
			what := ""
			if f.what != "" {
				what = ": " + f.what
			}
			r.printf("  %s%s%s\n", cmp.Or(f.String(), "go test"), r.in(f), what)
		}
	}
	if total.passed+total.failed == 0 {
		r.printf("\nNo test ran.\n")
	}
	r.printf("\nTotal time %s\n", seconds(r.now().Sub(r.begun)))
	r.printf("%s\n", total)
	return total
}

// in says which group a result comes from, when there is more than one.
func (r *report) in(res result) string {
	if len(r.groups) < 2 || res.group == "" {
		return ""
	}
	return " [" + res.group + "]"
}

func (r *report) names(results []result, most int) string {
	var names []string
	for _, res := range results {
		if name := res.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
}

func seconds(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
