//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
)

const rxEvent = xsk.EventRx

// spins is how many polls a wait makes before it sleeps: a few microseconds.
const spins = 100

// longestSleep bounds one sleep in the kernel; a waiter then looks at its context.
const longestSleep = 10 * time.Millisecond

// frameWaits lets waiters sleep until frames arrive. If the NIC has one queue, a waiter sleeps in the kernel, which can
// wait for one queue only. If no waiter does, the queue goroutines watch.
type frameWaits struct{ n *nic }

// Arm implements kit.Watched. It need do nothing, because frames stay in the ring until a round handles them.
func (w frameWaits) Arm() uint64 { return 0 }

// Sleep implements kit.Watched. It waits for frames or the next timer.
func (w frameWaits) Sleep(uint64, bool) {
	n := w.n
	wait := min(time.Duration(n.due.Load())-time.Since(n.origin), longestSleep)
	_ = n.queues[0].sock.WakeRx()
	_, _ = n.queues[0].sock.Wait(rxEvent, max(wait, 0))
	n.run()
}

func (w frameWaits) Wake() { w.n.queues[0].sock.Wake() }

func (w frameWaits) Call() {
	for range cap(w.n.wakeup) { // a goroutine each
		select {
		case w.n.wakeup <- struct{}{}:
		default:
			return
		}
	}
}
