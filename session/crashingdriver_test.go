//go:build linux && !(386 || arm || mips || mipsle)

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

// crashPoint is when a process kills itself: at the given occurrence of the named moment. If that never comes, the
// process crashes after maxMoments moments of any name.
type crashPoint struct {
	moment string
	times  atomic.Int64
	all    atomic.Int64
}

// maxMoments is after how many moments a rank crashes at the latest.
const maxMoments = 200_000

func (f *crashPoint) at(moment string) {
	if f.all.Add(1) == maxMoments || moment == f.moment && f.times.Add(-1) == 0 {
		crash(moment)
	}
}

// crash prints the moment and kills the process with SIGKILL.
func crash(moment string) {
	fmt.Println(moment)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// crashingNames maps each driver to the name of its crashing variant. Both names have the same length, so that one can
// replace the other in a business card: peers see no difference.
var crashingNames = map[string]string{"shm": "shx", "afxdp": "afxdx"}

// registerCrashing registers the crashing variants of the drivers.
func registerCrashing(f *crashPoint) error {
	for name, other := range crashingNames {
		d, err := driver.Lookup(name)
		if err != nil {
			return err
		}
		driver.Register(&crashingDriver{d, other, f})
	}
	return nil
}

// crashingJob replaces driver names in cards: peers see the plain names, this process the crashing variants.
type crashingJob struct{ *folder }

func swapNames(card []byte, there bool) []byte {
	for name, other := range crashingNames {
		if !there {
			name, other = other, name
		}
		long := func(s string) []byte { return append([]byte{byte(len(s)), 0}, s...) }
		card = bytes.ReplaceAll(card, long(name), long(other))
	}
	return card
}

func (j crashingJob) Publish(ctx context.Context, card []byte) error {
	return j.folder.Publish(ctx, session.Reseal(swapNames(card, false), j.Secret()))
}

func (j crashingJob) Lookup(ctx context.Context, rank int) ([]byte, error) {
	b, err := j.folder.Lookup(ctx, rank)
	if err != nil {
		return nil, err
	}
	return session.Reseal(swapNames(b, true), j.Secret()), nil
}

type crashingDriver struct {
	driver.Driver
	name string
	f    *crashPoint
}

func (d *crashingDriver) Name() string { return d.name }

func (d *crashingDriver) Query(h driver.Hints) (driver.NIC, error) {
	n, err := d.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return &crashingNIC{n, d.f, h.Track}, nil
}

type crashingNIC struct {
	driver.NIC
	f     *crashPoint
	track driver.Track
}

func (n *crashingNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	m := &crashingContext{Context: c, f: n.f, track: n.track, known: map[driver.Instance]driver.Instance{}}
	if k, ok := c.(driver.ConnectRequestReceiver); ok {
		return &crashingRequestReceiver{m, k}, nil
	}
	return m, nil
}

// crashingContext is a context that can be probed, and may register memory.
type crashingContext struct {
	driver.Context
	f     *crashPoint
	track driver.Track
	mu    sync.Mutex
	known map[driver.Instance]driver.Instance
}

type crashingRequestReceiver struct {
	*crashingContext
	k driver.ConnectRequestReceiver
}

func (c *crashingRequestReceiver) ConnectRequests(dst []uint64) []uint64 {
	return c.k.ConnectRequests(dst)
}
func (c *crashingRequestReceiver) OnConnectRequest(f func()) { c.k.OnConnectRequest(f) }

func (c *crashingContext) Register(b []byte, a driver.Access) (driver.Region, error) {
	r, ok := c.Context.(driver.Registrar)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c.f.at("register")
	return r.Register(b, a)
}

func (c *crashingContext) Connect(url string) (driver.Instance, error) {
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
		s := &crashingSmall{x, c.f}
		if m = s; one != nil {
			m = &crashingSmallOneSided{s, crashingOneSided{one, c.f}}
		}
	default:
		l := &crashingLarge{prefetching(i), c.f}
		if m = l; one != nil {
			m = &crashingLargeOneSided{l, crashingOneSided{one, c.f}}
		}
	}
	c.mu.Lock()
	c.known[i] = m
	c.mu.Unlock()
	return m, nil
}

func (c *crashingContext) named(i driver.Instance, err error) (driver.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known[i]; m != nil {
		i = m
	}
	return i, err
}

func (c *crashingContext) RecvProbeAny() (driver.Instance, error) {
	return c.named(c.Context.(driver.Prober).RecvProbeAny())
}

func (c *crashingContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return c.named(c.Context.(driver.Prober).RecvWaitAny(ctx))
}

func (c *crashingContext) RecvCancelAny() error { return c.Context.(driver.Prober).RecvCancelAny() }

// crashingSmall can crash around messages of the session's protocol.
type crashingSmall struct {
	driver.BufferReceiver
	f *crashPoint
}

func (m *crashingSmall) ConnectWait(ctx context.Context) error {
	m.f.at("connect wait")
	err := m.BufferReceiver.ConnectWait(ctx)
	if err == nil {
		m.f.at("connected")
	}
	return err
}

func (m *crashingSmall) Disconnect() error {
	m.f.at("disconnect")
	return m.BufferReceiver.Disconnect()
}

func (m *crashingSmall) SendPost(p *driver.Packet) error {
	kind := header.Kind(p.IOV[0][0]).String()
	m.f.at(kind + " leaves")
	err := m.BufferReceiver.SendPost(p)
	if err == nil {
		m.f.at(kind + " left")
	}
	return err
}

func (m *crashingSmall) RecvPoll(p *driver.Packet) (bool, error) {
	done, err := m.BufferReceiver.RecvPoll(p)
	if done && err == nil {
		m.f.at(header.Kind(p.Buf[0]).String() + " came")
	}
	return done, err
}

// crashingLarge can crash around chunks.
type crashingLarge struct {
	driver.Prefetcher
	f *crashPoint
}

func (m *crashingLarge) SendPrefetch(p *driver.Packet) error {
	defer m.f.at("prefetched")
	return m.Prefetcher.SendPrefetch(p)
}

func (m *crashingLarge) SendPost(p *driver.Packet) error {
	m.f.at("chunk leaves")
	err := m.Prefetcher.SendPost(p)
	if err == nil {
		m.f.at("chunk under way")
	}
	return err
}

func (m *crashingLarge) SendPoll(p *driver.Packet) (bool, error) {
	done, err := m.Prefetcher.SendPoll(p)
	if done && err == nil {
		m.f.at("chunk sent")
	}
	return done, err
}

func (m *crashingLarge) RecvPost(p *driver.Packet) error {
	err := m.Prefetcher.RecvPost(p)
	if err == nil {
		m.f.at("chunk posted")
	}
	return err
}

func (m *crashingLarge) RecvPoll(p *driver.Packet) (bool, error) {
	done, err := m.Prefetcher.RecvPoll(p)
	if done && err == nil {
		m.f.at("chunk received")
	}
	return done, err
}

// crashingOneSided can crash around one-sided operations.
type crashingOneSided struct {
	one driver.OneSided
	f   *crashPoint
}

func (m crashingOneSided) Import(key []byte) (driver.RemoteRegion, error) {
	m.f.at("import")
	return m.one.Import(key)
}

func (m crashingOneSided) post(what string, post func(*driver.Op) error, o *driver.Op) error {
	m.f.at(what + " begins")
	err := post(o)
	if err == nil {
		m.f.at(what + " under way")
	}
	return err
}

func (m crashingOneSided) PutPost(o *driver.Op) error { return m.post("put", m.one.PutPost, o) }
func (m crashingOneSided) GetPost(o *driver.Op) error { return m.post("get", m.one.GetPost, o) }
func (m crashingOneSided) AtomicPost(o *driver.Op) error {
	return m.post("atomic", m.one.AtomicPost, o)
}
func (m crashingOneSided) Flush(c context.Context) error { return m.one.Flush(c) }
func (m crashingOneSided) Fence() error                  { return m.one.Fence() }
func (m crashingOneSided) OpPoll(o *driver.Op) (bool, error) {
	done, err := m.one.OpPoll(o)
	if done && err == nil {
		m.f.at("operation done")
	}
	return done, err
}

type crashingSmallOneSided struct {
	*crashingSmall
	crashingOneSided
}

type crashingLargeOneSided struct {
	*crashingLarge
	crashingOneSided
}

var (
	_ driver.Prober                 = (*crashingContext)(nil)
	_ driver.Registrar              = (*crashingContext)(nil)
	_ driver.ConnectRequestReceiver = (*crashingRequestReceiver)(nil)
	_ driver.BufferReceiver         = (*crashingSmallOneSided)(nil)
	_ driver.OneSided               = (*crashingSmallOneSided)(nil)
	_ driver.Prefetcher             = (*crashingLargeOneSided)(nil)
	_ driver.OneSided               = (*crashingLargeOneSided)(nil)
)
