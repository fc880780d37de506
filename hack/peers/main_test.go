//go:build linux

package main

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestWrongUseIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--runs", "0"}, {"--runs", "x"}, {"--cpus", "1"}, {"--cpus", "1,1"}, {"--cpus", "a,b"},
		{"--timeout", "-1s"}, {"--nonsense"}, {"file"},
	} {
		if _, err := parse(args); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("%v: got %v, want an error", args, err)
		}
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: got %v, want flag.ErrHelp", err)
	}
}

func TestUsageNamesEveryFlag(t *testing.T) {
	for _, name := range []string{"runs", "quick", "peers-only", "bin", "cpus", "json", "timeout", "mirror", "dry-run"} {
		if !strings.Contains(usage, "--"+name) {
			t.Errorf("--%s is not in the usage", name)
		}
	}
}

func TestTwoCoresAvoidThreadsOfOne(t *testing.T) {
	threads := func(cpu int) []int { return []int{cpu &^ 1, cpu | 1} }
	alone := func(cpu int) []int { return []int{cpu} }
	for _, c := range []struct {
		allowed  []int
		siblings func(int) []int
		want     cpus
	}{
		{[]int{0, 1}, alone, cpus{0, 1}},
		{[]int{0, 1, 2, 3}, threads, cpus{0, 2}},
		{[]int{4, 5}, threads, cpus{4, 5}}, // no choice
	} {
		if got, err := twoCores(c.allowed, c.siblings); err != nil || got != c.want {
			t.Errorf("%v: got %v, %v, want %v", c.allowed, got, err, c.want)
		}
	}
	if _, err := twoCores([]int{0}, alone); err == nil {
		t.Error("one CPU: want an error")
	}
}

func TestExpandCPULists(t *testing.T) {
	for in, want := range map[string][]int{
		"0-2,5": {0, 1, 2, 5}, "3": {3}, "": nil, "x": nil, "1-": nil,
	} {
		if got := expand(in); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}

func TestListenerIsFoundByPortAndState(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:3419 00000000:0000 0A 00000000:00000000
   1: 0100007F:B9E8 0100007F:3419 01 00000000:00000000
`
	for port, want := range map[int]bool{ucxPort: true, libfabricPort: false, 80: false} {
		if got := hasListener(table, port); got != want {
			t.Errorf("port %d: got %v, want %v", port, got, want)
		}
	}
}

func TestReasonIsTheLastLineThatSaysSomething(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb\n\n":        "b",
		"error\n------\n": "error",
		"":                "it printed nothing",
		"* boxed *\n***":  "boxed",
	} {
		var l tail
		l.Write([]byte(in))
		if got := l.last(); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestSteadyWithinAQuarter(t *testing.T) {
	for _, c := range []struct {
		lines []float64
		want  bool
	}{
		{[]float64{100, 120}, true},
		{[]float64{100, 126}, false},
		{[]float64{100, 50, 100}, false},
		{[]float64{0, 0}, false},
	} {
		if got := steady(c.lines); got != c.want {
			t.Errorf("%v: got %v, want %v", c.lines, got, c.want)
		}
	}
}

// The page that explains the run must name what is run.
func TestReadmeNamesEveryPeer(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range plan(cpus{0, 1}, 1) {
		for _, p := range q.peers {
			if !strings.Contains(string(b), "| "+p.name+" |") {
				t.Errorf("README.md has no row for %s", p.name)
			}
			for _, arg := range p.argv[:2] {
				if !strings.Contains(string(b), arg) {
					t.Errorf("README.md does not show %q of %s", arg, p.name)
				}
			}
		}
	}
}
