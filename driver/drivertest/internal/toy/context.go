//go:build linux

package toy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"golang.org/x/sys/unix"
)

// nicContext is what contexts of both tracks have. Mu is taken before that of a connection.
type nicContext struct {
	kit.Context[conn]
	nic   *nic
	fault string
	key   *kit.Key // of the secret
	ln    *net.UnixListener
	tasks sync.WaitGroup
	waits kit.Watch

	refused, badFrames atomic.Uint64
	refuses            atomic.Bool

	// Guarded by Mu.
	waiting map[uint64][]*conn // by incarnation of the peer that will dial
	arrived map[uint64][]dialed
	regions map[uint64]*region
	regionN uint64
}

// smallContext adds what only the small track has.
type smallContext struct {
	*nicContext
	kit.Prober[conn]
}

func (c *nicContext) open(a driver.Attributes) error {
	c.waiting = make(map[uint64][]*conn)
	c.arrived = make(map[uint64][]dialed)
	c.regions = make(map[uint64]*region)
	self := driver.Context(c)
	if c.nic.prop.Track == driver.Small {
		self = smallContext{c, c.Prober()}
	}
	c.Init(c, func(n *conn) *kit.Conn { return &n.Conn }, self, c.nic.prop, version, a)
	c.waits = kit.Watch{Device: wakeups{}, Never: true}
	c.Anyone.Watch = &c.waits
	switch c.fault {
	case "wrong-properties":
		c.Props.Capabilities.MaxMessage++
	case "same-incarnation":
		c.Incarnation = uint64(os.Getpid())
	}
	path := filepath.Join(c.nic.dir, fmt.Sprintf("%d-%016x.sock", os.Getpid(), random()))
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(c.fault != "leak-file")
	c.ln = ln
	if err := c.Publish(path, c.nic.dir); err != nil {
		_ = ln.Close()
		return err
	}
	c.leak()
	c.tasks.Go(c.accept)
	return nil
}

// wakeups is a device without events: the goroutines of connections wake the waiters.
type wakeups struct{}

func (wakeups) Arm() uint64        { return 0 }
func (wakeups) Sleep(uint64, bool) {}
func (wakeups) Wake()              {}
func (wakeups) Call()              {}

// leak makes the faults with that name.
func (c *nicContext) leak() {
	switch c.fault {
	case "leak-fd":
		_, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "leak-goroutine":
		go func() { select {} }()
	case "leak-mapping":
		for i := range 8 { // protections differ, so that the kernel does not merge them
			_, _ = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ*(i&1), unix.MAP_PRIVATE|unix.MAP_ANON)
		}
	}
}

// Drain implements kit.ContextHooks: the goroutines of connections announce messages.
func (c *nicContext) Drain() bool { return false }

func (c *nicContext) Reach(to driver.URL) error {
	if c.fault == "reaches-none" && to.Incarnation != c.Incarnation {
		return driver.ErrUnreachable
	}
	return nil
}

func (c *nicContext) Count(to *driver.Counters) {
	to.Refused += c.refused.Load()
	to.BadFrames += c.badFrames.Load()
}

func (c *nicContext) Release() error {
	c.Mu.Lock()
	for _, q := range c.arrived {
		for _, d := range q {
			d.conn.Write([]byte{replyClosed})
			d.conn.Close()
		}
	}
	c.arrived = nil
	c.Mu.Unlock()
	c.ln.Close()
	c.tasks.Wait()
	return nil
}

// From here on methods add faults to those of the kit.

func (c *nicContext) URL() string {
	if c.fault == "url-with-space" {
		return c.Context.URL() + " "
	}
	return c.Context.URL()
}

func (c *nicContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	switch {
	case c.fault == "any-version" && errors.Is(err, driver.ErrVersion):
		if u, err := driver.ParseURL(url, driver.MaxURL); err == nil {
			u.Version = version
			return c.Context.Connect(u.String())
		}
	case c.fault == "bare-errors" && err != nil:
		return nil, errors.Unwrap(err)
	case c.fault == "connect-blocks" && err == nil:
		_ = i.ConnectWait(context.Background())
	}
	return i, err
}

func (c *nicContext) Reaches(url string) error {
	err := c.Context.Reaches(url)
	switch {
	case c.fault == "reaches-all-urls" && errors.Is(err, driver.ErrInvalid):
		return nil
	case c.fault == "reaches-while-open" && c.IsClosed():
		return driver.ErrClosed
	}
	return err
}

func (c *nicContext) Counters(to *driver.Counters) {
	sent, received := to.MessagesSent, to.MessagesReceived
	c.Context.Counters(to)
	if c.fault == "frozen-counters" {
		to.MessagesSent, to.MessagesReceived = sent, received
	}
}

func (c *nicContext) Close() error {
	if c.fault == "close-twice" && c.IsClosed() {
		return nil
	}
	return c.Context.Close()
}

func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if n := c.misnamed(); n != nil {
		return n.Self, nil
	}
	for {
		i, err := c.Prober.RecvProbeAny()
		if err != nil {
			return nil, err
		}
		n := &i.(*small).conn
		switch {
		case c.fault == "probe-misses-death" && !n.HasMessage():
		case c.fault == "probe-forgets" && !n.fresh.Swap(false) && n.HasMessage():
		default:
			return i, nil
		}
	}
}

// misnamed is the connection that a faulty probe names.
func (c smallContext) misnamed() *conn {
	if c.fault != "unfair-probe" && c.fault != "probe-twice" {
		return nil
	}
	for num := range uint32(1024) {
		n := c.Conns.At(num)
		if n != nil && n.HasMessage() && (c.fault == "probe-twice" || n.Claim()) {
			return n
		}
	}
	return nil
}

func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	for c.fault == "burn-cpu" && ctx.Err() == nil {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
	}
	i, err := c.Anyone.Wait(ctx, c)
	if c.fault == "wait-any-late" && err == nil {
		time.Sleep(time.Second)
	}
	return i, err
}

func (c smallContext) RecvCancelAny() error {
	if c.fault == "cancel-any-ignored" && !c.IsClosed() {
		return nil
	}
	return c.Prober.RecvCancelAny()
}
