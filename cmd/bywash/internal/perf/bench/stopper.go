//go:build linux

package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// Stopper ends a measurement early: on Ctrl-C, or when the other process has died. Hot loops read a flag once in many
// empty polls; waits that sleep use its context.
type Stopper struct {
	Ctx    context.Context // of waits that sleep
	cancel context.CancelCauseFunc
	flag   atomic.Bool
}

// NewStopper makes a Stopper that also stops when parent ends.
func NewStopper(parent context.Context) *Stopper {
	s := &Stopper{}
	s.Ctx, s.cancel = context.WithCancelCause(parent)
	context.AfterFunc(s.Ctx, func() { s.flag.Store(true) })
	return s
}

// Stop stops the measurement. Only the first cause is kept.
func (s *Stopper) Stop(cause error) { s.cancel(cause) }

// Err returns the cause, or nil before Stop.
func (s *Stopper) Err() error { return context.Cause(s.Ctx) }

// Spinner counts the polls of a loop that found nothing.
type Spinner struct {
	misses uint32
	mask   uint32 // look at the flag when misses & mask is 0
	yield  bool   // both processes share a CPU
	stop   *Stopper
}

// NewSpinner makes a Spinner, which with yield yields the CPU at each miss.
func NewSpinner(s *Stopper, yield bool) Spinner {
	if yield {
		return Spinner{mask: 7, yield: true, stop: s}
	}
	return Spinner{mask: 1023, stop: s}
}

// Miss is small enough to be inlined.
func (s *Spinner) Miss() error {
	s.misses++
	if s.misses&s.mask != 0 {
		return nil
	}
	return s.slow()
}

// Until calls f until it is done or fails. It costs one call more than a loop, which matters if f takes nanoseconds.
func (s *Spinner) Until(f func() (done bool, err error)) error {
	for {
		if done, err := f(); done || err != nil {
			return err
		}
		if err := s.Miss(); err != nil {
			return err
		}
	}
}

func (s *Spinner) slow() error {
	if s.yield {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	if s.stop.flag.Load() {
		return s.stop.Err()
	}
	return nil
}

// Why returns the reason for which the measurement was stopped, or else err, the error of a wait.
func (s *Stopper) Why(err error) error {
	if cause := s.Err(); err != nil && cause != nil {
		return cause
	}
	return err
}

// RetryBusy calls f until it is not busy any more, for a second at most.
func (s *Stopper) RetryBusy(f func() error) error {
	deadline := time.Now().Add(time.Second)
	for {
		err := f()
		if !errors.Is(err, driver.ErrBusy) || time.Now().After(deadline) || s.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
}
