package qnix

import (
	"context"
	"time"

	"github.com/bywash/bywash/driver"
)

// How nobody sleeps through a doorbell.
//
// A waiter says that it sleeps, notes how far the Doorbell Ring is drained, looks once more, and then sleeps: the first one in
// the kernel until the ring has more, the others on their channels. Who watches the ring drains it and wakes those it
// concerns; where nobody does, the keeper watches. What another goroutine drains meanwhile is seen by the look, or wakes.

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

// Sleeps in the kernel: the first one is short, so that no waker is needed for it; a later one ends with the waiter's context.
// It is long, as each awakening keeps Go's runtime busy for a while.
const (
	shortSleep = 5 * time.Millisecond
	sleepAgain = time.Second
)

// poller polls for one packet.
type poller interface {
	SendPoll(*driver.Packet) (bool, error)
	RecvPoll(*driver.Packet) (bool, error)
}

func pollFor(i poller, p *driver.Packet, sending bool) (bool, error) {
	if sending {
		return i.SendPoll(p)
	}
	return i.RecvPoll(p)
}

// watch makes the caller the one who watches the Doorbell Ring, if there is none.
func (c *Context) watch() bool { return !c.watching.Load() && c.watching.CompareAndSwap(false, true) }

// unwatch ends that. Should others sleep, the keeper watches for them; so does it if it relied on the caller for long.
func (c *Context) unwatch() {
	c.watching.Store(false)
	if c.sleepers.Load() > 1 || c.relies.Load() {
		c.nudge()
	}
}

// sleeper is a goroutine in a wait.
type sleeper struct {
	ctx   context.Context
	stop  func() bool
	slept int
}

// inKernel sleeps until the ring has more than seen, and drains it.
func (s *sleeper) inKernel(c *Context, seen uint32) {
	d := shortSleep
	if s.slept++; s.slept > 1 {
		d = sleepAgain
		if s.stop == nil && s.ctx.Done() != nil {
			s.stop = context.AfterFunc(s.ctx, c.proc.Wake)
		}
	}
	if err := c.proc.Wait(seen, d); err != nil {
		c.nicFailed(err)
	}
	c.drain()
}

func (s *sleeper) end() {
	if s.stop != nil {
		s.stop()
	}
}

// block polls for p until it is done, and sleeps in between.
func (n *conn) block(ctx context.Context, x poller, p *driver.Packet, sending bool) error {
	for range spins {
		if done, err := pollFor(x, p, sending); done {
			return err
		}
	}
	c := n.ctx
	c.sleepers.Add(1)
	defer c.sleepers.Add(-1)
	bell := n.life.Sleep()
	defer n.life.Awake()
	s := sleeper{ctx: ctx}
	defer s.end()
	for {
		watching := c.watch()
		n.inKernel.Store(watching)
		seen := c.bells.seen.Load()
		done, err := pollFor(x, p, sending)
		if !done {
			n.life.Tally.Slept.Add(1)
			if watching {
				s.inKernel(c, seen)
			} else {
				select {
				case <-bell:
				case <-ctx.Done():
				}
			}
		}
		n.inKernel.Store(false)
		if watching {
			c.unwatch()
		}
		if done {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if n := c.takeReady(); n != nil {
		return n.api, nil
	}
	if c.drain() {
		if n := c.takeReady(); n != nil {
			return n.api, nil
		}
	}
	if c.isClosed() {
		return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
	}
	return nil, driver.ErrAgain
}

func (c *Context) takeReady() *conn {
	for {
		k, ok := c.ready.Take()
		if !ok {
			return nil
		}
		if n := c.conns[k].Load(); n != nil && n.life.Claim() {
			return n
		}
	}
}

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	for range spins {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
	}
	c.sleepers.Add(1)
	defer c.sleepers.Add(-1)
	c.any.Add(1)
	defer c.any.Add(-1)
	w := c.waiters.Enter()
	defer c.waiters.Leave(w)
	s := sleeper{ctx: ctx}
	defer s.end()
	for {
		watching := c.watch()
		if watching {
			c.anyInKernel.Store(true)
		}
		seen := c.bells.seen.Load()
		i, err := c.RecvProbeAny()
		if err == driver.ErrAgain && !c.waiters.Canceled(w) {
			c.slept.Add(1)
			if watching {
				s.inKernel(c.Context, seen)
			} else {
				select {
				case <-w.Bell():
				case <-ctx.Done():
				}
			}
		}
		if watching {
			c.anyInKernel.Store(false)
			c.unwatch()
		}
		switch {
		case err != driver.ErrAgain:
			return i, err
		case c.waiters.Canceled(w):
			return nil, driver.ErrCanceled
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// tellProbers wakes those in RecvWaitAny.
func (c *Context) tellProbers() {
	if c.any.Load() > 0 {
		c.wakeAny(false)
	}
}

// wakeAny wakes those in RecvWaitAny; cancel makes them give up.
func (c *Context) wakeAny(cancel bool) {
	c.waiters.Wake(cancel)
	if c.anyInKernel.Load() {
		c.proc.Wake()
	}
}

// RecvCancelAny implements driver.Prober.
func (c smallContext) RecvCancelAny() error {
	if c.isClosed() {
		return &driver.Error{Driver: Name, Op: "cancel", Err: driver.ErrClosed}
	}
	c.wakeAny(true)
	return nil
}
