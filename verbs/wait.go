package verbs

import (
	"context"
	"errors"
	"os"

	"github.com/bywash/bywash/driver"
)

// How nobody sleeps through a completion.
//
// A waiter says that it sleeps, has the completion queue armed, drains it once
// more, looks, and only then sleeps on its own channel. A completion that comes
// after the arming makes the device write to the completion channel, which the
// pump reads (in Go's poller, no thread is blocked); it drains, which wakes those
// whose completions it finds, and arms again as long as anybody sleeps. A
// completion that came before is found by the drain after the arming. One that
// another goroutine drains meanwhile is seen by the look, or wakes, because the
// waiter has said before that it sleeps.

// arm has the device speak up at the next completion.
func (c *Context) arm() {
	q := &c.done
	q.mustLock()
	defer q.unlock()
	if !q.armed && q.dead == nil {
		if err := q.cq.ReqNotify(false); err != nil {
			q.dead = err
			c.deviceGone(err)
			return
		}
		q.armed = true
	}
	for c.drainLocked() {
	}
}

// pump turns what the completion channel says into wake-ups, until the channel
// is closed.
func (c *Context) pump() {
	for {
		_, err := c.channel.Wait(context.Background())
		if err != nil {
			if !errors.Is(err, os.ErrClosed) && !c.isClosed() {
				c.deviceGone(err)
			}
			return
		}
		q := &c.done
		q.mustLock()
		q.armed = false
		if c.sleepers.Load() > 0 && q.dead == nil {
			if err := q.cq.ReqNotify(false); err == nil {
				q.armed = true
			}
		}
		for c.drainLocked() {
		}
		q.unlock()
	}
}

// spins is how many polls a wait makes before it sleeps: a few microseconds,
// less than what sleeping and waking cost.
const spins = 200

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

// block polls for p until it is done, and sleeps in between.
func (n *conn) block(ctx context.Context, i poller, p *driver.Packet, sending bool) error {
	for range spins {
		if done, err := pollFor(i, p, sending); done {
			return err
		}
	}
	n.ctx.sleepers.Add(1)
	defer n.ctx.sleepers.Add(-1)
	bell := n.life.Sleep()
	defer n.life.Awake()
	for {
		n.ctx.arm()
		if done, err := pollFor(i, p, sending); done {
			return err
		}
		n.life.Tally.Slept.Add(1)
		select {
		case <-bell:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
