//go:build linux

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

// turns is a ping-pong of rank 0 with one peer after the other.
func (b *sessionBench) turns(j *bench.Round) error {
	peers := uint64(b.s.Size() - 1)
	if j.Lead {
		return j.Timed(func(seq uint64) error { return b.bounce(j, b.s.Gate(1+int(seq%peers)), seq) })
	}
	for seq := uint64(b.s.Rank() - 1); seq < uint64(j.N); seq += peers {
		if err := b.bounce(j, b.s.Gate(0), seq); err != nil {
			return err
		}
	}
	return nil
}

// bulkSize is the size of the messages that are sent beside a measurement.
const bulkSize = bench.MiB

// beside is a ping-pong of ranks 0 and 1 while the others send to rank 0, until it sends them the order to stop: then
// each sends an empty message as its last.
func (b *sessionBench) beside(j *bench.Round) error {
	ctx, rank := j.Stop.Ctx, b.s.Rank()
	if rank == 1 {
		return j.Timed(func(seq uint64) error { return b.bounce(j, b.s.Gate(0), seq) })
	}
	if rank > 1 {
		return b.sendBulk(ctx)
	}
	reqs := make([]*session.Request, b.s.Size())
	each := func(do func(from int) error) error {
		for from := 2; from < len(reqs); from++ {
			if err := do(from); err != nil {
				return err
			}
		}
		return nil
	}
	post := func(from int) (err error) {
		reqs[from], err = b.s.Gate(from).Irecv(tagBulk, b.bulk)
		return err
	}
	renew := func(from int) error {
		done, _, err := reqs[from].Test()
		if err != nil || !done {
			return err
		}
		return post(from)
	}
	end := func(from int) error {
		err := b.s.Gate(from).Send(ctx, tagGo, nil)
		for ; err == nil; err = post(from) {
			if st, err := reqs[from].Wait(ctx); err != nil || st.Len == 0 {
				return err
			}
		}
		return err
	}
	if err := each(post); err != nil {
		return err
	}
	err := j.Timed(func(seq uint64) error {
		if err := b.bounce(j, b.s.Gate(1), seq); err != nil {
			return err
		}
		return each(renew)
	})
	if err != nil {
		return err
	}
	return each(end)
}

// sendBulk sends messages to rank 0 until rank 0 sends the order to stop.
func (b *sessionBench) sendBulk(ctx context.Context) error {
	leader := b.s.Gate(0)
	stop, err := leader.Irecv(tagGo, nil)
	if err != nil {
		return err
	}
	for {
		if err := leader.Send(ctx, tagBulk, b.bulk); err != nil {
			return err
		}
		if done, _, err := stop.Test(); err != nil {
			return err
		} else if done {
			return leader.Send(ctx, tagBulk, nil)
		}
	}
}

// exchange sends a message to each rank and receives one from each. A rank continues when it has received all of its
// messages, so that no rank is more than one operation ahead.
func (b *sessionBench) exchange(j *bench.Round, seq uint64) (err error) {
	ctx, n := j.Stop.Ctx, b.s.Size()
	// The pattern differs for each operation, sender and receiver.
	pattern := func(from, to int) uint64 { return (seq*uint64(n)+uint64(from))*uint64(n) + uint64(to) }
	for k := range n - 1 {
		if b.reqs[k], err = b.gate(-k-1).Irecv(tagData, b.in[k]); err != nil {
			return err
		}
	}
	for k := range n - 1 {
		g := b.gate(k + 1)
		if j.Validate {
			bench.Fill(b.out[k], pattern(b.s.Rank(), g.Rank()))
		}
		if b.sent[k], err = g.Isend(tagData, b.out[k]); err != nil {
			return err
		}
	}
	for k := range n - 1 {
		if _, err := b.reqs[k].Wait(ctx); err != nil {
			return err
		}
		if j.Validate {
			if err := bench.Verify(b.in[k], pattern(b.gate(-k-1).Rank(), b.s.Rank())); err != nil {
				return err
			}
		}
	}
	for _, r := range b.sent[:n-1] {
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
