//go:build linux

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/report"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/descriptors"
)

// Config configures a run.
type Config struct {
	Drivers    []string // names, or all
	Device     string
	Options    map[string]string // of the one driver that is no socket
	SecretFile string
	Remote     string // HOST:PORT of a listener; empty: both ends here
	Tests      []bench.Test
	Sizes      []int // nil: each test's own
	Iters      int64 // 0: as many as fit Duration
	Duration   time.Duration
	Warmup     time.Duration
	Wait, Mem  string
	Unbound    bool // do not pin the processes, and let each use all CPUs
	Peers      int
	Ranks      int // processes of the tests of more than two; 0: DefaultRanks
	Goroutines int // that send the messages of am-rate; 0: one
	Validate   bool
	Version    string
	self       []string // command that runs ServeChild; nil: this binary

	// Progress is called before each case with its description, its number and the total.
	Progress func(what string, i, total int)
	// Notes takes lines for the user, as that a listener serves another lead.
	Notes io.Writer
	// Compare fills in a result's change, with --baseline.
	Compare func(*report.Result)

	host string
}

// run is a run under way.
type run struct {
	*Config
	ctx    context.Context
	report report.Reporter
	all    bool   // the user asked for all drivers
	name   string // of the driver at hand, as the report has it
	cpus   pair
	failed error
	done   int // cases measured
	i      int // cases begun
	total  int
}

// DriverNames are all that -d all measures; session, copy-ring and copy-cma are measured when they are named.
func DriverNames() []string { return append(driver.Names(), bench.Sockets...) }

// ParseDrivers parses the argument of -d: names with commas between. A name that is neither registered nor a baseline is
// an error.
func ParseDrivers(list string) ([]string, error) {
	names := strings.Split(list, ",")
	for _, n := range names {
		base := bench.Base(n)
		if base != n && !slices.Contains(onVeth, base) {
			return nil, fmt.Errorf("%s: %s is for %s", n, bench.OnVeth, strings.Join(onVeth, ", "))
		}
		if n == "all" || n == bench.Session || bench.IsBaseline(n) {
			continue
		}
		if _, err := driver.Lookup(base); err != nil {
			return nil, fmt.Errorf("no driver %q in this build (there are: %s)", n, strings.Join(DriverNames(), ", "))
		}
	}
	return names, nil
}

// Run measures; the caller closes the reporter. The error it returns is the first that kept something from
// being measured, or a failure to report; with all drivers, those that cannot
// run here are reported and are no error.
func Run(ctx context.Context, c *Config, rep report.Reporter) error {
	r := &run{Config: c, ctx: ctx, report: rep}
	c.host, _ = os.Hostname()
	names := []string{}
	for _, n := range c.Drivers {
		if n == "all" {
			r.all = true
			names = append(names, DriverNames()...)
			continue
		}
		names = append(names, n)
	}
	names = distinct(c.beside(names, r.all))
	var err error
	if r.cpus, err = choosePair(); err != nil {
		return err
	}
	if !c.Unbound {
		undo, err := pin(r.cpus.lead)
		if err != nil {
			return err
		}
		defer undo()
	}
	plan := c.cases()
	r.total = len(plan) * len(names)
	for k, n := range names {
		r.i = k * len(plan)
		if err := r.measure(n, plan); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if r.failed == nil && r.done == 0 {
		return errNothing
	}
	return r.failed
}

// distinct returns each name once.
func distinct(names []string) (list []string) {
	for _, n := range names {
		if !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

var errNothing = errors.New("nothing was measured: none of the drivers can do what was asked for")

// unreachable means that the listener cannot be reached, also for other drivers.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// measure runs the plan on a driver. Its error ends the run.
func (r *run) measure(name string, plan []bench.Case) error {
	r.name = name
	two, many := plan, []bench.Case(nil)
	if name == bench.Session {
		two, many = split(plan)
	}
	var err error
	if len(two) > 0 {
		err = r.attempt(name, two, 0)
	}
	if err == nil && len(many) > 0 {
		err = r.attempt(name, many, r.ranks())
	}
	if err == nil {
		return nil
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if errors.As(err, new(unreachable)) {
		return err
	}
	return r.miss(report.Missing{Driver: name, Err: err})
}

// miss reports and records a case that could not be measured.
func (r *run) miss(m report.Missing) error {
	if !bench.Unavailable(m.Err) || !r.all && m.Test == "" {
		r.failed = cmp.Or(r.failed, fmt.Errorf("%s%s", m, descriptors.Remedy(m.Err)))
		if len(r.Drivers) == 1 && !r.all {
			return r.failed
		}
	}
	if r.all && bench.IsBaseline(m.Driver) && m.Test != "" && bench.InfoOf(m.Test).OneSided {
		return nil // sockets never have it, and every table would contain that note
	}
	return r.report.Missing(m)
}

// attempt starts the ranks of a measurement and runs the plan with them.
func (r *run) attempt(name string, cases []bench.Case, ranks int) error {
	if ranks > 0 && r.Remote != "" {
		for k, c := range cases {
			if k > 0 && cases[k-1].Test == c.Test {
				continue
			}
			skip := bench.Skipf("it is between processes of one machine")
			if err := r.miss(report.Missing{Driver: name, Test: c.Test, Err: skip}); err != nil {
				return err
			}
		}
		return nil
	}
	p := &bench.Plan{
		Driver: bench.Base(name), Device: r.Device, Options: r.optionsFor(name), Ranks: ranks,
		Yield: r.cpus.shared, Unbound: r.Unbound,
	}
	if !bench.IsBaseline(name) && name != bench.Session {
		p.Peers = r.Peers
	}
	if r.needsLab(name) {
		where, err := r.newLab(bench.Base(name))
		if err != nil {
			return err
		}
		defer where.close()
		p.Places = where.places[:]
	}
	if d, err := driver.Lookup(p.Driver); err == nil && r.Device == "" {
		// Report what is missing before anything is started.
		mine := p.At(0)
		if _, err := d.Query(driver.Hints{Device: mine.Device, Options: mine.Options}); err != nil {
			return err
		}
	}
	for rank := range p.Size() {
		if !r.Unbound {
			p.CPUs = append(p.CPUs, r.cpus.of(rank))
		}
	}
	g, err := r.gather(p.Size())
	if err != nil {
		return err
	}
	defer g.close()
	return g.explain(r.lead(g.team, p, cases))
}

// lead runs the lead's part.
func (r *run) lead(t *team, p *bench.Plan, cases []bench.Case) error {
	_, local, err := t.exchangeHello(r.Version, p)
	if err != nil {
		return err
	}
	s := &bench.Setup{Plan: p.At(0), Lead: true, Local: local, Peer: r.Remote, Stop: t.stop, Job: t.job}
	s.Yield = p.Yield && local
	e := &end{team: t, setup: s, run: r}
	return e.measure(func() error { return e.leadCases(cases) })
}

// leadCases runs the plan, and reports the cases that this driver cannot run.
func (e *end) leadCases(cases []bench.Case) error {
	r, name := e.run, e.run.name
	for i := range cases {
		c := &cases[i]
		if r.Progress != nil {
			r.Progress(fmt.Sprintf("%s %s %s", name, c.Test, bench.FormatSize(c.Size)), r.i, r.total)
		}
		r.i++
		err := e.order(c, nil)
		if err == nil {
			err = e.one(c)
		}
		if err == nil {
			continue
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if e.fatal(err) {
			return fmt.Errorf("%s %s: %w", c.Test, bench.FormatSize(c.Size), e.stop.Why(err))
		}
		if err := r.miss(report.Missing{Driver: name, Test: c.Test, Size: c.Size, Err: err}); err != nil {
			return err
		}
	}
	return e.order(nil, nil)
}

// leadRounds runs the rounds of a case: ones that double until the warm-up is over, then those that count.
func (e *end) leadRounds(c *bench.Case) error {
	quiet()
	r, rec := e.run, bench.NewRecorder()
	op, err := e.warmUp(c, rec)
	if err != nil {
		return err
	}
	rec.Reset(op, bench.InfoOf(c.Test).Half)
	j, cpu, err := e.counted(c, rec, op)
	if err != nil {
		return err
	}
	if err := e.order(int64(0), nil); err != nil {
		return err
	}
	res := report.New(r.name, j, e.b.Path(), cpu)
	res.Host, res.Version = r.host, r.Version
	if r.Unbound {
		res.Bind = "none"
	}
	if r.Compare != nil {
		r.Compare(res)
	}
	r.done++
	return r.report.Result(res)
}

// warmUp returns how long an operation takes.
func (e *end) warmUp(c *bench.Case, rec *bench.Recorder) (op time.Duration, err error) {
	r, n := e.run, int64(4)
	if c.Test == bench.Connect {
		n = 1
	}
	if r.Iters > 0 {
		n = min(n, r.Iters)
	}
	for spent := time.Duration(0); ; {
		rec.Reset(op, bench.InfoOf(c.Test).Half)
		j, _, err := e.leadRound(c, rec, n)
		if err != nil {
			return 0, err
		}
		took := max(j.Elapsed, rec.Total, 1)
		spent += took
		op = took / time.Duration(n)
		if spent >= r.Warmup {
			return op, nil
		}
		n = min(n*2, max(1, int64((r.Warmup-spent)/max(op, 1))+1))
	}
}

// counted runs the rounds that count, and returns their sum and the CPU time of all ranks. There are a few, each of a
// length that the one before suggests: on a busy machine one long round could take many times what was asked for.
func (e *end) counted(c *bench.Case, rec *bench.Recorder, op time.Duration) (*bench.Round, time.Duration, error) {
	var cpu time.Duration
	r, last := e.run, time.Duration(0)
	sum := &bench.Round{Case: *c, Rec: rec}
	for {
		n := r.Iters
		if n == 0 {
			n = max(1, int64(min(r.Duration/5, r.Duration-max(sum.Elapsed, rec.Total))/max(op, 1)))
		}
		j, used, err := e.leadRound(c, rec, n)
		if err != nil {
			return nil, 0, err
		}
		sum.N += j.N
		sum.Elapsed += j.Elapsed
		cpu += used
		spent := max(sum.Elapsed, rec.Total)
		op, last = max(1, (spent-last)/time.Duration(n)), spent
		if r.Iters > 0 || spent+op/2 >= r.Duration {
			return sum, cpu, nil
		}
	}
}

func (e *end) leadRound(c *bench.Case, rec *bench.Recorder, n int64) (*bench.Round, time.Duration, error) {
	j := &bench.Round{Case: *c, N: int(n), Lead: true, Yield: e.setup.Yield, Stop: e.stop, Rec: rec, Inspect: e.inspect}
	if err := e.order(n, nil); err != nil {
		return nil, 0, err
	}
	cpu, err := e.round(j)
	return j, cpu, err
}
