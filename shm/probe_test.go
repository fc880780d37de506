//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// A peer that dies in the middle of a message in steps leaves its beginning: that is no message, and no reason to keep
// quiet about the death.
func TestDeathWithinAMessageIsNamed(t *testing.T) {
	for _, n := range []int{stepBytes + 1, maxSmall} {
		c := open(t, driver.Small, nil)
		i := newFakePeer(t)
		inst := i.connect(c)
		prober := c.(driver.Prober)
		store64((*uint64)(unsafe.Pointer(i.seg.ring[1].slots)), lap(0)|kindSteps<<kindShift|uint64(n))
		if got, err := prober.RecvProbeAny(); err != driver.ErrAgain {
			t.Errorf("%d bytes: before the death: %v, %v; want %v", n, got, err, driver.ErrAgain)
		}
		i.sock.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got, err := prober.RecvWaitAny(ctx)
		cancel()
		if got != inst || err != nil {
			t.Fatalf("%d bytes: the death is not named: %v, %v", n, got, err)
		}
		p := &driver.Packet{IOV: [][]byte{make([]byte, maxSmall)}}
		err = inst.RecvPost(p)
		for done := err != nil; !done; {
			done, err = inst.RecvPoll(p)
		}
		if !errors.Is(err, driver.ErrBroken) {
			t.Errorf("%d bytes: receive: %v, want %v", n, err, driver.ErrBroken)
		}
	}
}
