package tcp

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// The keeper looks at each connection so often in a dead time. It sends a sign of life when nothing was sent for two
// looks, and breaks a connection on which nothing was heard for the dead time after the peer's next sign of life was due:
// a peer that is stopped for less loses nothing. It counts looks instead of time: a process that was stopped has not
// looked, and breaks nothing when it goes on.
const (
	looks       = 10
	quietLooks  = 2
	silentLooks = looks + quietLooks
)

// Pauses of the keeper.
const (
	busyPause = time.Millisecond       // while something waits for room, or for the peer's end
	heldPause = 100 * time.Microsecond // while messages are held back
	idlePause = time.Hour
)

// nudge has the keeper look at once.
func (c *share) nudge() {
	select {
	case c.nudged <- struct{}{}:
	default:
	}
	if c.poll.keeper.mark() && c.waits.Sleepers() > 0 {
		c.poll.ring()
	}
}

// attend has the keeper look soon: something waits for room, or is held back.
func (c *share) attend() {
	if !c.attention.Load() {
		c.attention.Store(true)
	}
	if !c.keeperPauses.Load() {
		c.nudge()
	}
}

// keep does what no call of the user does: it sends signs of life, notices the dead, and lets sends go on.
func (c *share) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	tick := max(c.opts.deadTime/looks, time.Millisecond)
	last := time.Now()
	for c.live.Err() == nil {
		c.keeperPauses.Store(true)
		c.attention.Store(false)
		now := time.Now()
		ticks := int(now.Sub(last) / tick) // many after this process was stopped
		if ticks > 0 {
			last = now
			c.takeReady()
		}
		held := c.drain.holds.Load()
		c.flushHeld()
		conns, busy := c.tendAll(now, ticks)
		switch {
		case held:
			c.pause(timer, heldPause)
		case busy:
			c.pause(timer, busyPause)
		case conns > 0:
			c.rest(timer, max(tick-now.Sub(last), time.Millisecond))
		default:
			c.rest(timer, idlePause)
		}
	}
}

// pause sleeps for a short time, whatever happens.
func (c *share) pause(timer *time.Timer, d time.Duration) {
	if c.drain.some.Load() {
		c.takeReady()
	}
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-c.live.Done():
	}
}

// rest sleeps until somebody nudges, or d has passed. While users sleep and none of them watches the sockets, the
// keeper does.
func (c *share) rest(timer *time.Timer, d time.Duration) {
	c.keeperPauses.Store(false)
	if c.attention.Load() {
		return
	}
	if c.waits.Sleepers() > 0 && !c.waits.Watching() {
		c.poll.keeper.sleep(d)
		return
	}
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-c.nudged:
	case <-c.live.Done():
	}
}

// tendAll looks at all connections, and lets those that were closed end. ticks is how many have passed since the last look
// for signs of life; 0: there is none to be. It reports how many connections there are, and whether any needs a look soon.
func (c *share) tendAll(now time.Time, ticks int) (conns int, busy bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for i := range c.Conns.All() {
		if i.State() != kit.StateUp {
			continue
		}
		conns++
		if ticks > 0 {
			if !c.watched.Load() && !i.receive() {
				c.drain.again(i)
			}
			i.checkAlive(ticks)
		}
		i.signOfLife()
		if i.blocked.Load() {
			i.flush()
		}
		if i.TryEnter() {
			i.api.starts()
			i.Leave()
		}
		busy = busy || i.blocked.Load() || i.quiet >= quietLooks
	}
	c.linger(now)
	return conns, busy || len(c.lingering) > 0
}

// checkAlive takes note of what a connection has said and heard since the last look, ticks ago.
func (i *conn) checkAlive(ticks int) {
	if i.toSelf {
		return
	}
	i.quiet += ticks
	if i.spoke.Swap(false) {
		i.quiet = ticks - 1
	}
	if i.heard.Swap(false) || i.starved.Load() { // what is not taken from the kernel may hold signs of life
		i.silent = 0
		return
	}
	if i.silent++; i.silent > silentLooks {
		i.Finish(kit.StateBroken, fmt.Errorf("%w: %s: the peer was silent for %v (option dead-time)",
			driver.ErrBroken, i.ctx.Props.Device, i.ctx.opts.deadTime))
		if i.rx.try() {
			if !i.gone && !i.ended {
				i.hangUp()
			}
			i.rx.unlock()
		}
	}
}

// signOfLife sends one if it is due; if the owner is in the way, the keeper tries again soon.
func (i *conn) signOfLife() {
	if i.quiet >= quietLooks && i.api.ping() {
		i.quiet = 0
	}
}

// linger lets connections that were closed here end. The caller holds Mu.
func (c *share) linger(now time.Time) {
	kept := c.lingering[:0]
	for _, i := range c.lingering {
		if i.linger(now) {
			i.closeSockets()
		} else {
			kept = append(kept, i)
		}
	}
	clear(c.lingering[len(kept):])
	c.lingering = kept
}

// awaitLingering gives peers the time to take what was sent.
func (c *share) awaitLingering() {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		c.Mu.Lock()
		c.linger(time.Now())
		n := len(c.lingering)
		c.Mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(pause)
	}
}
