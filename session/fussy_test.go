package session_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// fuss is what the driver "fussy", which is shm otherwise, makes of one rank's sends.
type fuss struct {
	small atomic.Pointer[func(header.Kind) error] // refuses packets of the small track
	large atomic.Pointer[func() error]            // and of the large one
	hears func([]byte)                            // is told the updates of sends on it
	hold  atomic.Bool                             // packets of the small track are not given back
}

// fusses are the ranks', while a test runs.
var fusses [2]*fuss

type fussyDriver struct{ driver.Driver }

func (fussyDriver) Name() string { return "fussy" }

func (d fussyDriver) Query(h driver.Hints) (driver.NIC, error) {
	n, err := d.Driver.Query(h)
	return fussyNIC{n}, err
}

type fussyNIC struct{ driver.NIC }

func (n fussyNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return fussyContext{c.(driver.ConnectRequestReceiver), c.(driver.Registrar), fusses[a.Rank]}, nil
}

type fussyContext struct {
	driver.ConnectRequestReceiver
	r driver.Registrar
	f *fuss
}

func (c fussyContext) Register(b []byte, a driver.Access) (driver.Region, error) {
	return c.r.Register(b, a)
}

func (c fussyContext) Reaches(url string) error {
	return c.ConnectRequestReceiver.(driver.Reacher).Reaches(url)
}

func (c fussyContext) Domain() string { return c.ConnectRequestReceiver.(driver.Reacher).Domain() }

func (c fussyContext) Connect(url string) (driver.Instance, error) {
	i, err := c.ConnectRequestReceiver.Connect(url)
	switch x := i.(type) {
	case driver.BufferReceiver:
		return &fussySmall{x, c.f}, err
	case driver.Prefetcher:
		return &fussyLarge{x, i.(oneSided), c.f}, err
	}
	return i, err
}

type fussySmall struct {
	driver.BufferReceiver
	f *fuss
}

func (i *fussySmall) SendPost(p *driver.Packet) error {
	if refuse := i.f.small.Load(); refuse != nil {
		if err := (*refuse)(header.Kind(p.IOV[0][0])); err != nil {
			return err
		}
	}
	return i.BufferReceiver.SendPost(p)
}

func (i *fussySmall) SendPoll(p *driver.Packet) (bool, error) {
	if i.f.hold.Load() {
		return false, nil
	}
	return i.BufferReceiver.SendPoll(p)
}

// oneSided is what an instance has besides as a driver.OneSided.
type oneSided interface {
	Import(key []byte) (driver.RemoteRegion, error)
	PutPost(*driver.Op) error
	GetPost(*driver.Op) error
	AtomicPost(*driver.Op) error
	OpPoll(*driver.Op) (bool, error)
	Flush(context.Context) error
	Fence() error
}

type fussyLarge struct {
	driver.Prefetcher
	oneSided
	f *fuss
}

func (i *fussyLarge) SendPost(p *driver.Packet) error {
	if refuse := i.f.large.Load(); refuse != nil {
		if err := (*refuse)(); err != nil {
			return err
		}
	}
	return i.Prefetcher.SendPost(p)
}

func (i *fussyLarge) RecvRdvUpdate(*driver.Packet) ([]byte, error) { return nil, nil }

func (i *fussyLarge) SendRdvUpdate(_ *driver.Packet, b []byte) error {
	if i.f.hears != nil {
		i.f.hears(b)
	}
	return nil
}

var registerFussy = sync.OnceFunc(func() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(fussyDriver{d})
})

// refuse has packets of a kind be refused on the small track, or of all kinds.
func (f *fuss) refuse(err error, kinds ...header.Kind) {
	r := func(kind header.Kind) error {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			return err
		}
		return nil
	}
	f.small.Store(&r)
}

// fussyPair are two ranks over the driver, connected.
func fussyPair(t *testing.T, rails []session.Rail, change func(*session.Config)) ([]*session.Session, [2]*fuss) {
	t.Helper()
	registerFussy()
	fusses = [2]*fuss{{}, {}}
	s := joinAll(t, 2, func(_ int, c *session.Config) {
		if c.Rails = rails; rails == nil {
			c.Rails = []session.Rail{{Driver: "fussy"}}
		}
		if change != nil {
			change(c)
		}
	})
	transfer(t, s[0], s[1], 10)
	transfer(t, s[1], s[0], 10)
	return s, fusses
}
