//go:build linux

package control

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/baseline"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/workload"
)

// end is one rank that measures a driver. All ranks run these functions at the same time. The lead's own part is in
// lead.go.
type end struct {
	*team
	setup *bench.Setup
	b     bench.Bench
	run   *run // the lead's, else nil
}

// measure opens, connects and runs the cases that the lead orders.
func (e *end) measure(cases func() error) (err error) {
	percent := debug.SetGCPercent(-1) // see quiet
	defer debug.SetGCPercent(percent)
	e.b, err = open(e.setup)
	if _, err := e.exchange(nil, err); err != nil {
		if e.b != nil {
			_ = e.b.Close()
		}
		return err
	}
	if err = e.b.Connect(e.give); err != nil {
		err = e.abort(err)
	} else {
		err = cases()
	}
	closed := e.b.Close()
	if err == nil {
		_, err = e.exchange(nil, closed)
	}
	return err
}

// follow runs cases until the lead orders none.
func (e *end) follow() error {
	for {
		var c *bench.Case
		if err := e.order(nil, &c); err != nil || c == nil {
			return err
		}
		if err := c.Check(); err != nil {
			return e.abort(fmt.Errorf("%w: %w", bench.ErrOrder, err))
		}
		if err := e.one(c); e.fatal(err) {
			return err
		}
	}
}

// fatal reports whether nothing more can be measured after err. Otherwise all ranks go on with the next case.
func (e *end) fatal(err error) bool {
	return err != nil && (!bench.Unavailable(err) || e.stop.Err() != nil)
}

// one runs a case.
func (e *end) one(c *bench.Case) error {
	err := e.b.Check(c)
	var blob []byte
	if err == nil {
		blob, err = e.b.Prepare(c)
	}
	blobs, err := e.exchange(blob, err)
	if err == nil {
		if rank := e.setup.Rank; rank < 2 && len(blobs[1-rank]) > 0 {
			err = e.b.Start(blobs[1-rank])
		}
		_, err = e.exchange(nil, err)
	}
	if err == nil && e.setup.Lead {
		err = e.leadRounds(c)
	} else if err == nil {
		err = e.followRounds(c)
	}
	if e.fatal(err) {
		// Packets may still be posted in the case's memory: closing the bench ends them before it frees that.
		return err
	}
	if ferr := e.b.Finish(); ferr != nil {
		return e.abort(ferr)
	}
	return err
}

// followRounds runs as many rounds as the lead orders.
func (e *end) followRounds(c *bench.Case) error {
	for {
		n := int64(0)
		if err := e.order(nil, &n); err != nil || n == 0 {
			return err
		}
		if n < 0 || n > bench.MaxIters {
			return e.abort(bench.ErrOrder)
		}
		if _, err := e.round(&bench.Round{Case: *c, N: int(n), Yield: e.setup.Yield, Stop: e.stop}); err != nil {
			return err
		}
	}
}

// lag is how long the lead waits after the barrier, because goroutines of the lead's process may still be releasing the
// others.
const lag = 200 * time.Microsecond

// round runs n operations in all ranks and returns the CPU time of all.
func (e *end) round(j *bench.Round) (cpu time.Duration, err error) {
	if !j.Lead {
		quiet()
	}
	if err := e.job.Barrier(e.stop.Ctx); err != nil {
		return 0, e.stop.Why(lost(err))
	}
	if j.Lead {
		time.Sleep(lag)
	}
	begin := cpuTime()
	if err := e.operate(j); err != nil {
		return 0, e.abort(err)
	}
	replies, err := e.give(binary.LittleEndian.AppendUint64(nil, uint64(cpuTime()-begin)))
	if err != nil {
		return 0, err
	}
	for _, b := range replies {
		if len(b) != 8 {
			return 0, e.abort(bench.ErrOrder)
		}
		cpu += time.Duration(binary.LittleEndian.Uint64(b))
	}
	return cpu, nil
}

// inspection asks the passive ranks to check the messages from Seq on.
type inspection struct {
	Seq uint64 `json:"seq"`
	N   int    `json:"n"`
}

// operate runs the test. If only the lead acts, the other ranks serve its inspections until the lead sends none.
func (e *end) operate(j *bench.Round) error {
	if info := bench.InfoOf(j.Test); !info.OneSided || j.Test == bench.PutLat {
		return e.b.Run(j)
	}
	if j.Lead {
		if err := e.b.Run(j); err != nil {
			return err
		}
		return e.order(nil, nil)
	}
	for {
		var x *inspection
		if err := e.order(nil, &x); err != nil || x == nil {
			return err
		}
		if _, err := e.exchange(nil, e.b.Inspect(x.Seq, min(x.N, bench.MaxWindow))); err != nil {
			return err
		}
	}
}

// inspect makes the passive ranks check the messages that were put.
func (e *end) inspect(seq uint64, n int) error {
	if err := e.order(inspection{seq, n}, nil); err != nil {
		return err
	}
	_, err := e.exchange(nil, nil)
	return err
}

// cpuTime returns the CPU time of this process, in user and kernel mode.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// quiet collects garbage now, so that no collection runs during a measurement, which allocates nothing.
func quiet() {
	runtime.GC()
}

func open(s *bench.Setup) (bench.Bench, error) {
	if bench.IsBaseline(s.Driver) {
		return baseline.Open(s)
	}
	return workload.Open(s)
}
