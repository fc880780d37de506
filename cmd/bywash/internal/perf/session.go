package perf

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// SessionName is -d session: the session layer over the drivers of --rails.
const SessionName = "session"

// railsOption carries --rails to both ends.
const railsOption = "rails"

// sessionBench is one end of a session of two, or a rank of one of more.
type sessionBench struct {
	setup  *setup
	s      *session.Session
	g      *session.Gate // to the other end, or the other of a pair
	c      Case
	arena  *driver.Arena
	out    [][]byte
	in     [][]byte
	region *session.Region
	remote *session.Remote
	reqs   []*session.Request
	sent   []*session.Request
	salt   uint64       // of the patterns of a pair, so that they differ from another's
	room   int          // bytes between the buffers
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
)

// connect joins the session of the ranks, and connects to each of them.
func (b *sessionBench) connect(func([]byte) ([][]byte, error)) (err error) {
	cfg := session.Config{Job: b.setup.job}
	if rails := b.setup.Options[railsOption]; rails != "" {
		for name := range strings.SplitSeq(rails, ",") {
			cfg.Rails = append(cfg.Rails, session.Rail{Driver: name, Device: b.setup.Device})
		}
	}
	if b.s, err = session.Join(b.setup.stop.ctx, cfg); err != nil {
		return err
	}
	b.g = b.gate(1)
	b.s.Handle(1, b.active)
	for k := 1; k < b.s.Size(); k++ {
		if err := b.gate(k).ConnectWait(b.setup.stop.ctx); err != nil {
			return err
		}
	}
	return nil
}

// active takes an active message. Those of a peer are handled one at a time, in order.
func (b *sessionBench) active(_ *session.Gate, a *session.Active) {
	if b.checks.Load() {
		if err := verify(a.Data, uint64(b.got.Load())); err != nil {
			b.bad.CompareAndSwap(nil, &err)
		}
	}
	b.got.Add(1)
}

func (b *sessionBench) check(c *Case) error {
	switch c.Test {
	case Lat, TagLat, BW, TagBW, Rate, AMRate, PutBW, GetBW, GetLat, FaddLat, MultiPair, AllToAll:
	default:
		return skipf("session has no test %s", c.Test)
	}
	switch {
	case c.Ranks != b.setup.Ranks:
		return errOrder
	case c.Peers > 0:
		return skipf("--peers is for drivers")
	case (c.Test == Rate || c.Test == AMRate) && c.Size > b.g.MaxActive():
		return skipf("active messages have at most %d bytes", b.g.MaxActive())
	}
	return nil
}

func (b *sessionBench) prepare(c *Case) ([]byte, error) {
	b.c = *c
	b.checks.Store(c.Validate)
	b.value = 0
	w := window(c.Size, maxWindow)
	switch c.Test {
	case MultiPair:
		b.g = b.s.Gate(b.partner())
		b.salt = uint64(min(b.s.Rank(), b.partner())) << 48
	case AllToAll:
		w = c.Ranks - 1
	}
	room := max(line, (c.Size+line-1)&^(line-1))
	mem := make([]byte, 2*w*room)
	if c.arena() {
		var err error
		if b.arena, err = driver.NewArena(len(mem)); err != nil {
			return nil, err
		}
		mem = b.arena.Bytes()
	}
	b.out, b.in, b.room = nil, nil, room
	for i := range w {
		b.out = append(b.out, mem[i*room:][:c.Size:c.Size])
		b.in = append(b.in, mem[(w+i)*room:][:c.Size:c.Size])
	}
	b.reqs, b.sent = make([]*session.Request, w), make([]*session.Request, w)
	if !infoOf(c.Test).oneSided {
		return nil, nil
	}
	if c.Validate && (c.Test == GetBW || c.Test == GetLat) {
		for k := range b.in {
			fill(b.in[k], uint64(k))
		}
	}
	var err error
	if b.region, err = b.s.Register(mem[w*room:], driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic); err != nil {
		return nil, err
	}
	return b.region.Key(), nil
}

func (b *sessionBench) start(blob []byte) (err error) {
	if len(blob) > 0 {
		b.remote, err = b.g.Import(blob)
	}
	return err
}

func (b *sessionBench) finish() error {
	if b.region != nil {
		for b.region.Deregister() == driver.ErrBusy {
			b.s.Progress()
		}
		b.region = nil
	}
	b.out, b.in = nil, nil
	if b.arena != nil {
		err := b.arena.Close()
		b.arena = nil
		return err
	}
	return nil
}

// inspect checks that the target holds messages seq to seq+n-1.
func (b *sessionBench) inspect(seq uint64, n int) error {
	if b.c.Test != PutBW || n < 0 || n > len(b.in) {
		return fmt.Errorf("inspect %d of %d buffers after %s", n, len(b.in), b.c.Test)
	}
	for i := range uint64(n) {
		if err := verify(b.in[(seq+i)%uint64(len(b.in))], seq+i); err != nil {
			return err
		}
	}
	return nil
}

func (b *sessionBench) path() string { return b.g.Path() }

func (b *sessionBench) close() error {
	if b.s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = b.s.Close(ctx)
	return nil
}

func (b *sessionBench) run(j *job) error {
	info := infoOf(j.Test)
	switch {
	case info.oneSided && !j.lead:
		return nil // passive
	case j.Test == Lat || j.Test == TagLat:
		return b.pingPong(j)
	case j.Test == AllToAll:
		return timed(j, func(seq uint64) error { return b.exchange(j, seq) })
	case j.Test == MultiPair:
		return b.pairs(j)
	case info.oneSided && info.latency:
		return b.timed(j, b.access)
	}
	begin := time.Now()
	err := b.stream(j)
	j.elapsed = time.Since(begin)
	return err
}

func (b *sessionBench) send(j *job, seq uint64) error {
	if j.Validate {
		fill(b.out[0], seq)
	}
	return b.g.Send(j.stop.ctx, tagData, b.out[0])
}

func (b *sessionBench) receive(j *job, seq uint64) error {
	n, err := b.g.Recv(j.stop.ctx, tagData, b.in[0])
	if err != nil || !j.Validate {
		return err
	}
	return verify(b.in[0][:n], seq)
}

func (b *sessionBench) pingPong(j *job) error {
	if !j.lead {
		for i := range j.n {
			if err := b.receive(j, uint64(i)); err != nil {
				return err
			}
			if err := b.send(j, ^uint64(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return b.timed(j, func(i int) error {
		if err := b.send(j, uint64(i)); err != nil {
			return err
		}
		return b.receive(j, ^uint64(i))
	})
}

// timed records n calls.
func (b *sessionBench) timed(j *job, f func(int) error) error {
	last := time.Now()
	for i := 0; i < j.n; {
		end := min(j.n, i+j.rec.batch)
		n := end - i
		for ; i < end; i++ {
			if err := f(i); err != nil {
				return err
			}
		}
		now := time.Now()
		j.rec.add(now.Sub(last), n)
		last = now
	}
	return nil
}

// access is a get or an atomic, waited for.
func (b *sessionBench) access(int) error {
	ctx := b.setup.stop.ctx
	if b.c.Test == FaddLat {
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
	return verify(b.in[0], 0)
}

// stream runs tests of throughput: as many requests as the window holds are under
// way.
func (b *sessionBench) stream(j *job) error {
	ctx := j.stop.ctx
	one := func(i int) (*session.Request, error) { return b.begin(j, i) }
	if j.Test == Rate || j.Test == AMRate {
		if !j.lead {
			for b.got.Load() < int64(j.n) {
				if !b.s.Progress() && ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			b.got.Store(0)
			if bad := b.bad.Load(); bad != nil {
				return *bad
			}
			return b.g.Send(ctx, tagAck, nil)
		}
	}
	for i := range j.n + len(b.reqs) {
		if err := b.settle(j, i); err != nil {
			return err
		}
		if w := len(b.reqs); j.Test == PutBW && j.Validate && i > 0 && (i%w == 0 && i <= j.n || i == j.n) {
			if err := b.inspectPuts(j, i); err != nil {
				return err
			}
		}
		if i < j.n {
			r, err := one(i)
			if err != nil {
				return err
			}
			b.reqs[i%len(b.reqs)] = r
		}
	}
	if infoOf(j.Test).oneSided {
		return nil
	}
	if !b.sends(j) {
		return b.g.Send(ctx, tagAck, nil)
	}
	_, err := b.g.Recv(ctx, tagAck, nil)
	return err
}

// settle ends the operation of a stream in whose place number i comes.
func (b *sessionBench) settle(j *job, i int) error {
	k := i % len(b.reqs)
	r := b.reqs[k]
	if r == nil {
		return nil
	}
	b.reqs[k] = nil
	if _, err := r.Wait(j.stop.ctx); err != nil || !j.Validate {
		return err
	}
	switch {
	case j.Test == GetBW:
		return verify(b.in[k], uint64(k))
	case !b.sends(j):
		return verify(b.in[k], b.salt+uint64(i-len(b.reqs)))
	}
	return nil
}

// inspectPuts has the other end check the puts before number i: since the last time, all buffers at most, which are
// overwritten only after it.
func (b *sessionBench) inspectPuts(j *job, i int) error {
	w := len(b.reqs)
	for k := range w {
		if err := b.settle(j, i+k); err != nil {
			return err
		}
	}
	first := (i - 1) / w * w
	return j.inspect(uint64(first), i-first)
}

// begin starts operation i of a stream.
func (b *sessionBench) begin(j *job, i int) (*session.Request, error) {
	k := i % len(b.reqs)
	at := 0
	if j.Validate {
		at = k * b.room
	}
	switch {
	case j.Test == Rate || j.Test == AMRate:
		if j.Validate {
			fill(b.out[k], uint64(i))
		}
		return b.g.AM(1, nil, b.out[k])
	case j.Test == PutBW:
		if j.Validate {
			fill(b.out[k], uint64(i))
		}
		return b.g.Iput(b.remote, at, b.out[k])
	case j.Test == GetBW:
		if j.Validate {
			clear(b.in[k])
		}
		return b.g.Iget(b.remote, at, b.in[k])
	case b.sends(j):
		if j.Validate {
			fill(b.out[k], b.salt+uint64(i))
		}
		return b.g.Isend(tagData, b.out[k])
	}
	return b.g.Irecv(tagData, b.in[k])
}
