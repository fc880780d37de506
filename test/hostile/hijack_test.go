//go:build linux

package hostile

import (
	"bytes"
	"context"
	"sync"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// The flooder's session runs over a driver of its own: shm, under another name, which can be cut off. From then on the
// session hears nothing and says nothing, and the flooder has the connection for itself.

const (
	trueName   = "shm"
	hijackName = "shd" // as long, so that cards can be changed
)

// rename changes names of drivers in a business card, and proves the secret again, which all ranks have.
func rename(card []byte, from, to string) []byte {
	long := func(s string) []byte { return append([]byte{byte(len(s)), 0}, s...) }
	body := bytes.ReplaceAll(card[:len(card)-handshake.MACSize], long(from), long(to))
	key, err := handshake.NewKey(loneJob{}.Secret())
	if err != nil {
		panic(err)
	}
	mac := key.MAC("bywash session card", body)
	return append(body, mac[:]...)
}

// wire is the small track of the only connection.
type wire struct {
	mu    sync.Mutex
	taken bool
	raw   driver.Instance
}

// use has f called with the connection by one goroutine at a time; the session's is turned away once it is taken.
func (w *wire) use(f func()) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return false
	}
	f()
	return true
}

// cut takes the connection away from the session.
func (w *wire) cut() driver.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = true
	return w.raw
}

type hijackDriver struct {
	driver.Driver
	w *wire
}

// registerHijack registers the driver.
func registerHijack() (*wire, error) {
	d, err := driver.Lookup(trueName)
	if err != nil {
		return nil, err
	}
	w := new(wire)
	driver.Register(&hijackDriver{d, w})
	return w, nil
}

func (d *hijackDriver) Name() string { return hijackName }

func (d *hijackDriver) Query(h driver.Hints) (driver.NIC, error) {
	n, err := d.Driver.Query(h)
	if err != nil || h.Track != driver.Small {
		return n, err
	}
	return &hijackNIC{n, d.w}, nil
}

type hijackNIC struct {
	driver.NIC
	w *wire
}

func (n *hijackNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return &hijackContext{Context: c, w: n.w, known: map[driver.Instance]driver.Instance{}}, nil
}

type hijackContext struct {
	driver.Context
	w     *wire
	mu    sync.Mutex
	known map[driver.Instance]driver.Instance
}

func (c *hijackContext) ConnectRequests(dst []uint64) []uint64 {
	return c.Context.(driver.ConnectRequestReceiver).ConnectRequests(dst)
}
func (c *hijackContext) OnConnectRequest(f func()) {
	c.Context.(driver.ConnectRequestReceiver).OnConnectRequest(f)
}
func (c *hijackContext) RecvCancelAny() error { return c.Context.(driver.Prober).RecvCancelAny() }

func (c *hijackContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	d := &hijackSmall{i.(driver.BufferReceiver), c.w}
	c.mu.Lock()
	c.known[i] = d
	c.mu.Unlock()
	c.w.mu.Lock()
	c.w.raw = i
	c.w.mu.Unlock()
	return d, nil
}

func (c *hijackContext) named(i driver.Instance, err error) (driver.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.known[i]; d != nil {
		i = d
	}
	return i, err
}

func (c *hijackContext) RecvProbeAny() (i driver.Instance, err error) {
	if !c.w.use(func() { i, err = c.named(c.Context.(driver.Prober).RecvProbeAny()) }) {
		return nil, driver.ErrAgain
	}
	return i, err
}

func (c *hijackContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	if !c.w.use(func() {}) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.named(c.Context.(driver.Prober).RecvWaitAny(ctx))
}

// hijackSmall is the session's end of the connection.
type hijackSmall struct {
	driver.BufferReceiver
	w *wire
}

func (d *hijackSmall) SendPost(p *driver.Packet) (err error) {
	if !d.w.use(func() { err = d.BufferReceiver.SendPost(p) }) {
		return driver.ErrBusy
	}
	return err
}

func (d *hijackSmall) SendPoll(p *driver.Packet) (done bool, err error) {
	d.w.use(func() { done, err = d.BufferReceiver.SendPoll(p) })
	return done, err
}

func (d *hijackSmall) RecvPoll(p *driver.Packet) (done bool, err error) {
	d.w.use(func() { done, err = d.BufferReceiver.RecvPoll(p) })
	return done, err
}

func (d *hijackSmall) RecvBufRelease(p *driver.Packet) (err error) {
	d.w.use(func() { err = d.BufferReceiver.RecvBufRelease(p) })
	return err
}

var (
	_ driver.Prober                 = (*hijackContext)(nil)
	_ driver.ConnectRequestReceiver = (*hijackContext)(nil)
	_ driver.BufferReceiver         = (*hijackSmall)(nil)
)
