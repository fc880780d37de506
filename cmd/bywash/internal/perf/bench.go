package perf

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

// bench is one end of a subject under test, the same in all ranks.
type bench interface {
	// connect connects to the other ends, which do so at the same time. give hands data to all ranks and returns
	// what each gave; all call it equally often.
	connect(give func([]byte) ([][]byte, error)) error
	// check tells whether the case can be run here: a skipError if not.
	check(c *Case) error
	// prepare allocates what a case needs and returns what the other end
	// has to know; start is given the other end's.
	prepare(c *Case) (blob []byte, err error)
	start(blob []byte) error
	// run does n iterations. The lead's end records.
	run(j *job) error
	// inspect checks, on the passive end, what the other has put there.
	inspect(seq uint64, n int) error
	// finish frees what prepare allocated.
	finish() error
	path() string
	close() error
}

// job is one round of a case.
type job struct {
	Case
	n     int
	lead  bool
	yield bool
	stop  *stopper
	rec   *recorder
	// elapsed is set by the lead's end of throughput tests.
	elapsed time.Duration
	// inspect asks the other, passive end to check what was put.
	inspect func(seq uint64, n int) error
}

func (j *job) spinner() spinner { return newSpinner(j.stop, j.yield) }

// skipError says that a case, or a driver, is not for this run. It is no
// failure unless the user asked for exactly that.
type skipError struct{ reason string }

func (e *skipError) Error() string { return e.reason }

func skipf(format string, args ...any) error {
	return &skipError{reason: fmt.Sprintf(format, args...)}
}

// unavailable tells whether err means that this machine, or this driver, cannot
// do what was asked.
func unavailable(err error) bool {
	var skip *skipError
	var peer *peerError
	return errors.As(err, &skip) || errors.Is(err, driver.ErrUnsupported) || errors.As(err, &peer) && peer.unavailable
}

// setup is what a rank knows when it opens a bench.
type setup struct {
	plan
	rank  int
	lead  bool
	local bool // all ranks on one machine
	yield bool
	job   launch.Job
	stop  *stopper
}

// The baselines: the kernel's own sockets.
const (
	sockTCP  = "sock-tcp"
	sockUnix = "sock-unix"
	sockUDP  = "sock-udp"
)

// Sockets are the baselines, in the order of the report.
var Sockets = []string{sockTCP, sockUnix, sockUDP}

// aliases are the names that the baselines had in earlier releases. The name tcp is kept for a driver.
var aliases = map[string]string{"unix": sockUnix, "udp": sockUDP}

// canonical returns the present name of a driver or baseline.
func canonical(name string) string {
	if to := aliases[name]; to != "" {
		return to
	}
	return name
}

func isSocket(name string) bool { return slices.Contains(Sockets, name) }

func open(s *setup) (bench, error) {
	if isSocket(s.Driver) {
		return openSocket(s)
	}
	if s.Driver == SessionName {
		return &sessionBench{setup: s}, nil
	}
	if s.rank > 1 {
		return openIdlers(s)
	}
	return openLink(s)
}
