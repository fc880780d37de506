//go:build linux

package report

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// Result is one measurement. Its JSON is a stable interface; fields that a test does not measure are null.
type Result struct {
	Driver       string   `json:"driver"`
	Test         string   `json:"test"`
	Size         int      `json:"size"`
	Iters        int64    `json:"iters"`
	LatP50       *float64 `json:"lat_us_p50"`
	LatP99       *float64 `json:"lat_us_p99"`
	LatP999      *float64 `json:"lat_us_p999"`
	LatMax       *float64 `json:"lat_us_max"`
	LatAvg       *float64 `json:"lat_us_avg"`
	MBPerS       *float64 `json:"mb_per_s"`
	MsgPerS      *float64 `json:"msg_per_s"`
	CPUNsPerByte *float64 `json:"cpu_ns_per_byte"`
	Path         string   `json:"path"`
	Mem          string   `json:"mem"`
	Wait         string   `json:"wait"`
	Host         string   `json:"host"`
	Time         string   `json:"time"`
	Version      string   `json:"version"`

	// Ranks is how many processes took part, in tests of more than two.
	Ranks int `json:"ranks,omitempty"`

	// Of the command line; absent without the flag.
	Validate   bool `json:"validate,omitempty"`
	Peers      int  `json:"peers,omitempty"`
	Goroutines int  `json:"goroutines,omitempty"`

	// Bind is none where the processes were not pinned.
	Bind string `json:"bind,omitempty"`

	// Change is the change against an earlier run, in percent of its figure. It is present only with --baseline.
	Change *float64 `json:"change_percent,omitempty"`
}

// figure rounds figures to five significant digits, which are more than any measurement has.
func figure(v float64) *float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64)
	if err != nil {
		return nil
	}
	return &r
}

// Main returns the main figure of a test, and whether less is better.
func (r *Result) Main() (v float64, lower bool) {
	i := bench.InfoOf(bench.Test(r.Test))
	var p *float64
	switch {
	case i == nil:
	case i.Latency:
		p, lower = r.LatP50, true
	case i.Messages:
		p = r.MsgPerS
	default:
		p = r.MBPerS
	}
	if p == nil {
		return 0, lower
	}
	return *p, lower
}

// New makes the result of the rounds of a case whose sum is j, with the CPU time of all processes.
func New(drv string, j *bench.Round, path string, cpu time.Duration) *Result {
	cs := &j.Case
	r := &Result{
		Driver: drv, Test: string(cs.Test), Size: cs.Size, Iters: int64(j.N),
		Path: path, Mem: cs.Mem, Wait: cs.Wait, Time: time.Now().UTC().Format(time.RFC3339), Ranks: cs.Ranks,
		Validate: cs.Validate, Peers: cs.Peers, Goroutines: cs.Goroutines,
	}
	if bench.IsBaseline(drv) {
		r.Mem = "heap"
	}
	n := float64(j.N)
	bytes := n * float64(cs.Size)
	seconds := j.Elapsed.Seconds()
	if bench.InfoOf(cs.Test).Latency {
		l := j.Rec.Latencies()
		r.LatP50, r.LatP99, r.LatP999 = figure(l.P50), figure(l.P99), figure(l.P999)
		r.LatMax, r.LatAvg = figure(l.Max), figure(l.Avg)
		seconds = l.Avg * n / 1e6
		if bench.InfoOf(cs.Test).Half {
			bytes *= 2 // the message went there and back
		}
	}
	each := float64(cs.Messages())
	bytes *= each
	n *= each
	if seconds > 0 {
		r.MsgPerS = figure(n / seconds)
		if cs.Size > 0 {
			moved := bytes
			if bench.InfoOf(cs.Test).Half {
				moved /= 2
			}
			r.MBPerS = figure(moved / seconds / 1e6)
		}
	}
	if bytes > 0 && cs.Test != bench.BesideLat { // most of its CPU time is for messages that are not counted
		r.CPUNsPerByte = figure(float64(cpu.Nanoseconds()) / bytes)
	}
	return r
}

// columns are the JSON fields in order, for CSV.
var columns = strings.Fields("driver test size iters lat_us_p50 lat_us_p99 lat_us_p999 lat_us_max lat_us_avg " +
	"mb_per_s msg_per_s cpu_ns_per_byte path mem wait host time version")

func (r *Result) row(ranks, change bool) []string {
	f := func(p *float64) string {
		if p == nil {
			return ""
		}
		return strconv.FormatFloat(*p, 'f', -1, 64)
	}
	row := []string{r.Driver, r.Test, strconv.Itoa(r.Size), strconv.FormatInt(r.Iters, 10)}
	for _, p := range []*float64{r.LatP50, r.LatP99, r.LatP999, r.LatMax, r.LatAvg, r.MBPerS, r.MsgPerS, r.CPUNsPerByte} {
		row = append(row, f(p))
	}
	row = append(row, r.Path, r.Mem, r.Wait, r.Host, r.Time, r.Version)
	if ranks {
		row = append(row, strconv.Itoa(max(2, r.Ranks)))
	}
	if change {
		row = append(row, f(r.Change))
	}
	return append(row, cmp.Or(r.Bind, "core"))
}

// Reporter gets results as they come.
type Reporter interface {
	// Result is called with each result.
	Result(*Result) error
	// Missing is called for a driver, or one of its tests, that was not run.
	Missing(Missing) error
	// Close is called at the end.
	Close() error
}

// Missing is a measurement that could not be made.
type Missing struct {
	Driver string
	Test   bench.Test // empty: all
	Size   int
	Err    error
}

func (m Missing) String() string {
	if m.Test == "" {
		return m.reason()
	}
	return fmt.Sprintf("%s %s %s", m.Driver, m.Test, bench.FormatSize(m.Size)) + strings.TrimPrefix(m.reason(), m.Driver)
}

// reason is the driver's name, once, and the error.
func (m Missing) reason() string {
	return m.Driver + ": " + strings.TrimPrefix(m.Err.Error(), m.Driver+": ")
}

// notes reports missing measurements, one a line.
type notes struct{ to io.Writer }

func (n notes) Missing(m Missing) error {
	_, err := fmt.Fprintf(n.to, "bywash: %s\n", m)
	return err
}

func (notes) Close() error { return nil }

type jsonReporter struct {
	notes
	enc *json.Encoder
}

// NewJSON returns a Reporter that writes one object a line to w, and missing measurements to info.
func NewJSON(w, info io.Writer) Reporter { return &jsonReporter{notes{info}, json.NewEncoder(w)} }

func (j *jsonReporter) Result(r *Result) error { return j.enc.Encode(r) }

type csvReporter struct {
	notes
	w      *csv.Writer
	ranks  bool
	change bool
	header bool
}

// NewCSV returns a Reporter that writes a header and one line for each result to w, and missing measurements to info.
// ranks adds a column of that name, and change one for the change against an earlier run.
func NewCSV(w, info io.Writer, ranks, change bool) Reporter {
	return &csvReporter{notes: notes{info}, w: csv.NewWriter(w), ranks: ranks, change: change}
}

func (c *csvReporter) Result(r *Result) error {
	if !c.header {
		c.header = true
		head := slices.Clone(columns)
		if c.ranks {
			head = append(head, "ranks")
		}
		if c.change {
			head = append(head, "change_percent")
		}
		head = append(head, "bind")
		if err := c.w.Write(head); err != nil {
			return err
		}
	}
	if err := c.w.Write(r.row(c.ranks, c.change)); err != nil {
		return err
	}
	c.w.Flush()
	return c.w.Error()
}

// Tee returns a Reporter that reports to both a and b.
func Tee(a, b Reporter) Reporter { return tee{a, b} }

type tee [2]Reporter

func (t tee) each(f func(Reporter) error) error {
	for _, r := range t {
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

func (t tee) Result(r *Result) error  { return t.each(func(x Reporter) error { return x.Result(r) }) }
func (t tee) Missing(m Missing) error { return t.each(func(x Reporter) error { return x.Missing(m) }) }
func (t tee) Close() error            { return errors.Join(t[0].Close(), t[1].Close()) }
