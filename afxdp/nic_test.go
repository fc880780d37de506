//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// sleeper is a waiter that looks at the rings once more when the NIC is closed.
type sleeper struct {
	n      *nic
	asleep chan struct{}
	over   bool
}

func (s *sleeper) Arm() uint64 { return 0 }

func (s *sleeper) Sleep(uint64, bool) {
	close(s.asleep)
	<-s.n.wakeup // close begins
	<-s.n.wakeup // close waits
	s.over = true
}

func (s *sleeper) Wake() {}
func (s *sleeper) Call() {}

func (s *sleeper) RecvProbeAny() (driver.Instance, error) {
	if s.over {
		return nil, driver.ErrClosed
	}
	return nil, driver.ErrAgain
}

// Waiters, which look at the rings of a NIC, are gone before close unmaps them.
func TestCloseAwaitsWaiters(t *testing.T) {
	n := &nic{wakeup: make(chan struct{}, 1)}
	s := &sleeper{n: n, asleep: make(chan struct{})}
	n.waits.Device = s
	go func() { _, _ = (&kit.AnyWaits{Watch: &n.waits}).Wait(t.Context(), s) }()
	<-s.asleep
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	if n.waits.Sleepers() > 0 {
		t.Error("close unmaps the rings while a waiter looks at them")
	}
}
