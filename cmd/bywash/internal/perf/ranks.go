package perf

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/bywash/bywash/session"
)

// Tests of a session between more processes than two. The lead is rank 0; each of the others is a follower, which
// is told what the first is told.

// DefaultRanks is how many processes those tests have unless the user says otherwise.
const DefaultRanks = 4

// maxRanks keeps the business cards of all within one control message.
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

// addRanks starts the followers beside the first.
func (r *run) addRanks(p *peer, ranks int) error {
	for rank := 2; rank < ranks; rank++ {
		x, err := r.startChild(p.stop.ctx, r.cpus.of(rank), r.cpus.shared, r.secret)
		if err != nil {
			return err
		}
		p.others = append(p.others, x)
		context.AfterFunc(x.stop.ctx, func() { p.stop.stop(fmt.Errorf("rank %d: %w", rank, x.stop.err())) })
	}
	return nil
}

// all are the followers by rank, from 1.
func (p *peer) all() []*peer { return append([]*peer{p}, p.others...) }

// send tells all followers the same.
func (p *peer) send(m *message) error {
	for _, x := range p.all() {
		if err := x.ctl.send(m); err != nil {
			return err
		}
	}
	return nil
}

// recv has an answer of each; it returns the first's, with the CPU time of all.
func (p *peer) recv() (*message, error) {
	first, err := p.ctl.recv()
	for _, x := range p.others {
		m, bad := x.ctl.recv()
		switch {
		case err != nil:
		case bad != nil:
			err = bad
		case m.Kind != first.Kind:
			err = errOrder
		default:
			first.CPUNs += m.CPUNs
		}
	}
	return first, err
}

func (p *peer) call(m *message) (*message, error) {
	if err := p.send(m); err != nil {
		return nil, err
	}
	return p.recv()
}

// joinRanks opens all ranks and connects each to all others.
func (p *peer) joinRanks(b bench, req *openRequest) error {
	cards := slices.Clone(b.links())
	for k, x := range p.all() {
		theirs := *req
		theirs.Rank = k + 1
		answer, err := x.ctl.call(&message{Kind: kindOpen, Open: &theirs})
		if err != nil {
			return err
		}
		cards = append(cards, answer.Links...)
	}
	return p.both(&message{Kind: kindConnect, Links: cards}, func() error { return b.connect(cards) })
}

func (b *sessionBench) connectRanks(links []string) error {
	if len(links) != b.job.Size() {
		return fmt.Errorf("%d business cards for %d ranks", len(links), b.job.Size())
	}
	for rank, l := range links {
		card, err := base64.StdEncoding.DecodeString(l)
		if err != nil {
			return fmt.Errorf("the business card of rank %d: %w", rank, err)
		}
		b.job.put(rank, card)
	}
	for k := 1; k < b.job.Size(); k++ {
		if err := b.gate(k).ConnectWait(b.setup.stop.ctx); err != nil {
			return err
		}
	}
	return nil
}

// gate is the one to the rank k after this one.
func (b *sessionBench) gate(k int) *session.Gate {
	n := b.job.Size()
	return b.s.Gate((b.job.rank + k%n + n) % n)
}

// partner is the rank at the other end of this one's pair.
func (b *sessionBench) partner() int {
	half := b.job.Size() / 2
	return (b.job.rank + half) % (2 * half)
}

// sends tells which end of a stream this is.
func (b *sessionBench) sends(j *job) bool {
	return j.lead || j.Test == MultiPair && b.job.rank < b.partner()
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
	ctx, n := j.stop.ctx, b.job.Size()
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
			fill(b.out[k-1], pattern(b.job.rank, g.Rank()))
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
			if err := verify(b.in[k-1], pattern(b.gate(-k).Rank(), b.job.rank)); err != nil {
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
