//go:build linux

package afxdp

import (
	"context"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
)

// How nobody sleeps through a frame.
//
// A waiter says that it sleeps, looks once more, and then sleeps on its own channel. The keeper of a queue
// sees that somebody sleeps, and waits for frames in the kernel; what it takes wakes those it concerns. A frame that
// another goroutine takes meanwhile is seen by the look, or wakes, because the waiter has said before that it
// sleeps.

const rxEvent = xsk.EventRx

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

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

// sleep has the keepers wait in the kernel until wakeUp.
func (n *nic) sleep() {
	if n.sleepers.Add(1) == 1 {
		select {
		case n.nudge <- struct{}{}:
		default:
		}
	}
}

func (n *nic) wakeUp() { n.sleepers.Add(-1) }

// block polls for p until it is done, and sleeps in between.
func (i *conn) block(ctx context.Context, x poller, p *driver.Packet, sending bool) error {
	for range spins {
		if done, err := pollFor(x, p, sending); done {
			return err
		}
	}
	n := i.ctx.nic
	n.sleep()
	defer n.wakeUp()
	i.sleeping.Add(1)
	defer i.sleeping.Add(-1)
	for {
		if done, err := pollFor(x, p, sending); done {
			return err
		}
		i.tally.Slept.Add(1)
		select {
		case <-i.bell:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wake wakes who sleeps on the instance.
func (i *conn) wake() {
	if i.sleeping.Load() > 0 {
		select {
		case i.bell <- struct{}{}:
		default: // it is about to look anyway
		}
	}
}

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if i := c.takeReady(); i != nil {
		return i.api, nil
	}
	c.nic.run()
	if i := c.takeReady(); i != nil {
		return i.api, nil
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
		if i := c.conns[k].Load(); i != nil && i.claim() {
			return i
		}
	}
}

// claim names the connection to one prober, if there still is something.
func (i *conn) claim() bool {
	switch st := i.state.Load(); {
	case st == stateConnecting || st == stateClosed:
		return false
	case i.arrived.Load() != i.taken.Load():
		return i.named.CompareAndSwap(false, true)
	case i.ended.Load():
		return i.endNamed.CompareAndSwap(false, true)
	}
	return false
}

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	for range spins {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
	}
	c.nic.sleep()
	defer c.nic.wakeUp()
	c.any.Add(1)
	defer c.any.Add(-1)
	w := c.waiters.Enter()
	defer c.waiters.Leave(w)
	for {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
		c.slept.Add(1)
		select {
		case <-w.Bell():
			if c.waiters.Canceled(w) {
				return nil, driver.ErrCanceled
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// RecvCancelAny implements driver.Prober.
func (c smallContext) RecvCancelAny() error {
	if c.isClosed() {
		return &driver.Error{Driver: Name, Op: "cancel", Err: driver.ErrClosed}
	}
	c.waiters.Wake(true)
	return nil
}
