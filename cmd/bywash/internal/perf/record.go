package perf

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recorder times batches. A clock read costs 25 to 50 ns, a third of the
// fastest operation measured here, so a sample is the average of a batch that
// takes sampleTime or so; slow operations are timed one by one.
type recorder struct {
	batch int
	ops   int64 // latencies are divided by it: 2 for a round trip halved
	hist  *hdrhistogram.Histogram
	total time.Duration
	n     int64
}

const (
	sampleTime = 10 * time.Microsecond
	maxBatch   = 64
	maxSample  = int64(100 * time.Second / time.Nanosecond * 1000) // picoseconds
)

func newRecorder() *recorder {
	return &recorder{batch: 1, ops: 1, hist: hdrhistogram.New(1, maxSample, 3)}
}

// reset prepares for a round of operations that take about op each.
func (r *recorder) reset(op time.Duration, half bool) {
	r.hist.Reset()
	r.total, r.n, r.ops = 0, 0, 1
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

// add records a batch of n operations that took d together.
func (r *recorder) add(d time.Duration, n int) {
	ps := int64(d) * 1000 / (int64(n) * r.ops)
	_ = r.hist.RecordValue(min(max(ps, 1), maxSample))
	r.total += d
	r.n += int64(n)
}

// latencies are microseconds.
type latencies struct{ p50, p99, p999, max, avg float64 }

func (r *recorder) latencies() latencies {
	us := func(ps int64) float64 { return float64(ps) / 1e6 }
	l := latencies{
		p50:  us(r.hist.ValueAtQuantile(50)),
		p99:  us(r.hist.ValueAtQuantile(99)),
		p999: us(r.hist.ValueAtQuantile(99.9)),
		max:  us(r.hist.Max()),
	}
	if r.n > 0 {
		l.avg = float64(r.total.Nanoseconds()) / 1e3 / float64(r.n*r.ops)
	}
	return l
}
