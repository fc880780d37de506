package qnix

import (
	"context"
	"time"

	"github.com/bywash/bywash/driver"
)

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

// Sleeps in the kernel: the first one is short, so that no waker is needed for it; a later one ends with the waiter's context.
// It is long, as each awakening keeps Go's runtime busy for a while.
const (
	shortSleep = 5 * time.Millisecond
	sleepAgain = time.Second
)

// ring is the Doorbell Ring as what waits sleep on.
type ring struct{ c *Context }

// Arm implements kit.Watched.
func (r ring) Arm() uint32 { return r.c.bells.seen.Load() }

// Sleep implements kit.Watched.
func (r ring) Sleep(seen uint32, again bool) {
	d := shortSleep
	if again {
		d = sleepAgain
	}
	if err := r.c.proc.Wait(seen, d); err != nil {
		r.c.nicFailed(err)
	}
	r.c.drain()
}

// Wake implements kit.Watched.
func (r ring) Wake() { r.c.proc.Wake() }

// Call implements kit.Watched.
func (r ring) Call() { r.c.nudge() }

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if n := c.conns.TakeReady(); n != nil {
		return n.api, nil
	}
	if c.drain() {
		if n := c.conns.TakeReady(); n != nil {
			return n.api, nil
		}
	}
	if c.isClosed() {
		return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
	}
	return nil, driver.ErrAgain
}

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return c.anyone.Wait(ctx, c)
}

// RecvCancelAny implements driver.Prober.
func (c smallContext) RecvCancelAny() error {
	if c.isClosed() {
		return &driver.Error{Driver: Name, Op: "cancel", Err: driver.ErrClosed}
	}
	c.anyone.Wake(true)
	return nil
}
