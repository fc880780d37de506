package qnix

import (
	"time"
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
type ring struct{ c *process }

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
	r.c.Drain()
}

// Wake implements kit.Watched.
func (r ring) Wake() { r.c.proc.Wake() }

// Call implements kit.Watched.
func (r ring) Call() { r.c.nudge() }
