//go:build linux

package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

const connectTimeout = 15 * time.Second

// link is a bench over a driver: a context for each track, and an instance on
// each.
type link struct {
	s     *bench.Setup
	small driver.Context
	large driver.Context // nil when the driver has no large track
	si    driver.Instance
	li    driver.Instance
	idles []driver.Instance
	box   controlLink
	scaps driver.Capabilities
	lcaps driver.Capabilities
	peer  string // the other end's small track

	// of the case at hand
	c     bench.Case
	arena *driver.Arena
	snd   *sender
	rcv   *receiver
	one   *oneSided
	group *group
}

// Open opens one end of a driver, or of a session. The rank after the two ends holds idle peers.
func Open(s *bench.Setup) (bench.Bench, error) {
	switch {
	case s.Driver == bench.Session:
		return &sessionBench{setup: s}, nil
	case s.Rank > 1:
		return openIdlePeers(s)
	}
	return openLink(s)
}

func openLink(s *bench.Setup) (bench.Bench, error) {
	d, err := driver.Lookup(s.Driver)
	if err != nil {
		return nil, err
	}
	l := &link{s: s}
	if l.small, err = openTrack(d, s, driver.Small); err != nil {
		return nil, err
	}
	l.scaps = l.small.Properties().Capabilities
	if !s.Local && l.small.Properties().Profile.Exclusivity >= 48 {
		_ = l.Close()
		return nil, bench.Skipf("%s reaches processes on the same machine only: run bywash perf -d %s without --listen "+
			"or HOST:PORT", s.Driver, s.Driver)
	}
	l.large, err = openTrack(d, s, driver.Large)
	if err == nil {
		l.lcaps = l.large.Properties().Capabilities
	} else if !errors.Is(err, driver.ErrUnsupported) {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func openTrack(d driver.Driver, s *bench.Setup, track driver.Track) (driver.Context, error) {
	nic, err := d.Query(driver.Hints{Device: s.Device, Track: track, Peers: 1 + s.Peers, Options: s.Options})
	if err != nil {
		return nil, err
	}
	return nic.Open(driver.Attributes{SessionSize: 2, Rank: min(s.Rank, 1), Secret: s.Job.Secret()})
}

func (l *link) links() []string {
	if l.large == nil {
		return []string{l.small.URL()}
	}
	return []string{l.small.URL(), l.large.URL()}
}

func (l *link) Connect(give bench.Give) error {
	replies, err := bench.ExchangeLinks(give, l.links())
	if err != nil {
		return err
	}
	if err := l.reach(replies[l.s.Partner()]); err != nil {
		return err
	}
	for left := l.s.Peers; left > 0; left -= idleBatch {
		replies, err := bench.ExchangeLinks(give, nil)
		if err != nil {
			return err
		}
		if err := l.idle(replies[2]); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) reach(links []string) error {
	if len(links) == 0 || len(links) > 2 {
		return fmt.Errorf("the other side gave %d urls", len(links))
	}
	l.peer = links[0]
	var err error
	if l.si, err = l.small.Connect(links[0]); err != nil {
		return err
	}
	if l.large != nil && len(links) == 2 {
		if l.li, err = l.large.Connect(links[1]); err != nil {
			return err
		}
	}
	if err := settle(l.s, l.si, l.li); err != nil {
		return err
	}
	l.box.init(l)
	return nil
}

// settle waits until instances, which may be nil, are connected.
func settle(s *bench.Setup, instances ...driver.Instance) error {
	ctx, cancel := context.WithTimeout(s.Stop.Ctx, connectTimeout)
	defer cancel()
	for _, i := range instances {
		if i == nil {
			continue
		}
		if err := i.ConnectWait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) idle(links []string) error {
	from := len(l.idles)
	for _, u := range links {
		i, err := l.small.Connect(u)
		if err != nil {
			return err
		}
		l.idles = append(l.idles, i)
	}
	if err := settle(l.s, l.idles[from:]...); err != nil {
		return fmt.Errorf("idle peer: %w", err)
	}
	return nil
}

// onLarge reports whether the large track carries messages of a size.
func (l *link) onLarge(size int) bool { return size > l.scaps.MaxMessage }

func (l *link) Check(c *bench.Case) error {
	switch info := bench.InfoOf(c.Test); {
	case info.Session:
		return bench.Skipf("%s: %s is a test of -d session", l.s.Driver, c.Test)
	case info.OneSided:
		return l.checkOneSided(c)
	case c.Test == bench.Connect:
		return nil
	case c.Test == bench.Barrier || c.Test == bench.Bcast:
		return l.checkGroup()
	}
	caps, track := l.scaps, "small"
	if l.onLarge(c.Size) {
		caps, track = l.lcaps, "large"
		switch {
		case l.li == nil:
			return bench.Skipf("%s has no large track here; its small track carries at most %d bytes",
				l.s.Driver, l.scaps.MaxMessage)
		case c.Size > caps.MaxMessage:
			return bench.Skipf("%s carries at most %d bytes", l.s.Driver, caps.MaxMessage)
		case controlSize(&l.lcaps) > l.scaps.MaxMessage:
			return bench.Skipf("%s: rdv data of %d bytes does not fit its small track", l.s.Driver, caps.RdvSize)
		case c.Test == bench.Rate:
			return bench.Skipf("%s: rate is for the small track, which carries at most %d bytes", l.s.Driver, l.scaps.MaxMessage)
		}
	}
	if c.Blocking() && (!caps.SendWait || !caps.RecvWait || !l.scaps.RecvWait) {
		return bench.Skipf("%s cannot sleep in waits on its %s track: use --wait poll", l.s.Driver, track)
	}
	if c.Peers > 0 && !l.scaps.Probe {
		return bench.Skipf("%s has no probe, which --peers needs", l.s.Driver)
	}
	return nil
}

func (l *link) Prepare(c *bench.Case) (blob []byte, err error) {
	l.c = *c
	switch {
	case bench.InfoOf(c.Test).OneSided:
		return l.prepareOneSided()
	case c.Test == bench.Connect:
		return nil, nil
	case c.Test == bench.Barrier || c.Test == bench.Bcast:
		return l.prepareGroup()
	}
	return l.prepareMessages()
}

func (l *link) Start(blob []byte) error {
	if l.one != nil {
		return l.one.start(blob)
	}
	if l.group != nil {
		return l.group.start(blob)
	}
	if !l.lcaps.RdvUpdate {
		return bench.Skipf("%s: the other end's device updates rdv data, this end's cannot", l.s.Driver)
	}
	return nil
}

// lines rounds a size up to cache lines, at least one.
func lines(size int) int { return max(bench.Line, (size+bench.Line-1)&^(bench.Line-1)) }

// carve divides memory into n buffers of a size, each on cache lines of its own.
func carve(mem []byte, n, size int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = mem[i*lines(size):][:size:size]
	}
	return out
}

// inspect checks that buffers, which messages use in turn, hold messages seq to seq+n-1.
func inspect(bufs [][]byte, seq uint64, n int) error {
	w := uint64(len(bufs))
	if n < 0 || uint64(n) > w {
		return fmt.Errorf("inspect %d buffers of %d", n, w)
	}
	for i := range uint64(n) {
		if err := bench.Verify(bufs[(seq+i)%w], seq+i); err != nil {
			return err
		}
	}
	return nil
}

// alloc makes count buffers of a size for sending, and as many for receiving, in the requested kind of memory. Each is
// on cache lines of its own.
func (l *link) alloc(count, size int) (out, in [][]byte, err error) {
	room := lines(size)
	take := func() []byte { return make([]byte, room) }
	if l.c.Arena() {
		const page = 1 << 16
		if l.arena, err = driver.NewArena(2*count*((room+page-1)&^(page-1)) + page); err != nil {
			return nil, nil, err
		}
		take = func() []byte { return l.arena.Alloc(room) }
	}
	all := make([][]byte, 2*count)
	for i := range all {
		b := take()
		if b == nil {
			return nil, nil, errors.New("arena too small: please report this")
		}
		all[i] = b[:size:size]
	}
	return all[:count], all[count:], nil
}

func (l *link) Run(j *bench.Round) error {
	switch {
	case j.Test == bench.Connect:
		return l.runConnect(j)
	case l.one != nil:
		return l.one.run(j)
	case l.group != nil:
		return l.group.run(j)
	case j.Test == bench.Lat:
		return l.pingPong(j)
	}
	return l.stream(j)
}

func (l *link) Inspect(seq uint64, n int) error {
	if l.one == nil {
		return errors.New("nothing to inspect")
	}
	return l.one.inspect(seq, n)
}

// freeCase frees all of a case but its memory.
func (l *link) freeCase() (err error) {
	if l.one != nil {
		err = l.one.finish()
	}
	if l.group != nil {
		err = errors.Join(err, l.group.finish())
	}
	l.one, l.group, l.snd, l.rcv = nil, nil, nil, nil
	return err
}

func (l *link) Finish() error {
	err := l.freeCase()
	if l.arena != nil {
		a := l.arena
		l.arena = nil
		err = errors.Join(err, l.s.Stop.RetryBusy(a.Close))
	}
	return err
}

func (l *link) Path() string {
	if l.group != nil {
		return "nic-group"
	}
	i := l.si
	if l.one != nil {
		i = l.one.inst
	} else if l.c.Test != bench.Connect && l.onLarge(l.c.Size) {
		i = l.li
	}
	return i.Path()
}

func (l *link) Close() error {
	for _, i := range append([]driver.Instance{l.si, l.li}, l.idles...) {
		if i != nil {
			_ = l.s.Stop.RetryBusy(i.Disconnect)
		}
	}
	err := l.freeCase()
	for _, c := range []driver.Context{l.large, l.small} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if l.arena != nil {
		_ = l.arena.Close()
	}
	return err
}
