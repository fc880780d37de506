//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"errors"
	"os"
)

// This protocol makes sure that no waiter sleeps through a completion.
//
// A waiter marks itself as asleep, arms the completion queue, drains it once more, looks for its result, and only then
// sleeps on its own channel. A completion after the arming makes the device write to the completion channel, which the
// pump reads (in Go's poller, so that no thread is blocked). The pump drains the queue, which wakes the waiters whose
// completions it finds, and arms it again as long as a waiter sleeps. The drain after the arming finds completions from
// before it. If another goroutine drains a completion meanwhile, the waiter's look finds it, or that goroutine wakes
// the waiter, which is already marked as asleep.

// arm makes the device report the next completion on the completion channel.
func (c *opened) arm() {
	q := &c.done
	q.mustLock()
	defer q.unlock()
	if !q.armed && q.dead == nil {
		if err := q.arm(); err != nil {
			q.dead = err
			c.deviceGone(err)
			return
		}
	}
	for c.drainLocked() {
	}
}

// pump turns notifications of the completion channel into wake-ups, until the channel is closed.
func (c *opened) pump() {
	for {
		_, err := c.channel.Wait(context.Background())
		if err != nil {
			if !errors.Is(err, os.ErrClosed) && !c.IsClosed() {
				c.deviceGone(err)
			}
			return
		}
		q := &c.done
		q.mustLock()
		q.armed = false
		if c.waits.Sleepers() > 0 && q.dead == nil {
			_ = q.arm() // a dead device is found by the drain
		}
		for c.drainLocked() {
		}
		q.unlock()
	}
}

// spins is how many polls a wait makes before it sleeps: a few microseconds, less than a sleep and a wake-up cost.
const spins = 200

// completionWaits lets waiters sleep until the completion channel reports something. The pump watches the channel, and
// no waiter does.
type completionWaits struct{ c *opened }

func (w completionWaits) Arm() uint64 { w.c.arm(); return 0 }

// Sleep implements kit.Watched. It is never called.
func (completionWaits) Sleep(uint64, bool) {}

// Wake implements kit.Watched. No goroutine is in Sleep.
func (completionWaits) Wake() {}

// Call implements kit.Watched: the pump always watches.
func (completionWaits) Call() {}
