package kit

import (
	"context"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// Conn is a connection to one peer. A driver embeds it in its own type of connection, which both tracks share, and
// gets the methods of [driver.Instance] that have nothing to do with packets. [Context.Add] begins it.
type Conn struct {
	Life

	// Self is the instance that users have: it has the methods of its track.
	Self driver.Instance

	// Waits is where the user sleeps: with the waiters for any connection, unless the driver sets it after Add.
	Waits *Watch

	hooks  ConnHooks
	device string
}

// ConnHooks has the driver's part of a connection.
type ConnHooks interface {
	// Pending makes progress and reports whether sends are under way, which keep Disconnect busy. The owner calls it.
	Pending() bool

	// OnClose ends the connection with the peer, after this side has disconnected or its context was closed: it sends
	// the close message, and frees the connection's resources, at once or later. Before is the state until now. No call is
	// inside, and none begins any more. It does not block.
	OnClose(before State)
}

// Number returns the number by which the device's completions may name the connection; see [Connections].
func (c *Conn) Number() uint32 { return c.num }

// Err implements driver.Ender.
func (c *Conn) Err() error { return c.Failure("connection") }

// ConnectWait implements driver.Instance.
func (c *Conn) ConnectWait(ctx context.Context) error {
	return c.Life.ConnectWait(ctx, func() string { return c.device + ": peer has not answered" })
}

// SendWait implements driver.SendWaiter.
func (c *Conn) SendWait(ctx context.Context, p *driver.Packet) error {
	return c.Waits.Block(ctx, &c.Life, c.Self, p, true)
}

// RecvWait implements driver.RecvWaiter.
func (c *Conn) RecvWait(ctx context.Context, p *driver.Packet) error {
	return c.Waits.Block(ctx, &c.Life, c.Self, p, false)
}

// Disconnect implements driver.Instance.
func (c *Conn) Disconnect() error {
	switch c.State() {
	case StateClosed:
		return c.Failure("disconnect")
	case StateUp:
		if c.Enter() {
			pending := c.hooks.Pending()
			c.Leave()
			if pending && c.State() == StateUp {
				return driver.ErrBusy
			}
		}
	}
	c.Shut()
	return nil
}

// Shut closes this side: calls fail from here on. The rest is the driver's; see [ConnHooks]. Any goroutine may call it; if
// another one closes this side, it waits.
func (c *Conn) Shut() {
	before, did := c.Close()
	if !did {
		<-c.shut
		return
	}
	if before == StateUp {
		c.Tally.disconnects.Store(1)
	}
	c.Wake()
	c.Exclude()
	c.hooks.OnClose(before)
	close(c.shut)
	c.Wake() // waits poll again
}

// Resolve ends connecting: with StateUp, or with StateBroken and the reason. It reports whether this call did. Any
// goroutine may call it.
func (c *Conn) Resolve(s State, reason error) bool {
	did, over := c.Life.Resolve(s, reason)
	switch {
	case over:
		c.over()
	case did && s == StateUp && c.HasMessage(): // it was faster than the last step of connecting
		c.notice()
		c.anyone.Notify()
	}
	return did
}

// Finish ends a connection that is up, or will be in a moment, as StatePeerClosed or StateBroken, and wakes all
// goroutines that wait for it. Any goroutine may call it.
func (c *Conn) Finish(s State, reason error) {
	if c.Life.Finish(s, reason) {
		c.over()
	}
}

// Fail breaks a connection, whether it is up or still connecting. Any goroutine may call it.
func (c *Conn) Fail(reason error) {
	if !c.Resolve(StateBroken, reason) {
		c.Finish(StateBroken, reason)
	}
}

// Misbehaved breaks the connection because of what the peer sent. Any goroutine may call it.
func (c *Conn) Misbehaved(what string) {
	c.Tally.Bad.Add(1)
	c.Finish(StateBroken, fmt.Errorf("%w: %s: the peer violated the protocol: %s", driver.ErrBroken, c.device, what))
}

func (c *Conn) over() {
	c.Ended()
	c.anyone.Notify()
	c.Wake()
}

// Wake wakes the goroutine that waits for a packet of this connection. A driver whose event ends [Watched].Sleep by
// itself calls that of Life, which wakes only those that do not sleep there.
func (c *Conn) Wake() { c.Waits.Wake(&c.Life) }

// Announce counts a message that came, and names the connection to probers, unless one has it. The goroutine that
// drains the device calls it, and wakes the connection's own waiter.
func (c *Conn) Announce() {
	if c.Arrived() {
		c.anyone.Notify()
	}
}
