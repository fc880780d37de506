//go:build linux

package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// sessionBench is one end of a session of two, or a rank of one of more.
type sessionBench struct {
	setup  *bench.Setup
	s      *session.Session
	g      *session.Gate // to the other end, or the other of a pair
	c      bench.Case
	info   *bench.Info // of its test
	arena  *driver.Arena
	out    [][]byte
	in     [][]byte
	region *session.Region
	remote *session.Remote
	reqs   []*session.Request
	sent   []*session.Request
	salt   uint64       // of the patterns of a pair, so that they differ from another's
	bulk   []byte       // of the ranks that send beside a measurement
	got    atomic.Int64 // active messages
	checks atomic.Bool  // of these
	bad    atomic.Pointer[error]
	value  uint64 // of the target of atomics
}

// Tags of the bench's messages.
const (
	tagData = 1
	tagAck  = 2
	tagGo   = 3
	tagBulk = 4
)

// connect joins the session of the ranks, and connects to each of them.
func (b *sessionBench) Connect(bench.Give) (err error) {
	cfg := session.Config{Job: b.setup.Job, NoPrefetch: b.setup.Options[bench.PrefetchOption] == "off"}
	if rails := b.setup.Options[bench.RailsOption]; rails != "" {
		if cfg.Rails, err = session.ParseRails(rails); err != nil {
			return err
		}
		for k := range cfg.Rails {
			r := &cfg.Rails[k]
			r.Device = cmp.Or(r.Device, b.setup.Device)
			if r.Large != nil {
				r.Large.Device = cmp.Or(r.Large.Device, b.setup.Device)
			}
		}
	}
	if b.s, err = session.Join(b.setup.Stop.Ctx, cfg); err != nil {
		return err
	}
	b.g = b.gate(1)
	b.s.Handle(1, b.active)
	for k := 1; k < b.s.Size(); k++ {
		if err := b.gate(k).ConnectWait(b.setup.Stop.Ctx); err != nil {
			return err
		}
	}
	return nil
}

// active handles an active message. Messages of one peer are handled one at a time, in order.
func (b *sessionBench) active(_ *session.Gate, a *session.Active) {
	if b.checks.Load() {
		if err := bench.Verify(a.Data, uint64(b.got.Load())); err != nil {
			b.bad.CompareAndSwap(nil, &err)
		}
	}
	b.got.Add(1)
}

func (b *sessionBench) Check(c *bench.Case) error {
	others := []bench.Test{bench.Lat, bench.BW, bench.Rate, bench.PutBW, bench.GetBW, bench.GetLat, bench.FaddLat}
	switch info := bench.InfoOf(c.Test); {
	case !info.Session && !slices.Contains(others, c.Test):
		return bench.Skipf("session has no test %s", c.Test)
	case c.Ranks != b.setup.Ranks:
		return bench.ErrOrder
	case c.Blocking():
		return bench.Skipf("--wait block is for drivers: waits of a session spin for a while, then sleep")
	case c.Peers > 0:
		return bench.Skipf("--peers is for drivers")
	case info.Messages && c.Size > b.g.MaxActive():
		return bench.Skipf("active messages have at most %d bytes", b.g.MaxActive())
	}
	return nil
}

func (b *sessionBench) Prepare(c *bench.Case) ([]byte, error) {
	b.c, b.info = *c, bench.InfoOf(c.Test)
	b.checks.Store(c.Validate)
	b.value = 0
	w := bench.Window(c.Size, bench.MaxWindow)
	switch c.Test {
	case bench.MultiPair:
		b.g = b.s.Gate(b.partner())
		b.salt = uint64(min(b.s.Rank(), b.partner())) << 48
	case bench.AllToAll:
		w = c.Ranks - 1
	case bench.BesideLat:
		b.bulk = make([]byte, bulkSize)
	}
	room := lines(c.Size)
	mem := make([]byte, 2*w*room)
	if c.Arena() {
		var err error
		if b.arena, err = driver.NewArena(len(mem)); err != nil {
			return nil, err
		}
		mem = b.arena.Bytes()
	}
	b.out, b.in = carve(mem, w, c.Size), carve(mem[w*room:], w, c.Size)
	b.reqs, b.sent = make([]*session.Request, w), make([]*session.Request, w)
	if !b.info.OneSided {
		return nil, nil
	}
	if c.Validate && (c.Test == bench.GetBW || c.Test == bench.GetLat) {
		for k := range b.in {
			bench.Fill(b.in[k], uint64(k))
		}
	}
	var err error
	if b.region, err = b.s.Register(mem[w*room:], driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic); err != nil {
		return nil, err
	}
	return b.region.Key(), nil
}

func (b *sessionBench) Start(blob []byte) (err error) {
	if len(blob) > 0 {
		b.remote, err = b.g.Import(blob)
	}
	return err
}

func (b *sessionBench) Finish() error {
	if b.region != nil {
		if err := b.setup.Stop.RetryBusy(func() error { b.s.Progress(); return b.region.Deregister() }); err != nil {
			return err
		}
		b.region = nil
	}
	b.out, b.in, b.bulk = nil, nil, nil
	if b.arena != nil {
		err := b.arena.Close()
		b.arena = nil
		return err
	}
	return nil
}

// inspect checks that the target holds messages seq to seq+n-1.
func (b *sessionBench) Inspect(seq uint64, n int) error {
	if b.c.Test != bench.PutBW {
		return fmt.Errorf("nothing to inspect after %s", b.c.Test)
	}
	return inspect(b.in, seq, n)
}

func (b *sessionBench) Path() string { return b.g.Path() }

func (b *sessionBench) Close() error {
	if b.s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = b.s.Close(ctx)
	return nil
}

func (b *sessionBench) Run(j *bench.Round) error {
	switch {
	case b.info.OneSided && !j.Lead:
		return nil // passive
	case j.Test == bench.Lat || j.Test == bench.TagLat:
		return j.Timed(func(seq uint64) error { return b.bounce(j, b.g, seq) })
	case j.Test == bench.WakeLat:
		return b.wake(j)
	case j.Test == bench.TurnLat:
		return b.turns(j)
	case j.Test == bench.BesideLat:
		return b.beside(j)
	case j.Test == bench.AllToAll:
		return j.Timed(func(seq uint64) error { return b.exchange(j, seq) })
	case j.Test == bench.MultiPair:
		return b.pairs(j)
	case b.info.OneSided && b.info.Latency:
		return j.Timed(b.access)
	}
	begin := time.Now()
	err := b.stream(j)
	j.Elapsed = time.Since(begin)
	return err
}

// pause is how long a peer waits for a message before it is measured: longer than waits poll.
const pause = 2 * time.Millisecond

// wake is a ping-pong whose pings come when the peer has slept. The pauses are not part of the samples.
func (b *sessionBench) wake(j *bench.Round) error {
	begin := time.Now()
	for i := range uint64(j.N) {
		if j.Lead {
			time.Sleep(pause)
		}
		start := time.Now()
		if err := b.bounce(j, b.g, i); err != nil {
			return err
		}
		if j.Lead {
			j.Rec.Add(time.Since(start), 1)
		}
	}
	j.Elapsed = time.Since(begin)
	return nil
}

// bounce does a ping-pong with a rank: the leader's message has the number, and the answer its complement.
func (b *sessionBench) bounce(j *bench.Round, g *session.Gate, seq uint64) error {
	if !j.Lead {
		if err := b.receive(j, g, seq); err != nil {
			return err
		}
		return b.send(j, g, ^seq)
	}
	if err := b.send(j, g, seq); err != nil {
		return err
	}
	return b.receive(j, g, ^seq)
}

func (b *sessionBench) send(j *bench.Round, g *session.Gate, seq uint64) error {
	if j.Validate {
		bench.Fill(b.out[0], seq)
	}
	return g.Send(j.Stop.Ctx, tagData, b.out[0])
}

func (b *sessionBench) receive(j *bench.Round, g *session.Gate, seq uint64) error {
	n, err := g.Recv(j.Stop.Ctx, tagData, b.in[0])
	if err != nil || !j.Validate {
		return err
	}
	return bench.Verify(b.in[0][:n], seq)
}

// access performs a get or an atomic and waits for it.
func (b *sessionBench) access(uint64) error {
	ctx := b.setup.Stop.Ctx
	if b.c.Test == bench.FaddLat {
		was, err := b.g.FetchAdd(ctx, b.remote, 0, 1)
		if err == nil && was != b.value {
			err = fmt.Errorf("atomic %d returned %d: the operation was lost or done twice", b.value, was)
		}
		b.value++
		return err
	}
	if b.c.Validate {
		clear(b.in[0])
	}
	if err := b.g.Get(ctx, b.remote, 0, b.in[0]); err != nil || !b.c.Validate {
		return err
	}
	return bench.Verify(b.in[0], 0)
}

// stream runs tests of throughput, with as many requests under way as the window allows.
func (b *sessionBench) stream(j *bench.Round) error {
	ctx := j.Stop.Ctx
	switch {
	case b.info.Messages && !j.Lead:
		if err := b.count(j); err != nil {
			return err
		}
	case j.Goroutines > 0:
		if err := b.together(j); err != nil {
			return err
		}
	default:
		if err := b.window(j); err != nil {
			return err
		}
	}
	switch {
	case b.info.OneSided:
		return nil
	case !b.sends(j):
		return b.g.Send(ctx, tagAck, nil)
	}
	_, err := b.g.Recv(ctx, tagAck, nil)
	return err
}

// window does the operations of a stream. Puts must not be overwritten before they are checked.
func (b *sessionBench) window(j *bench.Round) (err error) {
	w, checks := len(b.reqs), j.Test == bench.PutBW && j.Validate
	for sent, tail := 0, 0; tail < j.N; {
		if sent < j.N && sent-tail < w && (!checks || sent < (tail/w+1)*w) {
			if b.reqs[sent%w], err = b.begin(j, sent); err != nil {
				return err
			}
			sent++
			continue
		}
		if err := b.settle(j, tail); err != nil {
			return err
		}
		tail++
		if checks && (tail%w == 0 || tail == j.N) {
			first := (tail - 1) / w * w
			if err := j.Inspect(uint64(first), tail-first); err != nil {
				return err
			}
		}
	}
	return nil
}

// count waits for the active messages of a round.
func (b *sessionBench) count(j *bench.Round) error {
	for b.got.Load() < int64(j.N) {
		if !b.s.Progress() && j.Stop.Ctx.Err() != nil {
			return context.Cause(j.Stop.Ctx)
		}
	}
	b.got.Store(0)
	if bad := b.bad.Load(); bad != nil {
		return *bad
	}
	return nil
}

// together has goroutines send the active messages of a round, each of which waits until its message has left.
func (b *sessionBench) together(j *bench.Round) error {
	var left atomic.Int64
	left.Store(int64(j.N))
	ended := make(chan error)
	for range j.Goroutines {
		go func() {
			var err error
			for err == nil && left.Add(-1) >= 0 {
				var r *session.Request
				if r, err = b.g.AM(1, nil, b.out[0]); err == nil {
					_, err = r.Wait(j.Stop.Ctx)
				}
			}
			ended <- err
		}()
	}
	var errs []error
	for range j.Goroutines {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// settle ends operation i of a stream.
func (b *sessionBench) settle(j *bench.Round, i int) error {
	k := i % len(b.reqs)
	if _, err := b.reqs[k].Wait(j.Stop.Ctx); err != nil || !j.Validate {
		return err
	}
	switch {
	case j.Test == bench.GetBW:
		return bench.Verify(b.in[k], uint64(k))
	case !b.sends(j):
		return bench.Verify(b.in[k], b.salt+uint64(i))
	}
	return nil
}

// begin starts operation i of a stream.
func (b *sessionBench) begin(j *bench.Round, i int) (*session.Request, error) {
	k, at := i%len(b.reqs), 0
	if j.Validate {
		at = k * lines(j.Size)
		if j.Test == bench.GetBW {
			clear(b.in[k])
		} else if b.sends(j) {
			bench.Fill(b.out[k], b.salt+uint64(i))
		}
	}
	switch {
	case b.info.Messages:
		return b.g.AM(1, nil, b.out[k])
	case j.Test == bench.PutBW:
		return b.g.Iput(b.remote, at, b.out[k])
	case j.Test == bench.GetBW:
		return b.g.Iget(b.remote, at, b.in[k])
	case b.sends(j):
		return b.g.Isend(tagData, b.out[k])
	}
	return b.g.Irecv(tagData, b.in[k])
}
