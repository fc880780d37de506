//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"runtime"
	"time"
)

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 20

// Sleeps of a wait: the first one is short, so that no waker is needed for its context; a later one ends with the
// context.
const (
	shortSleep = 5 * time.Millisecond
	longSleep  = time.Second
)

// sockets are what waits sleep on.
type sockets struct{ c *share }

// Arm implements kit.Watched: bytes stay until a goroutine reads them.
func (s sockets) Arm() uint64 { return 0 }

func (s sockets) Sleep(_ uint64, again bool) {
	c := s.c
	switch {
	case c.opts.spin:
		for range 100 {
			if c.takeAll() {
				return
			}
		}
		runtime.Gosched()
	case again:
		c.poll.waiter.sleep(longSleep)
	default:
		c.poll.waiter.sleep(shortSleep)
	}
}

func (s sockets) Wake() { s.c.poll.waiter.wake() }

func (s sockets) Call() { s.c.wakeKeepAlive() }
