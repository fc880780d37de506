package perf

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/session"
)

// Tests of a session between more processes than two.

// DefaultRanks is how many processes those tests have unless the user says otherwise.
const DefaultRanks = 4

// maxRanks bounds the processes of one machine.
const maxRanks = 32

// CheckRanks refuses numbers of processes that these tests cannot have; 0 is as many as they usually have.
func CheckRanks(n int, tests ...Test) error {
	switch {
	case n != 0 && (n < 2 || n > maxRanks):
		return fmt.Errorf("--ranks %d: it is from 2 to %d", n, maxRanks)
	case n%2 != 0 && slices.Contains(tests, MultiPair):
		return fmt.Errorf("--ranks %d: %s pairs them, so their number is even", n, MultiPair)
	}
	return nil
}

func (c *Config) ranks() int {
	if c.Ranks == 0 {
		return DefaultRanks
	}
	return c.Ranks
}

// hasRanks tells whether a test has more processes than two.
func (c *Config) hasRanks() bool {
	return slices.ContainsFunc(c.Tests, func(t Test) bool { return infoOf(t).ranks })
}

// processes says how many there are, for people.
func (c *Config) processes() string {
	if slices.ContainsFunc(c.Tests, func(t Test) bool { return !infoOf(t).ranks }) {
		return fmt.Sprintf("two processes, or %d", c.ranks())
	}
	return fmt.Sprintf("%d processes", c.ranks())
}

// SetRanks has tests of more than two processes have n; 0 leaves it to them.
func (c *Config) SetRanks(n int) error {
	if n != 0 && (!c.hasRanks() || !slices.Contains(c.Drivers, SessionName)) {
		return fmt.Errorf("--ranks goes with -d %s and the tests %s and %s", SessionName, MultiPair, AllToAll)
	}
	c.Ranks = n
	return CheckRanks(c.ranks(), c.Tests...)
}

// split takes the cases of more than two processes out of a plan.
func split(plan []Case) (two, many []Case) {
	for _, c := range plan {
		if c.Ranks > 0 {
			many = append(many, c)
		} else {
			two = append(two, c)
		}
	}
	return two, many
}

// gate is the one to the rank k after this one.
func (b *sessionBench) gate(k int) *session.Gate {
	n := b.s.Size()
	return b.s.Gate((b.s.Rank() + k%n + n) % n)
}

// partner is the rank at the other end of this one's pair.
func (b *sessionBench) partner() int {
	half := b.s.Size() / 2
	return (b.s.Rank() + half) % (2 * half)
}

// sends tells which end of a stream this is.
func (b *sessionBench) sends(j *job) bool {
	return j.lead || j.Test == MultiPair && b.s.Rank() < b.partner()
}

// pairs has all pairs stream at the same time: rank 0 lets the others begin, and its clock runs until
// each has said that its receiver has everything.
func (b *sessionBench) pairs(j *job) error {
	ctx, leader := j.stop.ctx, b.s.Gate(0)
	if !j.lead {
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
	j.elapsed = time.Since(begin)
	return nil
}

// exchange sends a message to each rank and receives one from each. Who has all of theirs goes on: nobody
// is more than one operation ahead.
func (b *sessionBench) exchange(j *job, seq uint64) error {
	ctx, n := j.stop.ctx, b.s.Size()
	// What is checked is another pattern for each operation, sender and receiver.
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
			fill(b.out[k-1], pattern(b.s.Rank(), g.Rank()))
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
			if err := verify(b.in[k-1], pattern(b.gate(-k).Rank(), b.s.Rank())); err != nil {
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
