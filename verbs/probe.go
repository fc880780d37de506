package verbs

import (
	"context"

	"github.com/bywash/bywash/driver"
)

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) {
	if n := c.probe(); n != nil {
		return n.api, nil
	}
	if c.isClosed() {
		return nil, &driver.Error{Driver: Name, Op: "probe", Err: driver.ErrClosed}
	}
	return nil, driver.ErrAgain
}

// probe finds a connection on which a receive succeeds, or fails, at once.
func (c *Context) probe() *conn {
	if n := c.conns.TakeReady(); n != nil {
		return n
	}
	c.drain()
	return c.conns.TakeReady()
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
