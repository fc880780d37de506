package workload

import (
	"context"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/session"
)

// Tests of a session between more processes than two.

// gate returns the gate to the rank k after this one.
func (b *sessionBench) gate(k int) *session.Gate {
	n := b.s.Size()
	return b.s.Gate((b.s.Rank() + k%n + n) % n)
}

// partner returns the rank at the other end of this rank's pair.
func (b *sessionBench) partner() int {
	half := b.s.Size() / 2
	return (b.s.Rank() + half) % (2 * half)
}

// sends reports whether this rank is the sending end of a stream.
func (b *sessionBench) sends(j *bench.Round) bool {
	return j.Lead || j.Test == bench.MultiPair && b.s.Rank() < b.partner()
}

// pairs makes all pairs stream at the same time: rank 0 starts the others, and its clock runs until each pair has
// reported that its receiver has everything.
func (b *sessionBench) pairs(j *bench.Round) error {
	ctx, leader := j.Stop.Ctx, b.s.Gate(0)
	if !j.Lead {
		if !b.sends(j) {
			return b.stream(j)
		}
		if _, err := leader.Recv(ctx, tagGo, nil); err != nil {
			return err
		}
		if err := b.stream(j); err != nil {
			return err
		}
		return leader.Send(ctx, tagGo, nil)
	}
	begin := time.Now()
	for rank := 1; rank < b.partner(); rank++ {
		if err := b.s.Gate(rank).Send(ctx, tagGo, nil); err != nil {
			return err
		}
	}
	if err := b.stream(j); err != nil {
		return err
	}
	for rank := 1; rank < b.partner(); rank++ {
		if _, err := b.s.Gate(rank).Recv(ctx, tagGo, nil); err != nil {
			return err
		}
	}
	j.Elapsed = time.Since(begin)
	return nil
}

// exchange sends a message to each rank and receives one from each. A rank continues when it has received all of its
// messages, so that no rank is more than one operation ahead.
func (b *sessionBench) exchange(j *bench.Round, seq uint64) error {
	ctx, n := j.Stop.Ctx, b.s.Size()
	// The pattern differs for each operation, sender and receiver.
	pattern := func(from, to int) uint64 { return (seq*uint64(n)+uint64(from))*uint64(n) + uint64(to) }
	for k := 1; k < n; k++ {
		r, err := b.gate(-k).Irecv(tagData, b.in[k-1])
		if err != nil {
			return err
		}
		b.reqs[k-1] = r
	}
	for k := 1; k < n; k++ {
		g := b.gate(k)
		if j.Validate {
			bench.Fill(b.out[k-1], pattern(b.s.Rank(), g.Rank()))
		}
		r, err := g.Isend(tagData, b.out[k-1])
		if err != nil {
			return err
		}
		b.sent[k-1] = r
	}
	for k := 1; k < n; k++ {
		if err := b.await(ctx, &b.reqs[k-1]); err != nil {
			return err
		}
		if j.Validate {
			if err := bench.Verify(b.in[k-1], pattern(b.gate(-k).Rank(), b.s.Rank())); err != nil {
				return err
			}
		}
	}
	for k := 1; k < n; k++ {
		if err := b.await(ctx, &b.sent[k-1]); err != nil {
			return err
		}
	}
	return nil
}

// await waits for a request, if one was made.
func (b *sessionBench) await(ctx context.Context, r **session.Request) error {
	x := *r
	if x == nil {
		return nil
	}
	*r = nil
	_, err := x.Wait(ctx)
	return err
}
