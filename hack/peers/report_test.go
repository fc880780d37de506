//go:build linux

package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func of(name string, runs ...float64) series {
	s := series{Name: name}
	for _, v := range runs {
		s.add(v)
	}
	return s
}

func TestMedianLeavesMissingRunsOut(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{0, 0}, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 0, 2}, 3},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v): got %v, want %v", c.in, got, c.want)
		}
	}
}

func TestRatioComparesWithinARun(t *testing.T) {
	// The machine is three times slower in the second run, for both.
	if got := ratio(of("a", 100, 300, 100), of("b", 200, 600, 200)); got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
	// A run without one of the two does not count.
	if got := ratio(of("a", 100, 0, 100), of("b", 50, 1, 50)); got != 2 {
		t.Errorf("got %v, want 2", got)
	}
	if got := ratio(of("a"), of("b", 1)); got != 0 {
		t.Errorf("got %v, want 0", got)
	}
}

func TestTargetsAndBestPeer(t *testing.T) {
	lat := func(tg *target) quantity {
		return quantity{test: "lat", size: 8, unit: nanoseconds, limit: limitLine, variants: []variant{{"q", "arena", tg}}}
	}
	bw := func(tg *target) quantity {
		return quantity{test: "bw", size: 1 << 20, unit: megabytes, limit: limitMemcpy, variants: []variant{{"q", "arena", tg}}}
	}
	line, memcpy := of(limitLine, 100), of(limitMemcpy, 30e3)
	for name, c := range map[string]struct {
		q       quantity
		ours    series
		peers   []series
		limit   *series
		best    string
		ratio   float64
		reached float64
		result  string
	}{
		"lowest latency is best":    {lat(&target{0.8, refBest}), of("ours", 80), []series{of("x", 200), of("y", 100)}, &line, "y", 0.8, 0.8, "met"},
		"latency above its limit":   {lat(&target{1.3, limitLine}), of("ours", 140), []series{of("x", 200)}, &line, "x", 0.7, 1.4, "missed"},
		"highest bandwidth is best": {bw(&target{1.5, limitMemcpy}), of("ours", 48e3), []series{of("x", 20e3), of("y", 24e3)}, &memcpy, "y", 2, 1.6, "met"},
		"bandwidth below":           {bw(&target{2, "x"}), of("ours", 30e3), []series{of("x", 20e3), of("y", 40e3)}, &memcpy, "y", 0.75, 1.5, "missed"},
		"absolute":                  {bw(&target{50e3, refAbsolute}), of("ours", 50e3), []series{of("x", 25e3)}, nil, "x", 2, 50e3, "met"},
		"no peer ran":               {lat(&target{0.8, refBest}), of("ours", 80), []series{of("x")}, &line, "", 0, 0, "unknown"},
		"named peer did not run":    {bw(&target{2, "x"}), of("ours", 80), []series{of("x"), of("y", 40)}, &memcpy, "y", 2, 0, "unknown"},
		"ours did not run":          {lat(&target{1.3, limitLine}), of("ours"), []series{of("x", 200)}, &line, "x", 0, 0, "unknown"},
	} {
		r := newRow(c.q, c.q.variants[0], c.ours, c.peers, c.limit, 0, machine{})
		if r.Best != c.best || math.Abs(r.Ratio-c.ratio) > 1e-9 || math.Abs(r.Target.Reached-c.reached) > 1e-9 || r.Target.Result != c.result {
			t.Errorf("%s: got best %q ratio %v reached %v %s, want %q %v %v %s",
				name, r.Best, r.Ratio, r.Target.Reached, r.Target.Result, c.best, c.ratio, c.reached, c.result)
		}
	}
}

func sample() []row {
	m := machine{CPU: "cpu", CPUs: 2, Pinned: cpus{0, 1}, Kernel: "6", Time: "now", Runs: 2,
		Versions: map[string]string{"UCX": "1.18", "MPICH": missing}}
	q := quantity{test: "lat", size: 8, unit: nanoseconds, limit: limitLine,
		variants: []variant{{"8 B", "arena", &target{1.3, limitLine}}}}
	q2 := q
	q2.variants = []variant{{"64 B", "arena", nil}}
	line := of(limitLine, 100, 100)
	broken := series{Name: "MPICH", Reason: "cannot be installed"}
	half := of("UCX", 200, 0)
	half.Reason = "timed out"
	return []row{
		newRow(q, q.variants[0], of("ours", 120, 120), []series{of("UCX", 200, 240), broken}, &line, 1, m),
		newRow(q2, q2.variants[0], of("ours", 120, 120), []series{half, broken}, nil, 0, m),
	}
}

func TestTextNamesEveryGap(t *testing.T) {
	var b strings.Builder
	writeText(&b, sample())
	got := b.String()
	for _, want := range []string{
		"cpu, 2 CPUs, Linux 6; processes on CPU 0 and 1; now",
		"8 B        120        220  UCX     0.55 ×    100  ≤ 1.3 × cache line   1.20 ×  met",
		"  MPICH: cannot be installed\n",
		"  UCX, 64 B (1 of 2 runs measured): timed out\n",
		"  libfabric bandwidth",
		"  8 B: the cache-line time changed by more than 25 % within 1 of 2 runs",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant a line with %q", got, want)
		}
	}
}

func TestJSONIsOneObjectALine(t *testing.T) {
	var b strings.Builder
	if err := writeJSON(&b, sample()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want 2", len(lines))
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &r); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"quantity", "test", "size", "mem", "unit", "better", "ours", "peers", "limit", "unsteady_runs", "best", "ratio", "target", "machine"} {
		if _, ok := r[key]; !ok {
			t.Errorf("no %q in %s", key, lines[0])
		}
	}
}
