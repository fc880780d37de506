package toy

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"golang.org/x/sys/unix"
)

// nicContext is what contexts of both tracks have.
type nicContext struct {
	nic   *nic
	fault string
	key   *kit.Key // of the secret
	prop  driver.Properties
	inc   uint64
	url   string
	path  string
	self  driver.Context
	ln    *net.UnixListener
	tasks sync.WaitGroup
	n     stats

	mu      sync.Mutex // taken after an instance's
	closed  bool
	grudge  bool
	insts   map[*instance]struct{}
	waiting map[uint64][]*instance // by incarnation of the peer that will dial
	arrived map[uint64][]dialed
	regions map[uint64]*region
	regionN uint64
	ready   []*instance
	waiters map[*waiter]struct{}
}

type stats struct {
	sent, received, bytesSent, bytesReceived atomic.Uint64
	puts, gets, atomics                      atomic.Uint64
	busy, waits, truncated, canceled         atomic.Uint64
	connects, disconnects, broken, refused   atomic.Uint64
	badFrames                                atomic.Uint64
}

// smallContext adds what only the small track has.
type smallContext struct{ *nicContext }

func (c *nicContext) open() error {
	c.insts = make(map[*instance]struct{})
	c.waiting = make(map[uint64][]*instance)
	c.arrived = make(map[uint64][]dialed)
	c.regions = make(map[uint64]*region)
	c.waiters = make(map[*waiter]struct{})
	c.self = c
	if c.prop.Track == driver.Small {
		c.self = smallContext{c}
	}
	c.path = filepath.Join(c.nic.dir, fmt.Sprintf("%d-%016x.sock", os.Getpid(), random()))
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.path})
	if err != nil {
		return err
	}
	ln.SetUnlinkOnClose(c.fault != "leak-file")
	c.ln = ln
	c.url = driver.URL{Driver: name, Version: version, Incarnation: c.inc, Rest: c.path}.String()
	if c.fault == "url-with-space" {
		c.url += " "
	}
	c.leak()
	c.tasks.Go(c.accept)
	return nil
}

// leak does what the faults of that name say.
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

// Properties implements driver.Context.
func (c *nicContext) Properties() *driver.Properties { return &c.prop }

// URL implements driver.Context.
func (c *nicContext) URL() string { return c.url }

// Counters implements driver.Context.
func (c *nicContext) Counters(n *driver.Counters) {
	if c.fault != "frozen-counters" {
		n.MessagesSent += c.n.sent.Load()
		n.MessagesReceived += c.n.received.Load()
	}
	n.BytesSent += c.n.bytesSent.Load()
	n.BytesReceived += c.n.bytesReceived.Load()
	n.Puts += c.n.puts.Load()
	n.Gets += c.n.gets.Load()
	n.Atomics += c.n.atomics.Load()
	n.Busy += c.n.busy.Load()
	n.Waits += c.n.waits.Load()
	n.Truncated += c.n.truncated.Load()
	n.Canceled += c.n.canceled.Load()
	n.BadFrames += c.n.badFrames.Load()
	n.Connects += c.n.connects.Load()
	n.Refused += c.n.refused.Load()
	n.Disconnects += c.n.disconnects.Load()
	n.BrokenPeers += c.n.broken.Load()
}

// Close implements driver.Context.
func (c *nicContext) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		if c.fault == "close-twice" {
			return nil
		}
		return wrap("close", "", driver.ErrClosed)
	}
	c.closed = true
	insts := make([]*instance, 0, len(c.insts))
	for i := range c.insts {
		insts = append(insts, i)
	}
	var queued []dialed
	for _, q := range c.arrived {
		queued = append(queued, q...)
	}
	c.arrived = nil
	c.mu.Unlock()
	for _, d := range queued {
		d.conn.Write([]byte{replyClosed})
		d.conn.Close()
	}
	for _, i := range insts {
		i.closeNow()
	}
	c.ln.Close()
	c.wakeWaiters(false)
	c.tasks.Wait()
	driver.Closed(c.self)
	return nil
}

// waiter is a RecvWaitAny that runs.
type waiter struct {
	bell     chan struct{}
	canceled atomic.Bool
}

var waiterPool = sync.Pool{New: func() any { return &waiter{bell: make(chan struct{}, 1)} }}

func (w *waiter) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

func (c *nicContext) wakeWaiters(cancel bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiters {
		if cancel {
			w.canceled.Store(true)
		}
		w.ring()
	}
}

// enqueue makes i known to probes.
func (c *nicContext) enqueue(i *instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i.queued && c.fault != "probe-twice" {
		return
	}
	i.queued = true
	c.ready = append(c.ready, i)
	for w := range c.waiters {
		w.ring()
	}
}

func (c *nicContext) dequeue() *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ready) == 0 {
		return nil
	}
	n := 0
	if c.fault == "unfair-probe" {
		for k, i := range c.ready {
			if i.id < c.ready[n].id {
				n = k
			}
		}
	}
	i := c.ready[n]
	c.ready = append(c.ready[:n], c.ready[n+1:]...)
	i.queued = false
	return i
}

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, wrap("probe", "", driver.ErrClosed)
	}
	for {
		i := c.dequeue()
		if i == nil {
			return nil, driver.ErrAgain
		}
		if i.claim() {
			return i.self, nil
		}
	}
}

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	w := waiterPool.Get().(*waiter)
	w.canceled.Store(false)
	select {
	case <-w.bell:
	default:
	}
	c.mu.Lock()
	c.waiters[w] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiters, w)
		c.mu.Unlock()
		waiterPool.Put(w)
	}()
	for {
		i, err := c.RecvProbeAny()
		if err != driver.ErrAgain {
			return i, err
		}
		if w.canceled.Load() {
			return nil, wrap("wait", "", driver.ErrCanceled)
		}
		if err := sleep(ctx, c.nicContext, w.bell); err != nil {
			return nil, err
		}
	}
}

// sleep waits for the bell or the end of ctx.
func sleep(ctx context.Context, c *nicContext, bell <-chan struct{}) error {
	c.n.waits.Add(1)
	if c.fault == "burn-cpu" {
		for start := time.Now(); time.Since(start) < time.Millisecond; {
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return nil
	}
	select {
	case <-bell:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RecvCancelAny implements driver.Prober.
func (c smallContext) RecvCancelAny() error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return wrap("cancel", "", driver.ErrClosed)
	}
	if c.fault != "cancel-any-deaf" {
		c.wakeWaiters(true)
	}
	return nil
}
