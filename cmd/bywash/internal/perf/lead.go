package perf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
)

// Config is a run.
type Config struct {
	Drivers    []string // names, or all
	Device     string
	Options    map[string]string // of the one driver that is no socket
	SecretFile string
	Remote     string // HOST:PORT of a listener; empty: both ends here
	Tests      []Test
	Sizes      []int // nil: each test's own
	Iters      int64 // 0: as many as fit Duration
	Duration   time.Duration
	Warmup     time.Duration
	Wait, Mem  string
	Peers      int
	Ranks      int // processes of the tests of more than two; 0: DefaultRanks
	Validate   bool
	Version    string
	Self       []string // command that runs ServeChild; nil: this binary

	// Progress is called before each case with what comes, its number and
	// the total.
	Progress func(what string, i, total int)
	// Compare fills in a result's change, with --baseline.
	Compare func(*Result)

	host string
}

// run is a run under way.
type run struct {
	*Config
	ctx    context.Context
	report Reporter
	all    bool // the user took what there is
	cpus   pair
	secret []byte
	failed error
	done   int // cases measured
	i      int // cases begun
	total  int
}

// DriverNames are all that -d all measures; session is measured when it is named.
func DriverNames() []string { return append(driver.Names(), Sockets...) }

// ParseDrivers parses the argument of -d: names with commas between. An alias is replaced by the name that it stands
// for; a name that is neither registered nor a baseline is an error.
func ParseDrivers(list string) ([]string, error) {
	names := strings.Split(list, ",")
	for i, n := range names {
		names[i] = canonical(n)
		if n == "all" || n == SessionName || isSocket(names[i]) {
			continue
		}
		if _, err := driver.Lookup(n); err != nil {
			hint := ""
			if n == "tcp" {
				hint = fmt.Sprintf("; the baseline over TCP sockets is %s", sockTCP)
			}
			return nil, fmt.Errorf("no driver %q in this build (there are: %s%s)", n, strings.Join(DriverNames(), ", "), hint)
		}
	}
	return names, nil
}

// Run measures; the caller closes the reporter. The error it returns is the first that kept something from
// being measured, or a failure to report; with all drivers, those that cannot
// run here are reported and are no error.
func Run(ctx context.Context, c *Config, report Reporter) error {
	r := &run{Config: c, ctx: ctx, report: report}
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
	var err error
	if r.cpus, err = choosePair(); err != nil {
		return err
	}
	undo, err := pin(r.cpus.lead)
	if err != nil {
		return err
	}
	defer undo()
	if r.secret, err = newSessionSecret(); err != nil {
		return err
	}
	plan := c.cases()
	r.total = len(plan) * len(names)
	percent := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(percent)
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

var errNothing = errors.New("nothing was measured: none of the drivers can do what was asked for")

// unreachable is a listener that cannot be reached: no other driver will.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// measure runs the plan on a driver. Its error ends the run.
func (r *run) measure(name string, plan []Case) error {
	two, many := plan, []Case(nil)
	if name == SessionName {
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
	if errors.As(err, &unreachable{}) {
		return err
	}
	return r.miss(Missing{Driver: name, Err: err})
}

// miss reports and remembers what could not be measured.
func (r *run) miss(m Missing) error {
	if !unavailable(m.Err) || !r.all && r.failed == nil && m.Test == "" {
		r.failed = fmt.Errorf("%s", m)
		if len(r.Drivers) == 1 && !r.all {
			return r.failed
		}
	}
	if r.all && isSocket(m.Driver) && m.Test != "" && infoOf(m.Test).oneSided {
		return nil // nobody expects it of a socket
	}
	return r.report.Missing(m)
}

// attempt starts a follower, or those of so many ranks, and runs the plan with it.
func (r *run) attempt(name string, plan []Case, ranks int) error {
	req := openRequest{Driver: name, Device: r.Device, Options: r.optionsFor(name), Blocking: r.Wait == "block", Peers: r.Peers, Ranks: ranks}
	if ranks > 0 && r.Remote != "" {
		return skipf("%s is between processes of one machine", plan[0].Test)
	}
	var where *lab
	if r.needsLab(name) {
		var err error
		if where, err = r.newLab(); err != nil {
			return err
		}
		defer where.end()
	}
	if d, err := driver.Lookup(name); err == nil && r.Device == "" {
		// Say what is missing before anything is started.
		mine := where.at(0, req)
		if _, err := d.Query(driver.Hints{Device: mine.Device, Options: mine.Options}); err != nil {
			return err
		}
	}
	p, secret, err := r.follower()
	if err != nil {
		return err
	}
	defer p.close()
	if err := r.addRanks(p, ranks); err != nil {
		return err
	}
	for _, c := range plan {
		req.MaxSize = max(req.MaxSize, c.Size)
	}
	b, err := open(&setup{openRequest: where.at(0, req), secret: secret, lead: true, local: p.local, stop: p.stop, yield: r.cpus.shared && p.local})
	if err != nil {
		return err
	}
	defer b.close()
	theirs := where.at(1, req)
	if err := p.join(b, &theirs); err != nil {
		return err
	}
	if r.Peers > 0 && !isSocket(name) {
		third := where.at(2, req)
		idle, err := r.idlePeers(p, b, &third, secret)
		if err != nil {
			return err
		}
		defer idle.close()
	}
	return r.cases(name, p, b, plan)
}

func (r *run) follower() (*peer, []byte, error) {
	if r.Remote != "" {
		p, secret, err := r.dial(r.ctx, r.Remote)
		if err != nil {
			err = unreachable{err}
		}
		return p, secret, err
	}
	p, err := r.startChild(r.ctx, r.cpus.follow, r.cpus.shared, r.secret)
	return p, r.secret, err
}

// join opens and connects both ends.
func (p *peer) join(b bench, req *openRequest) error {
	if req.Ranks > 0 {
		return p.joinRanks(b, req)
	}
	answer, err := p.ctl.call(&message{Kind: kindOpen, Open: req})
	if err != nil {
		return err
	}
	p.links = answer.Links
	return p.both(&message{Kind: kindConnect, Links: b.links()}, func() error { return b.connect(answer.Links) })
}

// both has the follower do something while this side does its part.
func (p *peer) both(m *message, mine func() error) error {
	if err := p.send(m); err != nil {
		return err
	}
	if err := mine(); err != nil {
		return waitError(p.stop, err)
	}
	_, err := p.recv()
	return err
}

// idlePeers starts a third process with connections to both ends.
func (r *run) idlePeers(p *peer, b bench, req *openRequest, secret []byte) (*peer, error) {
	if r.Remote != "" {
		return nil, skipf("--peers is for both ends on one machine")
	}
	idle, err := r.startChild(p.stop.ctx, -1, false, secret)
	if err != nil {
		return nil, err
	}
	ends := []string{b.links()[0], p.links[0]}
	for left := r.Peers; left > 0; left -= 32 {
		answer, err := idle.ctl.call(&message{Kind: kindPeers, Open: req, Links: ends, N: int64(min(left, 32))})
		if err == nil {
			err = p.both(&message{Kind: kindIdle, Links: answer.Links}, func() error {
				return idle.both(&message{Kind: kindSettle}, func() error { return b.idle(answer.Links) })
			})
		}
		if err != nil {
			idle.close()
			return nil, err
		}
	}
	return idle, nil
}

// cases runs the plan; a case that this driver cannot do is reported.
func (r *run) cases(name string, p *peer, b bench, plan []Case) error {
	for i := range plan {
		c := &plan[i]
		if r.Progress != nil {
			r.Progress(fmt.Sprintf("%s %s %s", name, c.Test, FormatSize(c.Size)), r.i, r.total)
		}
		r.i++
		err := b.check(c)
		if err == nil {
			err = r.one(name, p, b, c)
		}
		if err == nil {
			continue
		}
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if !unavailable(err) || p.stop.err() != nil {
			return fmt.Errorf("%s %s: %w", c.Test, FormatSize(c.Size), waitError(p.stop, err))
		}
		if err := r.miss(Missing{Driver: name, Test: c.Test, Size: c.Size, Err: err}); err != nil {
			return err
		}
	}
	_, err := p.call(&message{Kind: kindClose})
	return err
}

// one runs a case: rounds that double until the warm-up is over, then the one
// that counts.
func (r *run) one(name string, p *peer, b bench, c *Case) error {
	blob, err := b.prepare(c)
	if err == nil {
		var answer *message
		if answer, err = p.call(&message{Kind: kindPrepare, Case: c}); err == nil {
			if len(answer.Blob) > 0 {
				err = b.start(answer.Blob)
			}
			if err == nil {
				err = r.rounds(name, p, b, c, blob)
			}
			if err == nil {
				_, err = p.call(&message{Kind: kindFinish})
			}
		}
	}
	if err != nil && !unavailable(err) {
		// Packets may still be posted in the case's memory: closing the
		// bench ends them before it frees that.
		return err
	}
	return errors.Join(err, b.finish())
}

func (r *run) rounds(name string, p *peer, b bench, c *Case, blob []byte) error {
	rec := newRecorder()
	half := infoOf(c.Test).half
	var op time.Duration
	n := int64(4)
	if c.Test == Connect {
		n = 1
	}
	if r.Iters > 0 {
		n = min(n, r.Iters)
	}
	for spent := time.Duration(0); ; {
		rec.reset(op, half)
		j := r.job(p, c, int(n), rec)
		if err := p.round(b, j, blob); err != nil {
			return err
		}
		blob = nil
		took := max(j.elapsed, rec.total, 1)
		spent += took
		op = took / time.Duration(n)
		if spent >= r.Warmup {
			break
		}
		n = min(n*2, max(1, int64((r.Warmup-spent)/max(op, 1))+1))
	}
	rec.reset(op, half)
	before := cpuTime()
	j, cpu, err := r.counted(p, b, c, rec, op)
	if err != nil {
		return err
	}
	cpu += cpuTime() - before
	res := r.result(name, c, j, b.path(), cpu)
	if r.Compare != nil {
		r.Compare(res)
	}
	r.done++
	return r.report.Result(res)
}

// counted runs the rounds that count, and returns their sum and the
// follower's CPU time. There are a few, each of a length that the one before
// suggests: on a busy machine one long round could take many times what was
// asked for.
func (r *run) counted(p *peer, b bench, c *Case, rec *recorder, op time.Duration) (*job, time.Duration, error) {
	sum := r.job(p, c, 0, rec)
	var cpu, last time.Duration
	for {
		n := r.Iters
		if n == 0 {
			n = max(1, int64(min(r.Duration/5, r.Duration-max(sum.elapsed, rec.total))/max(op, 1)))
		}
		j := r.job(p, c, int(n), rec)
		if err := p.round(b, j, nil); err != nil {
			return nil, 0, err
		}
		usage, err := p.call(&message{Kind: kindUsage})
		if err != nil {
			return nil, 0, err
		}
		sum.n += j.n
		sum.elapsed += j.elapsed
		cpu += time.Duration(usage.CPUNs)
		spent := max(sum.elapsed, rec.total)
		op, last = max(1, (spent-last)/time.Duration(n)), spent
		if r.Iters > 0 || spent+op/2 >= r.Duration {
			return sum, cpu, nil
		}
	}
}

func (r *run) job(p *peer, c *Case, n int, rec *recorder) *job {
	return &job{Case: *c, n: n, lead: true, yield: r.cpus.shared && p.local, stop: p.stop, rec: rec,
		inspect: func(seq uint64, n int) error {
			_, err := p.ctl.call(&message{Kind: kindInspect, Seq: seq, N: int64(n)})
			return err
		}}
}

// round runs n iterations on both ends.
func (p *peer) round(b bench, j *job, blob []byte) error {
	ready, err := p.call(&message{Kind: kindRun, N: int64(j.n), Blob: blob})
	if err != nil {
		return err
	}
	if ready.Kind != kindReady {
		return errOrder
	}
	passive := infoOf(j.Test).oneSided && j.Test != PutLat
	if passive {
		if _, err := p.recv(); err != nil {
			return err
		}
	}
	if err := b.run(j); err != nil {
		return waitError(p.stop, err)
	}
	if !passive {
		_, err = p.recv()
	}
	return err
}
