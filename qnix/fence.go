//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"sync/atomic"

	"github.com/bywash/bywash/qnix/nic"
)

// fence runs functions when the NIC has read all commands so far, and the doorbells that have rung so far are drained.
// Contexts change their user only then: an entry of the Doorbell Ring names the context and not the operation, so an
// earlier user's entry would count as a message of the next user.
//
// The fence is a send to nobody. Its doorbell rings when the NIC has read the commands before it.
type fence struct {
	context int         // Send Context, used for nothing else
	rang    atomic.Bool // its doorbell was drained

	// Guarded by process.Mu.
	covered []func() // run when the posted fence rings; none: no fence is posted
	waiting []func() // run when the next fence rings
}

// afterFence calls f, with Mu held, when a fence that is posted from here on has rung: never if the NIC has failed. The
// caller holds Mu.
func (c *process) afterFence(f func()) {
	c.fence.waiting = append(c.fence.waiting, f)
	c.wakeBackground()
}

// stepFence is called by the background goroutine, which holds Mu.
func (c *process) stepFence() {
	f := &c.fence
	if f.rang.Swap(false) {
		for _, run := range f.covered {
			run()
		}
		f.covered = nil
	}
	if len(f.covered) == 0 && len(f.waiting) > 0 && c.post(c.proc.SendShort(f.context, nic.Name{}, controlTag, 0)) {
		f.covered, f.waiting = f.waiting, nil
	}
}
