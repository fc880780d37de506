//go:build linux

package afxdp

import (
	"context"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
)

// How nobody sleeps through a frame.
//
// A waiter says that it sleeps, looks once more, and then sleeps: the first one, where the device has one queue, in
// the kernel, watching for frames, the others on their channels. Who watches takes what comes and wakes those it
// concerns. Where nobody watches, the keeper of the queue does. A frame that another goroutine takes meanwhile is seen
// by the look, or wakes, because the waiter has said before that it sleeps, and where.

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

// longestSleep bounds one sleep in the kernel, after which a context is looked at.
const longestSleep = 10 * time.Millisecond

// watch makes the caller the one who waits for frames in the kernel, if there is none.
func (n *nic) watch() bool { return len(n.queues) == 1 && n.watched.CompareAndSwap(false, true) }

// unwatch ends that. Should others sleep, the keeper watches for them.
func (n *nic) unwatch() {
	n.watched.Store(false)
	if n.sleepers.Load() > 1 {
		n.callKeeper()
	}
}

// sleepInKernel waits for frames, a timer of ours, or Wake, and takes what has come.
func (n *nic) sleepInKernel() {
	wait := min(time.Duration(n.due.Load())-time.Since(n.origin), longestSleep)
	_, _ = n.queues[0].sock.Wait(rxEvent, max(wait, 0))
	n.run()
}

// callKeeper has a keeper look whether it is needed.
func (n *nic) callKeeper() {
	select {
	case n.nudge <- struct{}{}:
	default:
	}
}

// block polls for p until it is done, and sleeps in between.
func (i *conn) block(ctx context.Context, x poller, p *driver.Packet, sending bool) error {
	for range spins {
		if done, err := pollFor(x, p, sending); done {
			return err
		}
	}
	n := i.ctx.nic
	n.sleepers.Add(1)
	defer n.sleepers.Add(-1)
	bell := i.life.Sleep()
	defer i.life.Awake()
	for {
		watching := n.watch()
		i.inKernel.Store(watching)
		done, err := pollFor(x, p, sending)
		if !done {
			i.life.Tally.Slept.Add(1)
			if watching {
				n.sleepInKernel()
			} else {
				n.callKeeper()
				select {
				case <-bell:
				case <-ctx.Done():
				}
			}
		}
		i.inKernel.Store(false)
		if watching {
			n.unwatch()
		}
		if done {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// wake wakes who sleeps on the instance.
func (i *conn) wake() {
	if i.inKernel.Load() {
		i.ctx.nic.queues[0].sock.Wake()
	}
	i.life.Wake()
}

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if i := c.conns.TakeReady(); i != nil {
		return i.api, nil
	}
	c.nic.run()
	if i := c.conns.TakeReady(); i != nil {
		return i.api, nil
	}
	if c.isClosed() {
		return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
	}
	return nil, driver.ErrAgain
}

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	for range spins {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
	}
	n := c.nic
	n.sleepers.Add(1)
	defer n.sleepers.Add(-1)
	c.any.Add(1)
	defer c.any.Add(-1)
	w := c.waiters.Enter()
	defer c.waiters.Leave(w)
	for {
		watching := n.watch()
		if watching {
			c.anyInKernel.Store(true)
		}
		i, err := c.RecvProbeAny()
		if err == driver.ErrAgain {
			c.slept.Add(1)
			if watching {
				n.sleepInKernel()
			} else {
				n.callKeeper()
				select {
				case <-w.Bell():
				case <-ctx.Done():
				}
			}
		}
		if watching {
			c.anyInKernel.Store(false)
			n.unwatch()
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

// wakeAny wakes those in RecvWaitAny; cancel makes them give up.
func (c *Context) wakeAny(cancel bool) {
	c.waiters.Wake(cancel)
	if c.anyInKernel.Load() {
		c.nic.queues[0].sock.Wake()
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
