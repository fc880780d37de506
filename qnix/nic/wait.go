//go:build linux

package nic

import (
	"sync/atomic"
	"time"
)

// polls is how often a wait polls before it sleeps. That takes some microseconds, about as long as a sleep and a
// wake-up. Each poll yields the processor, because a softnic or the other process may need it.
const polls = 100

// longestSleep bounds one sleep, so that a NIC that never wakes this process
// does not hold it for ever.
const longestSleep = time.Second

// Wait blocks until the Doorbell Ring's tail differs from seen, Wake is called, or the timeout has passed (a negative
// one never does), and returns nil. It may return early, so callers poll again. It fails with ErrGone, at once, when
// the NIC or this registration has ended, and with ErrClosed after Deregister. It polls for some microseconds and then
// sleeps without using a CPU. Several goroutines may wait. It allocates only in its first call.
func (p *Process) Wait(seen uint32, timeout time.Duration) error {
	return p.WaitSince(seen, p.Wakes(), timeout)
}

// Wakes returns how often Wake was called, modulo 2³².
func (p *Process) Wakes() uint32 { return p.wakes.Load() }

// WaitSince is Wait for callers that looked for something else than doorbells before: it returns, too, if there were
// other wake-ups than seenWakes.
func (p *Process) WaitSince(seen, seenWakes uint32, timeout time.Duration) error {
	if timeout == 0 || p.poll(seen) {
		return p.alive()
	}
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
	}
	// Deregister leaves the status mapped until no goroutine waits; see there.
	p.waiters.Add(1)
	defer p.waiters.Add(-1)
	if p.closed.Load() {
		return ErrClosed
	}
	atomic.AddUint32(&p.status.Sleepers, 1)
	defer atomic.AddUint32(&p.status.Sleepers, ^uint32(0))
	for p.RingTail() == seen && p.wakes.Load() == seenWakes {
		if p.Gone() {
			return p.over()
		}
		d := longestSleep
		if timeout > 0 {
			if d = min(d, time.Until(end)); d <= 0 {
				return nil
			}
		}
		p.host.sleep(&p.status.RingTail, seen, &p.wakes, seenWakes, d)
	}
	return p.alive()
}

// Yielding costs far more if another thread computes on the processor: the scheduler puts a thread that yields last,
// and one that wakes up first. So a yield that takes longer than slowYield stops polling for slowYieldPause.
const (
	slowYield      = 2 * time.Millisecond
	slowYieldPause = 10 * time.Millisecond
)

var clock = time.Now() // the time from which pollAfter counts

// poll polls for another tail for a limited time.
func (p *Process) poll(seen uint32) bool {
	if p.RingTail() != seen {
		return true
	}
	now := time.Since(clock)
	if now < time.Duration(p.pollAfter.Load()) {
		return false
	}
	for range polls {
		yield()
		if p.RingTail() != seen {
			return true
		}
		before := now
		if now = time.Since(clock); now-before > slowYield {
			p.pollAfter.Store(int64(now + slowYieldPause))
			return false
		}
	}
	return false
}

// alive returns nil, or the reason why no doorbell rings any more.
func (p *Process) alive() error {
	if p.Gone() {
		return p.over()
	}
	return nil
}

// Wake makes all Waits under way return, including one that is about to sleep. Any goroutine may call it.
func (p *Process) Wake() {
	p.wakes.Add(1)
	if p.waiters.Load() != 0 {
		p.host.wake(&p.status.RingTail, &p.wakes)
	}
}
