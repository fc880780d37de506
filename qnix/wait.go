//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"time"
)

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

// Longest sleeps in the kernel. The first sleep is short, so that it needs no goroutine that wakes it. A later sleep
// ends with the waiter's context; it is long, because each wake-up keeps Go's runtime busy for a while.
const (
	shortSleep = 5 * time.Millisecond
	sleepAgain = time.Second
)

// ring lets waiters sleep until the Doorbell Ring has another entry.
type ring struct{ c *process }

// Arm implements kit.Watched. The upper half counts wake-ups: one between it and Sleep is not lost.
func (r ring) Arm() uint64 {
	return uint64(r.c.proc.Wakes())<<32 | uint64(r.c.doorbells.seen.Load())
}

func (r ring) Sleep(seen uint64, again bool) {
	d := shortSleep
	if again {
		d = sleepAgain
	}
	if err := r.c.proc.WaitSince(uint32(seen), uint32(seen>>32), d); err != nil {
		r.c.nicFailed(err)
		time.Sleep(shortSleep) // no sleep in the NIC any more
	}
	r.c.Drain()
}

func (r ring) Wake() { r.c.proc.Wake() }

func (r ring) Call() { r.c.wakeBackground() }
