package qnixmod

import (
	"slices"
	"testing"
)

// The benchmarks measure ours and what it is compared with in turn, as the machine changes within seconds, and report medians
// and their ratio. One call is a whole measurement: they are meant for -benchtime 1x.

const rounds = 7

func beside(b *testing.B, what string, ours, theirs func(*testing.B) float64) {
	var mine, other []float64
	for range rounds {
		mine, other = append(mine, ours(b)), append(other, theirs(b))
	}
	report(b, what, mine, other)
}

// report reports the medians of figures in ns, and the slowest round, which tells of stalls.
func report(b *testing.B, what string, mine, other []float64) {
	only(b)
	b.ReportMetric(median(mine)/1000, "µs")
	b.ReportMetric(slices.Max(mine)/1000, "µs-worst-round")
	b.ReportMetric(median(other)/1000, "µs-"+what)
	b.ReportMetric(median(mine)/median(other), "×"+what)
}

// only leaves out what package testing measures.
func only(b *testing.B) { b.ReportMetric(0, "ns/op") }

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
