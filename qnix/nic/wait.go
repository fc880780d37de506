package nic

import (
	"sync/atomic"
	"time"
)

// How often a wait polls before it sleeps: some microseconds, about what
// sleeping and waking cost. It gives its processor away at each poll, as what it
// waits for may need it: a softnic, or the other process.
const polls = 100

// longestSleep bounds one sleep, so that a NIC that never wakes this process
// does not hold it for ever.
const longestSleep = time.Second

// Wait blocks until the Doorbell Ring's tail differs from seen, Wake is called, or the timeout has passed (a negative
// one never does), and returns nil. It may return early, so callers look again. It fails with ErrGone, at once, when
// the NIC or this registration has ended, and with ErrClosed after Deregister. It polls for some microseconds and then
// sleeps without using a CPU. Several goroutines may wait. It allocates only in its first call.
func (p *Process) Wait(seen uint32, timeout time.Duration) error {
	calm := p.wakes.Load()
	if timeout == 0 || p.poll(seen) {
		return p.alive()
	}
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
	}
	// Deregister leaves the status mapped until nobody waits; see there.
	p.waiters.Add(1)
	defer p.waiters.Add(-1)
	if p.closed.Load() {
		return ErrClosed
	}
	atomic.AddUint32(&p.status.Sleepers, 1)
	defer atomic.AddUint32(&p.status.Sleepers, ^uint32(0))
	for p.RingTail() == seen && p.wakes.Load() == calm {
		if p.Gone() {
			return p.over()
		}
		d := longestSleep
		if timeout > 0 {
			if d = min(d, time.Until(end)); d <= 0 {
				return nil
			}
		}
		p.host.sleep(&p.status.RingTail, seen, &p.wakes, calm, d)
	}
	return p.alive()
}

// Giving the processor away costs far more when somebody else computes on it: whoever yields is
// put behind, while whoever wakes from sleep goes first. So a yield that took longer than crowdedYield
// ends polling for crowdedFor.
const (
	crowdedYield = 2 * time.Millisecond
	crowdedFor   = 10 * time.Millisecond
)

var clock = time.Now() // the time from which crowded counts

// poll looks for another tail for a while.
func (p *Process) poll(seen uint32) bool {
	if p.RingTail() != seen {
		return true
	}
	now := time.Since(clock)
	if now < time.Duration(p.crowded.Load()) {
		return false
	}
	for range polls {
		yield()
		if p.RingTail() != seen {
			return true
		}
		before := now
		if now = time.Since(clock); now-before > crowdedYield {
			p.crowded.Store(int64(now + crowdedFor))
			return false
		}
	}
	return false
}

// alive is nil, or why nothing rings any more.
func (p *Process) alive() error {
	if p.Gone() {
		return p.over()
	}
	return nil
}

// Wake makes all Waits under way return, also one that is about to sleep. Any goroutine may call it.
func (p *Process) Wake() {
	p.wakes.Add(1)
	if p.waiters.Load() != 0 {
		p.host.wake(&p.status.RingTail, &p.wakes)
	}
}
