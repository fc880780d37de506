//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// The keep-alive goroutine checks each connection 24 times in a dead time. It breaks a connection at the 22nd check at
// which nothing was received: 22 to 23 checks after the last bytes, so within the dead time. A peer sends a sign of life
// when nothing was sent for one to two of these checks: each side knows the other's dead time. One that is stopped for
// 0.8 of the dead time is silent for at most 19.2 + 2 checks, and loses nothing. The goroutine counts checks instead of
// time: a process that was stopped has not checked, and breaks nothing when it goes on.
const (
	checks       = 24
	silentChecks = 21
)

// clock counts the ticks of a time. Their delays do not add up.
type clock struct {
	tick time.Duration
	last time.Time
}

// ticks returns how many have passed since the last call: many after this process was stopped.
func (k *clock) ticks(now time.Time) int {
	n := int(now.Sub(k.last) / k.tick)
	k.last = k.last.Add(time.Duration(n) * k.tick)
	return n
}

// left is how long the next one takes.
func (k *clock) left(now time.Time) time.Duration { return k.tick - now.Sub(k.last) }

// Pauses of the keep-alive goroutine.
const (
	busyPause = time.Millisecond       // while something waits for room, or for the peer's end
	heldPause = 100 * time.Microsecond // while messages are held back
	idlePause = time.Hour
)

// wakeKeepAlive has the keep-alive goroutine poll at once.
func (c *share) wakeKeepAlive() {
	select {
	case c.keepAliveWoken <- struct{}{}:
	default:
	}
	c.poll.keepAlive.wake()
}

// schedule has the keep-alive goroutine poll soon: something waits for room, or is held back.
func (c *share) schedule() {
	if !c.scheduled.Load() {
		c.scheduled.Store(true)
	}
	if !c.keepAlivePauses.Load() {
		c.wakeKeepAlive()
	}
}

// keep does what no call of the user does: it sends signs of life, detects dead peers, and lets sends go on.
func (c *share) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	check := clock{c.opts.deadTime / checks, time.Now()}
	beat := check // for signs of life, which a peer may want more often
	for c.live.Err() == nil {
		c.keepAlivePauses.Store(true)
		c.scheduled.Store(false)
		now := time.Now()
		checkDue, beats := check.ticks(now) > 0, beat.ticks(now)
		if checkDue {
			c.takeReady()
		}
		held := c.drain.holds.Load()
		c.flushHeld()
		conns, busy := c.pollAll(now, checkDue, &beat, beats)
		switch {
		case held:
			c.pause(timer, heldPause)
		case busy || c.drain.some.Load(): // peers that have not had their turn shall not count as silent
			c.pause(timer, busyPause)
		case conns > 0:
			c.rest(timer, max(min(check.left(now), beat.left(now)), time.Millisecond))
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

// rest sleeps until a wake-up, or for d. While users sleep and none of them watches the sockets, the keep-alive
// goroutine does.
func (c *share) rest(timer *time.Timer, d time.Duration) {
	c.keepAlivePauses.Store(false)
	if c.scheduled.Load() {
		return
	}
	if c.waits.Sleepers() > 0 && !c.waits.Watching() {
		c.poll.keepAlive.sleep(d)
		return
	}
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-c.keepAliveWoken:
	case <-c.live.Done():
	}
}

// pollAll polls all connections, and ends those that were closed. Beats is how many have passed since the last call; the
// next ones are as short as a peer needs. It returns how many connections there are, and whether any needs a poll soon.
func (c *share) pollAll(now time.Time, checkDue bool, beat *clock, beats int) (conns int, busy bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	tick := c.opts.deadTime / checks
	var polled pollClock
	for i := range c.Conns.All() {
		if i.State() != kit.StateUp {
			continue
		}
		conns++
		if checkDue {
			late := !c.watched.Load() && polled.over()
			if late || !c.watched.Load() && !i.receive() {
				c.drain.requeue(i)
			}
			if i.deferred = late && !i.deferred; !i.deferred { // what it has not read may be signs of life
				i.checkAlive()
			}
		}
		if beats > 0 {
			i.beat(beat.tick, beats)
		}
		tick = min(tick, i.every)
		i.signOfLife()
		if i.blocked.Load() {
			i.flush()
		}
		started := i.api.starts()
		busy = busy || i.blocked.Load() || i.pingDue || !started
	}
	beat.tick = tick
	c.endClosing(now)
	return conns, busy || len(c.closing) > 0
}

// beat notes whether a connection has sent since the last call, so many beats ago. A sign of life is due if one at the
// next beat might be late.
func (i *conn) beat(tick time.Duration, beats int) {
	if i.toSelf {
		return
	}
	i.quiet += time.Duration(beats) * tick
	if i.hasSent.Swap(false) {
		i.quiet = time.Duration(beats-1) * tick
	}
	i.pingDue = i.quiet > 2*(i.every-tick)
}

// checkAlive notes whether a connection has received since the last check.
func (i *conn) checkAlive() {
	if i.toSelf {
		return
	}
	if i.hasReceived.Swap(false) || i.starved.Load() { // what is not taken from the kernel may hold signs of life
		i.silent = 0
		return
	}
	if i.silent++; i.silent > silentChecks {
		i.Finish(kit.StateBroken, fmt.Errorf("%w: %s: the peer was silent for %v (option dead-time)",
			driver.ErrBroken, i.ctx.Props.Device, i.ctx.opts.deadTime))
		i.rx.lock()
		if !i.gone && !i.ended {
			i.hangUp()
		}
		i.rx.unlock()
	}
}

// signOfLife sends one if it is due; if the owner is inside, the keep-alive goroutine tries again soon.
func (i *conn) signOfLife() {
	if i.pingDue && i.api.ping() {
		i.quiet, i.pingDue = 0, false
	}
}

// endClosing ends connections that were closed on this side and have sent everything. The caller holds Mu.
func (c *share) endClosing(now time.Time) {
	kept := c.closing[:0]
	for _, i := range c.closing {
		if i.sentAll(now) {
			i.closeSockets()
		} else {
			kept = append(kept, i)
		}
	}
	clear(c.closing[len(kept):])
	c.closing = kept
}

// awaitClosing gives peers the time to receive what was sent.
func (c *share) awaitClosing() {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		c.Mu.Lock()
		c.endClosing(time.Now())
		n := len(c.closing)
		c.Mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(pause)
	}
}
