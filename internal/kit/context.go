package kit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Context is a NIC that was opened. A driver embeds it in its own type of context, and gets the methods of
// [driver.Context]; [Context.Prober] has those of [driver.Prober]. C is the driver's type of connection, which embeds
// [Conn]. Init begins it.
type Context[C any] struct {
	Props       driver.Properties
	Incarnation uint64

	// Anyone are the waits for any connection. The driver sets its Watch.
	Anyone AnyWaits

	// Mu guards Conns (see [Connections]) and any further state of the driver.
	Mu    sync.Mutex
	Conns Connections[C]

	hooks   ContextHooks[C]
	base    func(*C) *Conn
	self    driver.Context
	version int
	url     string
	domain  string
	closed  atomic.Bool
}

// ContextHooks has the driver's part of a context.
type ContextHooks[C any] interface {
	// Dial makes a connection with number num to the context that published url, which was parsed: it calls
	// [Context.Add], and begins to connect. It does not block. Errors need not name driver, device or peer. The
	// caller holds Mu.
	Dial(num uint32, url string, to driver.URL) (*C, error)

	// Reach returns why this context and the one that published url cannot be connected, as far as both urls show:
	// driver.ErrUnreachable with the reason, or driver.ErrInvalid for a malformed one; see [driver.Reacher]. Any
	// goroutine may call it.
	Reach(to driver.URL) error

	// Drain takes what the device has, for whatever connection, unless another goroutine does. It reports whether
	// there may have been something. Any goroutine may call it.
	Drain() bool

	// Count adds what the driver counts beside its connections. The caller holds Mu.
	Count(to *driver.Counters)

	// Release gives everything back. It is called once, by Close; all connections were shut, and waits were woken.
	Release() error
}

// Init begins the context of a NIC with props that was opened with a; version is that of the driver's urls. Base is
// where a connection has its part of the kit. Self is the context that users have: it has the methods of its track.
func (c *Context[C]) Init(hooks ContextHooks[C], base func(*C) *Conn, self driver.Context,
	props driver.Properties, version int, a driver.Attributes) {
	c.hooks, c.self, c.Props, c.version = hooks, self, props, version
	c.Incarnation = NewIncarnation(a)
	c.base = base
	c.Conns.Init(func(n *C) *Life { return &base(n).Life })
}

// Publish makes the url, whose last part the driver defines, and gives the context its domain (see
// [driver.Reacher]). ErrInvalid if the url is too long.
func (c *Context[C]) Publish(rest, domain string) error {
	u := driver.URL{Driver: c.Props.Driver, Version: c.version, Incarnation: c.Incarnation, Rest: rest}.String()
	if len(u) > driver.MaxURL {
		return fmt.Errorf("%w: url of %d bytes, limit is %d", driver.ErrInvalid, len(u), driver.MaxURL)
	}
	c.url, c.domain = u, domain
	return nil
}

// Properties implements driver.Context.
func (c *Context[C]) Properties() *driver.Properties { return &c.Props }

// URL implements driver.Context.
func (c *Context[C]) URL() string { return c.url }

// Domain implements driver.Reacher.
func (c *Context[C]) Domain() string { return c.domain }

// Reaches implements driver.Reacher.
func (c *Context[C]) Reaches(url string) error {
	to, err := ParseURL(c.Props.Driver, c.version, url, driver.MaxURL)
	if err == nil {
		err = c.hooks.Reach(to)
	}
	if err != nil {
		return &driver.Error{Driver: c.Props.Driver, Peer: url, Op: "reach", Err: err}
	}
	return nil
}

// Self is the context that users have.
func (c *Context[C]) Self() driver.Context { return c.self }

// IsClosed reports whether Close was called. With Mu held, it does not change.
func (c *Context[C]) IsClosed() bool { return c.closed.Load() }

// Connect implements driver.Context.
func (c *Context[C]) Connect(url string) (driver.Instance, error) {
	to, err := ParseURL(c.Props.Driver, c.version, url, driver.MaxURL)
	if err != nil {
		return nil, c.fault("connect", err)
	}
	n, err := c.connect(url, to)
	if err != nil {
		return nil, &driver.Error{
			Driver: c.Props.Driver, Peer: url, Op: "connect", Err: fmt.Errorf("%s: %w", c.Props.Device, err),
		}
	}
	return c.base(n).Self, nil
}

func (c *Context[C]) connect(url string, to driver.URL) (*C, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.IsClosed() {
		return nil, driver.ErrClosed
	}
	num, err := c.Conns.Free()
	if err != nil {
		return nil, err
	}
	n, err := c.hooks.Dial(num, url, to)
	if err == nil {
		c.Conns.Open(n)
	}
	return n, err
}

// Add begins a connection and gives it its number: from here on completions may name it. The device calls hooks, users
// have self. Dial calls it; if Dial then fails it calls Conns.Put(num, nil).
func (c *Context[C]) Add(n *C, num uint32, url string, hooks ConnHooks, self driver.Instance) {
	b := c.base(n)
	b.Life.Init(c.Props.Driver, url, num, &c.Conns.Ready, &c.Anyone)
	b.Self, b.hooks, b.device = self, hooks, c.Props.Device
	b.Waits = c.Anyone.Watch
	c.Conns.Put(num, n)
}

// Counters implements driver.Context.
func (c *Context[C]) Counters(to *driver.Counters) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Conns.Counters(to)
	to.Waits += c.Anyone.Slept()
	c.hooks.Count(to)
}

// Close implements driver.Context.
func (c *Context[C]) Close() error {
	c.Mu.Lock()
	again := c.closed.Swap(true)
	open := c.Conns.List()
	c.Mu.Unlock()
	if again {
		return c.fault("close", driver.ErrClosed)
	}
	driver.Closed(c.self)
	for _, n := range open {
		c.base(n).Shut()
	}
	c.Anyone.Wake(false)
	if err := c.hooks.Release(); err != nil {
		return c.fault("close", err)
	}
	return nil
}

func (c *Context[C]) fault(op string, err error) error {
	return &driver.Error{Driver: c.Props.Driver, Op: op, Err: err}
}

// Prober has the methods of [driver.Prober] for a context. A driver embeds it, beside its context, in the type that
// users of its small track have.
type Prober[C any] struct{ context *Context[C] }

// Prober returns the prober of this context.
func (c *Context[C]) Prober() Prober[C] { return Prober[C]{c} }

// RecvProbeAny implements driver.Prober.
func (p Prober[C]) RecvProbeAny() (driver.Instance, error) {
	c := p.context
	if n := c.Conns.TakeReady(); n != nil {
		return c.base(n).Self, nil
	}
	if c.hooks.Drain() {
		if n := c.Conns.TakeReady(); n != nil {
			return c.base(n).Self, nil
		}
	}
	return nil, p.Nothing()
}

// Nothing returns the result of a probe that has found nothing.
func (p Prober[C]) Nothing() error {
	if p.context.IsClosed() {
		return p.context.fault("probe", driver.ErrClosed)
	}
	return driver.ErrAgain
}

// RecvWaitAny implements driver.Prober.
func (p Prober[C]) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return p.context.Anyone.Wait(ctx, p.context.self.(probes))
}

// RecvCancelAny implements driver.Prober.
func (p Prober[C]) RecvCancelAny() error {
	if p.context.IsClosed() {
		return p.context.fault("cancel", driver.ErrClosed)
	}
	p.context.Anyone.Wake(true)
	return nil
}
