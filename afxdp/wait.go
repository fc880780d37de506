//go:build linux

package afxdp

import (
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
)

const rxEvent = xsk.EventRx

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

// longestSleep bounds one sleep in the kernel, after which a context is looked at.
const longestSleep = 10 * time.Millisecond

// frameWaits is the NIC as what waits sleep on: in the kernel if it has one queue, which alone can be waited for. Where no waiter watches, the
// keepers of the queues do.
type frameWaits struct{ n *nic }

// Arm implements kit.Watched: frames stay until somebody takes them.
func (w frameWaits) Arm() uint32 { return 0 }

// Sleep implements kit.Watched: it waits for frames, or a timer of ours.
func (w frameWaits) Sleep(uint32, bool) {
	n := w.n
	wait := min(time.Duration(n.due.Load())-time.Since(n.origin), longestSleep)
	_, _ = n.queues[0].sock.Wait(rxEvent, max(wait, 0))
	n.run()
}

// Wake implements kit.Watched.
func (w frameWaits) Wake() { w.n.queues[0].sock.Wake() }

// Call implements kit.Watched.
func (w frameWaits) Call() {
	select {
	case w.n.nudge <- struct{}{}:
	default:
	}
}
