package perf

import (
	"context"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// stopper ends a measurement early: on Ctrl-C, or when the other process has
// died. Hot loops look at a flag once in many empty polls; waits that sleep use
// its context.
type stopper struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	flag   atomic.Bool
}

func newStopper(parent context.Context) *stopper {
	s := &stopper{}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	context.AfterFunc(s.ctx, func() { s.flag.Store(true) })
	return s
}

// stop records the first cause.
func (s *stopper) stop(cause error) { s.cancel(cause) }

// err is the cause, or nil while nothing has stopped.
func (s *stopper) err() error { return context.Cause(s.ctx) }

// spinner is what a polling loop calls when there was nothing.
type spinner struct {
	misses uint32
	mask   uint32 // look at the flag when misses & mask is 0
	yield  bool   // both processes share a CPU
	stop   *stopper
}

func newSpinner(s *stopper, yield bool) spinner {
	if yield {
		return spinner{mask: 7, yield: true, stop: s}
	}
	return spinner{mask: 1023, stop: s}
}

// miss is small enough to be inlined.
func (s *spinner) miss() error {
	s.misses++
	if s.misses&s.mask != 0 {
		return nil
	}
	return s.slow()
}

func (s *spinner) slow() error {
	if s.yield {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	if s.stop.flag.Load() {
		return s.stop.err()
	}
	return nil
}
