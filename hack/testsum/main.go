// Testsum prints the summary of groups of tests that hack/test has run, each through gotestsum.
//
//	testsum [-budget FILE] DIR GROUP...
//	testsum -running DIR GROUP...
//
// DIR holds three files of each group: GROUP.json is what gotestsum's --jsonfile wrote, GROUP.log what it printed, and
// GROUP.status "EXIT SECONDS USER SYSTEM [optional]", which hack/test writes when the group has ended. With -running,
// testsum names the tests that are running now. The last line of the summary is always "N passed, N failed, N skipped".
//
// Tests are counted so:
//
//   - A test without subtests counts as one, and so does a subtest. A test with subtests is a container: it counts when
//     it failed and none of its subtests did, or when it skipped itself. A package is the container of its tests.
//   - A test that began and never ended (panic, time-out, os.Exit, interrupt) has failed.
//   - A group that has not ended, that failed without a failed test, or in which no test ran counts as one failure. In an
//     optional group all tests may be skipped.
//
// The exit status is 0 when tests ran and none failed, 1 when something failed, 2 for wrong usage.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	budget := flag.String("budget", "", "hold the time of each package against this table")
	running := flag.Bool("running", false, "name the tests that are running")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: testsum [-running] [-budget FILE] DIR GROUP...")
		os.Exit(2)
	}
	var groups []*group
	for _, name := range flag.Args()[1:] {
		groups = append(groups, readGroup(flag.Arg(0), name))
	}
	if *running {
		printRunning(os.Stdout, groups, time.Now())
	} else if !printSummary(os.Stdout, groups, *budget) {
		os.Exit(1)
	}
}

// printRunning prints a line for each group that has begun and not ended.
func printRunning(w io.Writer, groups []*group, now time.Time) {
	for _, g := range groups {
		if !g.begun || g.ended {
			continue
		}
		var names []string
		for _, t := range g.tests {
			if t.running() && !slices.ContainsFunc(g.tests, func(s *test) bool { return s.parent == t && s.running() }) {
				names = append(names, fmt.Sprintf("%s (%s)", t, now.Sub(t.since).Round(time.Second)))
			}
		}
		if len(names) > 4 {
			names = append(names[:4], fmt.Sprintf("%d more", len(names)-4))
		}
		fmt.Fprintf(w, "-- %s: still running: %s\n", g.name, cmp.Or(strings.Join(names, ", "), "building"))
	}
}

// printSummary reports whether tests ran and none failed. The output of failed tests comes last, because a log that is
// cut keeps its end.
func printSummary(w io.Writer, groups []*group, budget string) bool {
	var passed, failed, skipped []*test
	fmt.Fprintln(w)
	for _, g := range groups {
		p, f, s := g.count()
		passed, failed, skipped = append(passed, p...), append(failed, f...), append(skipped, s...)
		problem := ""
		if g.problem != nil {
			problem = "; " + g.problem.why
		}
		fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped; %s, %s of CPU time%s\n",
			g.name, len(p), len(f), len(s), seconds(g.took), seconds(g.cpu), problem)
	}
	slow := slices.Concat(passed, failed)
	slices.SortStableFunc(slow, func(a, b *test) int { return cmp.Compare(b.elapsed, a.elapsed) })
	fmt.Fprintln(w, "\nSlowest:")
	for _, t := range slow[:min(len(slow), 10)] {
		if t.elapsed < 100*time.Millisecond {
			break
		}
		fmt.Fprintf(w, "  %8s  %s [%s]\n", seconds(t.elapsed), t, t.group)
	}
	printSkips(w, skipped)
	printBudget(w, groups, budget)
	for _, g := range groups {
		g.printFailures(w)
	}
	if len(failed) > 0 {
		fmt.Fprintln(w, "\nFailed:")
	}
	for _, t := range failed {
		fmt.Fprintf(w, "  %s [%s]: %s\n", t, t.group, t.verdict())
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", len(passed), len(failed), len(skipped))
	return len(passed) > 0 && len(failed) == 0
}

func printSkips(w io.Writer, skipped []*test) {
	byReason := map[string][]string{}
	if len(skipped) > 0 {
		fmt.Fprintln(w, "\nSkipped, by reason:")
	}
	for _, t := range skipped {
		why := skipReason(t.output.String())
		byReason[why] = append(byReason[why], t.String())
	}
	for _, why := range slices.SortedFunc(maps.Keys(byReason), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(byReason[b]), len(byReason[a])), cmp.Compare(a, b))
	}) {
		tests := slices.Compact(byReason[why])
		fmt.Fprintf(w, "  %4d  %s\n        %s\n", len(byReason[why]), why, strings.Join(tests[:min(len(tests), 3)], ", "))
	}
}

// printBudget adds up the time of each package in all groups and holds it against the table: lines "PACKAGE SECONDS".
func printBudget(w io.Writer, groups []*group, table string) {
	text, err := os.ReadFile(table)
	if err != nil {
		return
	}
	times, over := map[string]time.Duration{}, 0
	for _, g := range groups {
		for _, t := range g.tests {
			if t.name == "" {
				times[strings.ReplaceAll(t.pkg, "internal/", "")] += t.elapsed
			}
		}
	}
	limits := map[string]time.Duration{}
	for line := range strings.Lines(string(text)) {
		var name string
		var limit int
		if n, _ := fmt.Sscanf(line, "%s %d", &name, &limit); n == 2 {
			limits[name] = time.Duration(limit) * time.Second
		}
	}
	fmt.Fprintln(w, "\nTime of each package, all groups together, and its budget:")
	for _, name := range slices.Sorted(maps.Keys(times)) {
		limit, listed := limits[name]
		limit = cmp.Or(limit, limits["*"])
		mark := ""
		if times[name] > limit {
			mark, over = "  OVER", over+1
		} else if !listed {
			continue
		}
		fmt.Fprintf(w, "  %8s of %5s  %s%s\n", seconds(times[name]), seconds(limit), name, mark)
	}
	fmt.Fprintf(w, "  %d packages are over budget\n", over)
}

func seconds(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
