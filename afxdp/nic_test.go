//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"testing"

	"github.com/bywash/bywash/afxdp/xsk"
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

// A device that may write to chunks gets them so large that drivers which use whole KiB take frames of MTU 1500.
func TestChunkSizes(t *testing.T) {
	for _, c := range []struct {
		mtu    int
		attach xsk.Attachment
		copies xsk.Copying
		want   int
	}{
		{1500, xsk.AttachAuto, xsk.CopyAuto, 4096},
		{1500, xsk.AttachNative, xsk.CopyNever, 4096},
		{1500, xsk.AttachAuto, xsk.CopyAlways, 2048},
		{1500, xsk.AttachGeneric, xsk.CopyAuto, 2048},
		{3000, xsk.AttachGeneric, xsk.CopyAuto, 4096},
	} {
		o := options{copying: c.copies}
		if got := o.chunkSize(c.mtu, c.attach); got != c.want {
			t.Errorf("MTU %d, attach %v, copying %v: chunks of %d bytes, want %d", c.mtu, c.attach, c.copies, got, c.want)
		}
	}
}
