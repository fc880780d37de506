//go:build linux

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

// Bench is one end of a subject under test, the same in all ranks.
type Bench interface {
	// Connect connects to the other ends, which call it at the same time. give sends data to all ranks and returns the
	// data of each; all ranks call it equally often.
	Connect(give Give) error
	// Check returns an error made by Skipf if the case cannot be run here.
	Check(c *Case) error
	// Prepare allocates the resources of a case and returns data for the other end, which gets it in Start.
	Prepare(c *Case) (blob []byte, err error)
	Start(blob []byte) error
	// Run does n iterations. The lead's end records.
	Run(j *Round) error
	// Inspect checks, on the passive end, the messages that the other end has put there.
	Inspect(seq uint64, n int) error
	// Finish frees the resources of Prepare.
	Finish() error
	Path() string
	Close() error
}

// Give sends data to all ranks and returns the data of each, by rank.
type Give func(data []byte) ([][]byte, error)

// ExchangeLinks sends the addresses of this rank's endpoints to all ranks and returns those of each.
func ExchangeLinks(give Give, links []string) ([][]string, error) {
	b, err := json.Marshal(links)
	if err != nil {
		return nil, err
	}
	replies, err := give(b)
	if err != nil {
		return nil, err
	}
	out := make([][]string, len(replies))
	for rank := range replies {
		if json.Unmarshal(replies[rank], &out[rank]) != nil {
			return nil, ErrOrder
		}
	}
	return out, nil
}

// Round is one round of a case.
type Round struct {
	Case
	N     int // operations
	Lead  bool
	Yield bool
	Stop  *Stopper
	Rec   *Recorder // the lead's
	// Elapsed is set by the lead's end of throughput tests.
	Elapsed time.Duration
	// Inspect asks the passive end to check the messages that were put.
	Inspect func(seq uint64, n int) error
}

// Spinner returns a Spinner for the waits of this round.
func (j *Round) Spinner() Spinner { return NewSpinner(j.Stop, j.Yield) }

// Batches does the operations of a round: run does those from one number to before another. In the lead it is called
// for each batch, which is recorded.
func (j *Round) Batches(run func(from, to uint64) error) error {
	if !j.Lead {
		return run(0, uint64(j.N))
	}
	last := time.Now()
	for i := 0; i < j.N; {
		end := min(j.N, i+j.Rec.batch)
		if err := run(uint64(i), uint64(end)); err != nil {
			return err
		}
		now := time.Now()
		j.Rec.Add(now.Sub(last), end-i)
		last, i = now, end
	}
	return nil
}

// Timed is Batches for slower operations: each costs one more call, which matters only for nanoseconds. It ends between
// two operations when the measurement is stopped: their waits may be too short to look.
func (j *Round) Timed(op func(seq uint64) error) error {
	return j.Batches(func(from, to uint64) error {
		for i := from; i < to; i++ {
			if j.Stop.flag.Load() {
				return j.Stop.Err()
			}
			if err := op(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// PingPong bounces messages, timed as in Timed. Messages from the lead have the numbers of the operations, and the
// answers have their complements.
func (j *Round) PingPong(send, recv func(j *Round, seq uint64) error) error {
	return j.Timed(func(i uint64) error {
		if !j.Lead {
			if err := recv(j, i); err != nil {
				return err
			}
			return send(j, ^i)
		}
		if err := send(j, i); err != nil {
			return err
		}
		return recv(j, ^i)
	})
}

// skipError means that this run cannot include a case or a driver. It is no failure unless the user asked for exactly
// that one.
type skipError struct{ reason string }

func (e *skipError) Error() string { return e.reason }

// Skipf makes an error with the reason for which this run cannot include a case.
func Skipf(format string, args ...any) error {
	return &skipError{reason: fmt.Sprintf(format, args...)}
}

// Unavailable reports whether err means that this machine, or this driver, cannot do what was asked.
func Unavailable(err error) bool {
	var skip *skipError
	var other interface{ Unavailable() bool }
	return errors.As(err, &skip) || errors.Is(err, driver.ErrUnsupported) || errors.As(err, &other) && other.Unavailable()
}

// Errors of all parts.
var (
	ErrPeerGone = errors.New("the other process of the measurement is gone")
	ErrOrder    = errors.New("protocol error: unexpected message from the peer process")
)

// Setup is the argument of a rank that opens a bench.
type Setup struct {
	Plan
	Rank  int
	Lead  bool
	Local bool   // all ranks on one machine
	Peer  string // HOST:PORT where the lead has found the other end; empty in others, and if the lead has started it
	Job   launch.Job
	Stop  *Stopper
}

// Partner is the other end's rank, for the two ends.
func (s *Setup) Partner() int { return 1 - s.Rank }
