package perf

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// end is one rank at work on a driver: all ranks run these functions side by side. What only the lead does is in
// lead.go.
type end struct {
	*team
	setup *setup
	b     bench
	run   *run // the lead's, else nil
}

// measure opens, connects and runs the cases that the lead orders.
func (e *end) measure(cases func() error) (err error) {
	e.b, err = open(e.setup)
	if _, err := e.meet(nil, err); err != nil {
		if e.b != nil {
			_ = e.b.close()
		}
		return err
	}
	if err = e.b.connect(e.give); err != nil {
		err = e.abort(err)
	} else {
		err = cases()
	}
	closed := e.b.close()
	if err == nil {
		_, err = e.meet(nil, closed)
	}
	return err
}

// follow runs cases until the lead orders none.
func (e *end) follow() error {
	for {
		var c *Case
		if err := e.order(nil, &c); err != nil || c == nil {
			return err
		}
		if err := c.check(); err != nil {
			return e.abort(fmt.Errorf("%w: %w", errOrder, err))
		}
		if err := e.one(c); e.fatal(err) {
			return err
		}
	}
}

// fatal reports whether nothing more can be measured after err. Otherwise all ranks go on with the next case.
func (e *end) fatal(err error) bool { return err != nil && (!unavailable(err) || e.stop.err() != nil) }

// one runs a case.
func (e *end) one(c *Case) error {
	err := e.b.check(c)
	var blob []byte
	if err == nil {
		blob, err = e.b.prepare(c)
	}
	blobs, err := e.meet(blob, err)
	if err == nil {
		if rank := e.setup.rank; rank < 2 && len(blobs[1-rank]) > 0 {
			err = e.b.start(blobs[1-rank])
		}
		_, err = e.meet(nil, err)
	}
	if err == nil && e.setup.lead {
		err = e.leadRounds(c)
	} else if err == nil {
		err = e.followRounds(c)
	}
	if e.fatal(err) {
		// Packets may still be posted in the case's memory: closing the bench ends them before it frees that.
		return err
	}
	return errors.Join(err, e.b.finish())
}

// followRounds runs as many rounds as the lead orders.
func (e *end) followRounds(c *Case) error {
	for {
		n := int64(0)
		if err := e.order(nil, &n); err != nil || n == 0 {
			return err
		}
		if n < 0 || n > maxIters {
			return e.abort(errOrder)
		}
		if _, err := e.round(&job{Case: *c, n: int(n), yield: e.setup.yield, stop: e.stop}); err != nil {
			return err
		}
	}
}

// lag is how long the lead waits after the barrier: the others may hear of it from goroutines of the lead's process.
const lag = 200 * time.Microsecond

// round runs n operations in all ranks and returns the CPU time of all.
func (e *end) round(j *job) (cpu time.Duration, err error) {
	if !j.lead {
		quiet()
	}
	if err := e.job.Barrier(e.stop.ctx); err != nil {
		return 0, waitError(e.stop, lost(err))
	}
	if j.lead {
		time.Sleep(lag)
	}
	begin := cpuTime()
	if err := e.operate(j); err != nil {
		return 0, e.abort(err)
	}
	said, err := e.give(binary.LittleEndian.AppendUint64(nil, uint64(cpuTime()-begin)))
	if err != nil {
		return 0, err
	}
	for _, b := range said {
		if len(b) != 8 {
			return 0, e.abort(errOrder)
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

// operate runs the test. Where only the lead acts, the others check what it asks them to, until it asks nothing.
func (e *end) operate(j *job) error {
	if info := infoOf(j.Test); !info.oneSided || j.Test == PutLat {
		return e.b.run(j)
	}
	if j.lead {
		if err := e.b.run(j); err != nil {
			return err
		}
		return e.order(nil, nil)
	}
	for {
		var x *inspection
		if err := e.order(nil, &x); err != nil || x == nil {
			return err
		}
		if _, err := e.meet(nil, e.b.inspect(x.Seq, min(x.N, maxWindow))); err != nil {
			return err
		}
	}
}

// inspect has the passive ranks check what was put.
func (e *end) inspect(seq uint64, n int) error {
	if err := e.order(inspection{seq, n}, nil); err != nil {
		return err
	}
	_, err := e.meet(nil, nil)
	return err
}

// meetLinks gives the addresses of this rank's endpoints and returns those of all ranks.
func meetLinks(give func([]byte) ([][]byte, error), links []string) ([][]string, error) {
	b, err := json.Marshal(links)
	if err != nil {
		return nil, err
	}
	said, err := give(b)
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(said))
	for rank := range said {
		if json.Unmarshal(said[rank], &out[rank]) != nil {
			return nil, errOrder
		}
	}
	return out, nil
}

// cpuTime is what this process has used, in user and kernel mode.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// quiet collects garbage now, so that it is not done during a measurement: nothing allocates there.
func quiet() {
	runtime.GC()
	debug.SetGCPercent(-1)
}
