//go:build linux

package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// fate is when a process kills itself: the moment that has this name comes for that time. Moments
// that come often stand in for one that never does.
type fate struct {
	moment string
	times  atomic.Int64
	all    atomic.Int64
}

// fateMost is how many moments a rank lives at most.
const fateMost = 200_000

func (f *fate) at(moment string) {
	if f.all.Add(1) == fateMost || moment == f.moment && f.times.Add(-1) == 0 {
		die(moment)
	}
}

// die is kill -9, and says when.
func die(moment string) {
	fmt.Println(moment)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// mortalNames are drivers under which the same ones are registered that have a fate. They are as long, so that a
// name in a business card can be exchanged for the other: no peer sees a difference.
var mortalNames = map[string]string{"shm": "shx", "afxdp": "afxdx"}

// registerMortal makes the drivers of a process mortal ones.
func registerMortal(f *fate) error {
	for name, other := range mortalNames {
		d, err := driver.Lookup(name)
		if err != nil {
			return err
		}
		driver.Register(&mortalDriver{d, other, f})
	}
	return nil
}

// mortalJob is a job in whose cards this process's drivers have their other names.
type mortalJob struct{ *folder }

func exchangeNames(card []byte, there bool) []byte {
	for name, other := range mortalNames {
		if !there {
			name, other = other, name
		}
		long := func(s string) []byte { return append([]byte{byte(len(s)), 0}, s...) }
		card = bytes.ReplaceAll(card, long(name), long(other))
	}
	return card
}

func (j mortalJob) Publish(ctx context.Context, card []byte) error {
	return j.folder.Publish(ctx, session.Reseal(exchangeNames(card, false), j.Secret()))
}

func (j mortalJob) Lookup(ctx context.Context, rank int) ([]byte, error) {
	b, err := j.folder.Lookup(ctx, rank)
	if err != nil {
		return nil, err
	}
	return session.Reseal(exchangeNames(b, true), j.Secret()), nil
}

type mortalDriver struct {
	driver.Driver
	name string
	f    *fate
}

func (d *mortalDriver) Name() string { return d.name }

func (d *mortalDriver) Query(h driver.Hints) (driver.NIC, error) {
	n, err := d.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return &mortalNIC{n, d.f, h.Track}, nil
}

type mortalNIC struct {
	driver.NIC
	f     *fate
	track driver.Track
}

func (n *mortalNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	m := &mortalContext{Context: c, f: n.f, track: n.track, known: map[driver.Instance]driver.Instance{}}
	if k, ok := c.(driver.ConnectRequestReceiver); ok {
		return &mortalRequestReceiver{m, k}, nil
	}
	return m, nil
}

// mortalContext is a context that can be probed, and may register memory.
type mortalContext struct {
	driver.Context
	f     *fate
	track driver.Track
	mu    sync.Mutex
	known map[driver.Instance]driver.Instance
}

type mortalRequestReceiver struct {
	*mortalContext
	k driver.ConnectRequestReceiver
}

func (c *mortalRequestReceiver) ConnectRequests(dst []uint64) []uint64 {
	return c.k.ConnectRequests(dst)
}
func (c *mortalRequestReceiver) OnConnectRequest(f func()) { c.k.OnConnectRequest(f) }

func (c *mortalContext) Register(b []byte, a driver.Access) (driver.Region, error) {
	r, ok := c.Context.(driver.Registrar)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c.f.at("register")
	return r.Register(b, a)
}

func (c *mortalContext) Connect(url string) (driver.Instance, error) {
	c.f.at("connect")
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	c.f.at("connecting")
	var m driver.Instance
	one, _ := i.(driver.OneSided)
	switch x := i.(type) {
	case driver.BufferReceiver:
		s := &mortalSmall{x, c.f}
		if m = s; one != nil {
			m = &mortalSmallOne{s, mortalOne{one, c.f}}
		}
	case driver.Prefetcher:
		l := &mortalLarge{x, c.f}
		if m = l; one != nil {
			m = &mortalLargeOne{l, mortalOne{one, c.f}}
		}
	default:
		return nil, fmt.Errorf("an instance of %s is neither", i.Path())
	}
	c.mu.Lock()
	c.known[i] = m
	c.mu.Unlock()
	return m, nil
}

func (c *mortalContext) named(i driver.Instance, err error) (driver.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known[i]; m != nil {
		i = m
	}
	return i, err
}

func (c *mortalContext) RecvProbeAny() (driver.Instance, error) {
	return c.named(c.Context.(driver.Prober).RecvProbeAny())
}

func (c *mortalContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return c.named(c.Context.(driver.Prober).RecvWaitAny(ctx))
}

func (c *mortalContext) RecvCancelAny() error { return c.Context.(driver.Prober).RecvCancelAny() }

// mortalSmall dies around messages of the session's protocol.
type mortalSmall struct {
	driver.BufferReceiver
	f *fate
}

func (m *mortalSmall) ConnectWait(ctx context.Context) error {
	m.f.at("connect wait")
	err := m.BufferReceiver.ConnectWait(ctx)
	if err == nil {
		m.f.at("connected")
	}
	return err
}

func (m *mortalSmall) Disconnect() error {
	m.f.at("disconnect")
	return m.BufferReceiver.Disconnect()
}

func (m *mortalSmall) SendPost(p *driver.Packet) error {
	kind := header.Kind(p.IOV[0][0]).String()
	m.f.at(kind + " leaves")
	err := m.BufferReceiver.SendPost(p)
	if err == nil {
		m.f.at(kind + " left")
	}
	return err
}

func (m *mortalSmall) RecvPoll(p *driver.Packet) (bool, error) {
	done, err := m.BufferReceiver.RecvPoll(p)
	if done && err == nil {
		m.f.at(header.Kind(p.Buf[0]).String() + " came")
	}
	return done, err
}

// mortalLarge dies around chunks.
type mortalLarge struct {
	driver.Prefetcher
	f *fate
}

func (m *mortalLarge) SendPrefetch(p *driver.Packet) error {
	defer m.f.at("prefetched")
	return m.Prefetcher.SendPrefetch(p)
}

func (m *mortalLarge) SendPost(p *driver.Packet) error {
	m.f.at("chunk leaves")
	err := m.Prefetcher.SendPost(p)
	if err == nil {
		m.f.at("chunk under way")
	}
	return err
}

func (m *mortalLarge) SendPoll(p *driver.Packet) (bool, error) {
	done, err := m.Prefetcher.SendPoll(p)
	if done && err == nil {
		m.f.at("chunk sent")
	}
	return done, err
}

func (m *mortalLarge) RecvPost(p *driver.Packet) error {
	err := m.Prefetcher.RecvPost(p)
	if err == nil {
		m.f.at("chunk posted")
	}
	return err
}

func (m *mortalLarge) RecvPoll(p *driver.Packet) (bool, error) {
	done, err := m.Prefetcher.RecvPoll(p)
	if done && err == nil {
		m.f.at("chunk received")
	}
	return done, err
}

// mortalOne dies around one-sided operations.
type mortalOne struct {
	one driver.OneSided
	f   *fate
}

func (m mortalOne) Import(key []byte) (driver.RemoteRegion, error) {
	m.f.at("import")
	return m.one.Import(key)
}

func (m mortalOne) post(what string, post func(*driver.Op) error, o *driver.Op) error {
	m.f.at(what + " begins")
	err := post(o)
	if err == nil {
		m.f.at(what + " under way")
	}
	return err
}

func (m mortalOne) PutPost(o *driver.Op) error    { return m.post("put", m.one.PutPost, o) }
func (m mortalOne) GetPost(o *driver.Op) error    { return m.post("get", m.one.GetPost, o) }
func (m mortalOne) AtomicPost(o *driver.Op) error { return m.post("atomic", m.one.AtomicPost, o) }
func (m mortalOne) Flush(c context.Context) error { return m.one.Flush(c) }
func (m mortalOne) Fence() error                  { return m.one.Fence() }
func (m mortalOne) OpPoll(o *driver.Op) (bool, error) {
	done, err := m.one.OpPoll(o)
	if done && err == nil {
		m.f.at("operation done")
	}
	return done, err
}

type mortalSmallOne struct {
	*mortalSmall
	mortalOne
}

type mortalLargeOne struct {
	*mortalLarge
	mortalOne
}

var (
	_ driver.Prober                 = (*mortalContext)(nil)
	_ driver.Registrar              = (*mortalContext)(nil)
	_ driver.ConnectRequestReceiver = (*mortalRequestReceiver)(nil)
	_ driver.BufferReceiver         = (*mortalSmallOne)(nil)
	_ driver.OneSided               = (*mortalSmallOne)(nil)
	_ driver.Prefetcher             = (*mortalLargeOne)(nil)
	_ driver.OneSided               = (*mortalLargeOne)(nil)
)
