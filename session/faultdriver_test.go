//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// faults are the faults that the driver "faulty", which otherwise is shm, injects into one rank's sends.
type faults struct {
	small     atomic.Pointer[func(header.Kind) error] // refuses packets of the small track
	large     atomic.Pointer[func() error]            // refuses packets of the large track
	onUpdate  func([]byte)                            // is called with the updates of sends on the large track
	holdSends atomic.Bool                             // SendPoll does not give packets of the small track back
	holdLarge atomic.Bool                             // SendPoll moves nothing on the large track until the connection ends
	noRoom    atomic.Bool                             // RecvPost has no room on the large track
	refused   atomic.Int64                            // number of such RecvPosts
	held      atomic.Int64                            // number of such SendPolls
	noConnect atomic.Int64                            // so many calls of Connect fail
	loseBye   atomic.Bool                             // RecvPoll loses the connection instead of the packet BYE
	pollTime  atomic.Int64                            // how long a RecvPoll of the small track takes at least, in ns
	polls     atomic.Int64                            // number of RecvPolls of the small track
}

// rankFaults are the faults of both ranks, while a test runs.
var rankFaults [2]*faults

type faultDriver struct{ driver.Driver }

func (faultDriver) Name() string { return "faulty" }

func (d faultDriver) Query(h driver.Hints) (driver.NIC, error) {
	n, err := d.Driver.Query(h)
	return faultNIC{n}, err
}

type faultNIC struct{ driver.NIC }

func (n faultNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return faultContext{c.(driver.ConnectRequestReceiver), c.(driver.Registrar), rankFaults[a.Rank]}, nil
}

type faultContext struct {
	driver.ConnectRequestReceiver
	r driver.Registrar
	f *faults
}

func (c faultContext) Register(b []byte, a driver.Access) (driver.Region, error) {
	return c.r.Register(b, a)
}

func (c faultContext) Reaches(url string) error {
	return c.ConnectRequestReceiver.(driver.Reacher).Reaches(url)
}

func (c faultContext) Domain() string { return c.ConnectRequestReceiver.(driver.Reacher).Domain() }

func (c faultContext) Connect(url string) (driver.Instance, error) {
	if c.f.noConnect.Add(-1) >= 0 {
		return nil, driver.ErrBroken
	}
	i, err := c.ConnectRequestReceiver.Connect(url)
	switch x := i.(type) {
	case driver.BufferReceiver:
		return &faultSmall{x, c.f}, err
	case nil:
		return nil, err
	}
	return &faultLarge{prefetching(i), i.(oneSided), c.f, nil}, err
}

// prefetching returns an instance as one that prefetches; where it does not, nothing is done ahead.
func prefetching(i driver.Instance) driver.Prefetcher {
	if f, ok := i.(driver.Prefetcher); ok {
		return f
	}
	return noPrefetch{i}
}

type noPrefetch struct{ driver.Instance }

func (noPrefetch) SendPrefetch(p *driver.Packet) error {
	p.Driver.Phase = driver.Prefetched
	return nil
}

func (noPrefetch) SendUnfetch(p *driver.Packet) error {
	p.Driver = driver.PacketState{}
	return nil
}

func (i noPrefetch) RecvPrefetch(p *driver.Packet) error { return i.SendPrefetch(p) }
func (i noPrefetch) RecvUnfetch(p *driver.Packet) error  { return i.SendUnfetch(p) }

type faultSmall struct {
	driver.BufferReceiver
	f *faults
}

func (i *faultSmall) SendPost(p *driver.Packet) error {
	if refuse := i.f.small.Load(); refuse != nil {
		if err := (*refuse)(header.Kind(p.IOV[0][0])); err != nil {
			return err
		}
	}
	return i.BufferReceiver.SendPost(p)
}

func (i *faultSmall) SendPoll(p *driver.Packet) (bool, error) {
	if i.f.holdSends.Load() {
		return false, nil
	}
	return i.BufferReceiver.SendPoll(p)
}

func (i *faultSmall) RecvPoll(p *driver.Packet) (bool, error) {
	i.f.polls.Add(1)
	for start := time.Now(); time.Since(start) < time.Duration(i.f.pollTime.Load()); {
	}
	done, err := i.BufferReceiver.RecvPoll(p)
	if done && err == nil && i.f.loseBye.Load() && header.Kind(p.Buf[0]) == header.Bye {
		_ = i.RecvBufRelease(p)
		return true, driver.ErrBroken
	}
	return done, err
}

// oneSided has the methods of driver.OneSided beside those of an instance.
type oneSided interface {
	Import(key []byte) (driver.RemoteRegion, error)
	PutPost(*driver.Op) error
	GetPost(*driver.Op) error
	AtomicPost(*driver.Op) error
	OpPoll(*driver.Op) (bool, error)
	Flush(context.Context) error
	Fence() error
}

type faultLarge struct {
	driver.Prefetcher
	oneSided
	f     *faults
	probe *driver.Packet // a receive that ends with the connection
}

func (i *faultLarge) SendPoll(p *driver.Packet) (bool, error) {
	if !i.f.holdLarge.Load() {
		return i.Prefetcher.SendPoll(p)
	}
	i.f.held.Add(1)
	if i.probe == nil {
		i.probe = &driver.Packet{IOV: [][]byte{make([]byte, 1)}}
		if err := i.RecvPost(i.probe); err != nil {
			panic(err)
		}
	}
	if over, _ := i.RecvPoll(i.probe); !over {
		return false, nil
	}
	i.f.holdLarge.Store(false)
	return i.Prefetcher.SendPoll(p)
}

func (i *faultLarge) SendPost(p *driver.Packet) error {
	if refuse := i.f.large.Load(); refuse != nil {
		if err := (*refuse)(); err != nil {
			return err
		}
	}
	return i.Prefetcher.SendPost(p)
}

func (i *faultLarge) RecvPost(p *driver.Packet) error {
	if i.f.noRoom.Load() {
		i.f.refused.Add(1)
		return driver.ErrBusy
	}
	return i.Prefetcher.RecvPost(p)
}

func (i *faultLarge) RecvRdvUpdate(*driver.Packet) ([]byte, error) { return nil, nil }

func (i *faultLarge) SendRdvUpdate(_ *driver.Packet, b []byte) error {
	if i.f.onUpdate != nil {
		i.f.onUpdate(b)
	}
	return nil
}

var registerFaultDriver = sync.OnceFunc(func() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(faultDriver{d})
})

// deafDriver is shm without word of connect requests: sessions send theirs themselves, as over afxdp and verbs. It exists
// while useDeaf is set: sessions that name no driver would choose it.
type deafDriver struct{ driver.Driver }

var useDeaf atomic.Bool

func (deafDriver) Name() string { return "deaf" }

func (d deafDriver) Query(h driver.Hints) (driver.NIC, error) {
	if !useDeaf.Load() {
		return nil, &driver.UnavailableError{Driver: "deaf", Reason: "no test uses it", Absent: true}
	}
	n, err := d.Driver.Query(h)
	return deafNIC{n}, err
}

type deafNIC struct{ driver.NIC }

func (n deafNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	return struct{ driver.Context }{c}, err
}

var registerDeafDriver = sync.OnceFunc(func() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(deafDriver{d})
})

// refuse has packets of a kind be refused on the small track, or of all kinds.
func (f *faults) refuse(err error, kinds ...header.Kind) {
	r := func(kind header.Kind) error {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			return err
		}
		return nil
	}
	f.small.Store(&r)
}

// faultPair returns two connected ranks over the driver.
func faultPair(t *testing.T, rails []session.Rail, change func(*session.Config)) ([]*session.Session, [2]*faults) {
	t.Helper()
	registerFaultDriver()
	rankFaults = [2]*faults{{}, {}}
	s := joinAll(t, 2, func(_ int, c *session.Config) {
		if c.Rails = rails; rails == nil {
			c.Rails = []session.Rail{{Driver: "faulty"}}
		}
		if change != nil {
			change(c)
		}
	})
	transfer(t, s[0], s[1], 10)
	transfer(t, s[1], s[0], 10)
	return s, rankFaults
}
