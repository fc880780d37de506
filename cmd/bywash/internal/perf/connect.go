package perf

import (
	"context"
	"time"
)

// runConnect makes and drops n connections beside the standing one, which is
// the barrier: both sides start together, and neither disconnects before the
// other has its end.
func (l *link) runConnect(j *job) error {
	for range j.n {
		if err := l.barrier(j); err != nil {
			return err
		}
		start := time.Now()
		inst, err := l.small.Connect(l.peer)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(j.stop.ctx, connectTimeout)
		err = inst.ConnectWait(ctx)
		cancel()
		if err != nil {
			return waitError(j.stop, err)
		}
		if j.lead {
			j.rec.add(time.Since(start), 1)
		}
		if err := l.barrier(j); err != nil {
			return err
		}
		if err := retryBusy(j.stop, inst.Disconnect); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) barrier(j *job) error {
	var b [1]byte
	if err := l.box.post(j, b[:]); err != nil {
		return err
	}
	_, err := l.box.await(j, b[:])
	return err
}
