//go:build linux

package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Recorder times batches. A clock read costs 25 to 50 ns, a third of the fastest operation measured here. A sample is
// therefore the average of a batch that takes about sampleTime; slow operations are timed one by one.
type Recorder struct {
	batch int
	ops   int64 // latencies are divided by it: 2 for a round trip halved
	hist  *hdrhistogram.Histogram
	Total time.Duration
	n     int64
}

const (
	sampleTime = 10 * time.Microsecond
	maxBatch   = 64
	maxSample  = int64(100 * time.Second / time.Nanosecond * 1000) // picoseconds
)

// NewRecorder makes a Recorder for operations of unknown length.
func NewRecorder() *Recorder {
	return &Recorder{batch: 1, ops: 1, hist: hdrhistogram.New(1, maxSample, 3)}
}

// Reset prepares for a round of operations that take about op each.
func (r *Recorder) Reset(op time.Duration, half bool) {
	r.hist.Reset()
	r.Total, r.n, r.ops = 0, 0, 1
	if half {
		r.ops = 2
	}
	r.batch = batchFor(op)
}

func batchFor(op time.Duration) int {
	if op <= 0 {
		return 1
	}
	return int(min(maxBatch, max(1, sampleTime/op)))
}

// Add records a batch of n operations that took d together.
func (r *Recorder) Add(d time.Duration, n int) {
	ps := int64(d) * 1000 / (int64(n) * r.ops)
	_ = r.hist.RecordValue(min(max(ps, 1), maxSample))
	r.Total += d
	r.n += int64(n)
}

// Latencies are microseconds.
type Latencies struct{ P50, P99, P999, Max, Avg float64 }

// Latencies returns the figures since Reset.
func (r *Recorder) Latencies() Latencies {
	us := func(ps int64) float64 { return float64(ps) / 1e6 }
	l := Latencies{
		P50:  us(r.hist.ValueAtQuantile(50)),
		P99:  us(r.hist.ValueAtQuantile(99)),
		P999: us(r.hist.ValueAtQuantile(99.9)),
		Max:  us(r.hist.Max()),
	}
	if r.n > 0 {
		l.Avg = float64(r.Total.Nanoseconds()) / 1e3 / float64(r.n*r.ops)
	}
	return l
}
