package verbs

import (
	"context"
	"errors"
	"os"
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
func (c *opened) arm() {
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

// completionWaits is the completion channel as what waits sleep on: the pump watches, and no waiter.
type completionWaits struct{ c *opened }

// Arm implements kit.Watched.
func (w completionWaits) Arm() uint32 { w.c.arm(); return 0 }

// Sleep implements kit.Watched: never called.
func (completionWaits) Sleep(uint32, bool) {}

// Wake implements kit.Watched: nobody is in Sleep.
func (completionWaits) Wake() {}

// Call implements kit.Watched: the pump always watches.
func (completionWaits) Call() {}
