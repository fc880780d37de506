//go:build linux

package workload

import (
	"context"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// runConnect makes and drops n connections beside the established one. The established connection serves as a barrier:
// both sides start together, and neither disconnects before the other is connected.
func (l *link) runConnect(j *bench.Round) error {
	for range j.N {
		if err := l.barrier(j); err != nil {
			return err
		}
		start := time.Now()
		inst, err := l.small.Connect(l.peer)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(j.Stop.Ctx, connectTimeout)
		err = inst.ConnectWait(ctx)
		cancel()
		if err != nil {
			return j.Stop.Why(err)
		}
		if j.Lead {
			j.Rec.Add(time.Since(start), 1)
		}
		if err := l.barrier(j); err != nil {
			return err
		}
		if err := j.Stop.RetryBusy(inst.Disconnect); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) barrier(j *bench.Round) error {
	var b [1]byte
	if err := l.box.post(j, b[:]); err != nil {
		return err
	}
	_, err := l.box.await(j, b[:])
	return err
}
