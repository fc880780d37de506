//go:build linux

package nic

import (
	"sync/atomic"
	"time"
)

// gate keeps a descriptor open while calls use it: after close its number may be
// another file's. The zero gate is open.
type gate struct{ n atomic.Int64 } // users; far below 0 when closed

const gateClosed = 1 << 40

func (g *gate) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.n.Add(-1)
	return false
}

func (g *gate) leave() { g.n.Add(-1) }

// close refuses further users and waits until all have left.
func (g *gate) close() {
	for g.n.Add(-gateClosed); g.n.Load() != -gateClosed; {
		time.Sleep(20 * time.Microsecond)
	}
}

func (g *gate) open() { g.n.Add(gateClosed) }
