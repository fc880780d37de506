//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// A wait for a long message copies all its pieces, one after the other, also where the peer does nothing more.
func TestWaitCopiesEveryPiece(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_readv, which this sandbox refuses")
	}
	const n = 128 * maxPiece // one sleep for each would take a minute
	a, b := pair(t, driver.Large, map[string]string{"path": "cma", "ends": "receiver"})
	out, in := driver.Packet{IOV: [][]byte{random(n)}}, driver.Packet{IOV: [][]byte{make([]byte, n)}}
	if err := b.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	out.RdvData = bytes.Clone(in.RdvData)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- b.(driver.RecvWaiter).RecvWait(ctx, &in) }()
	within(t, 10*time.Second, "the receiver sleeps", func() bool { return connOf(b).Tally.Slept.Load() > 0 })
	if err := a.SendPost(&out); err != nil {
		t.Fatal(err)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in.IOV[0], out.IOV[0]) {
		t.Error(integrity.Errorf("the bytes differ"))
	}
	if err := await(t, func() (bool, error) { return a.SendPoll(&out) }); err != nil {
		t.Fatal(err)
	}
}

// A wait for one message moves the others on, whose fragments may be before its own in the ring.
func TestWaitMovesOtherMessages(t *testing.T) {
	const n = 1 << 20
	a, b := pair(t, driver.Large, map[string]string{"path": "ring"})
	var out, in [3]driver.Packet
	for i := range in {
		out[i], in[i] = driver.Packet{IOV: [][]byte{random(n)}}, driver.Packet{IOV: [][]byte{make([]byte, n)}}
		if err := b.RecvPost(&in[i]); err != nil {
			t.Fatal(err)
		}
		out[i].RdvData = bytes.Clone(in[i].RdvData)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- b.(driver.RecvWaiter).RecvWait(ctx, &in[0]) }()
	within(t, 10*time.Second, "the receiver sleeps", func() bool { return connOf(b).Tally.Slept.Load() > 0 })
	for _, i := range []int{2, 1, 0} {
		if err := a.SendPost(&out[i]); err != nil {
			t.Fatal(err)
		}
		if err := a.(driver.SendWaiter).SendWait(ctx, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	for i := range in {
		if i > 0 {
			if err := await(t, func() (bool, error) { return b.RecvPoll(&in[i]) }); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(in[i].IOV[0], out[i].IOV[0]) {
			t.Error(integrity.Errorf("the bytes of message %d differ", i))
		}
	}
}
