//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// A peer that is stopped while this side disconnects, for less than the dead time, receives all that was sent. Its kernel
// has no room for everything, so that the rest must wait in this side's.
func TestDisconnectWaitsForAStoppedPeer(t *testing.T) {
	a, b := between(t, driver.Large, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	const size = 512 << 10
	in := driver.Packet{IOV: [][]byte{make([]byte, size)}}
	if err := b.RecvPost(&in); err != nil {
		t.Fatal(err)
	}

	peer := connOf(b)
	peer.ctx.Mu.Lock() // nobody can read, or send, as if the process were stopped
	peer.rx.lock()
	peer.tx.lock()
	out := driver.Packet{IOV: [][]byte{bytes.Repeat([]byte{7}, size)}, RdvData: in.RdvData}
	err := a.SendPost(&out)
	if err == nil {
		err = a.(driver.SendWaiter).SendWait(ctx, &out)
	}
	if err == nil {
		err = a.Disconnect()
	}
	if err != nil {
		t.Error(err)
	}
	c := connOf(a).ctx
	c.Mu.Lock()
	c.endClosing(time.Now().Add(c.opts.deadTime * 4 / 5)) // that much later
	open := len(c.closing)
	c.Mu.Unlock()
	if open != 1 {
		t.Errorf("%d connections are open after four fifths of the dead time, want 1", open)
	}
	peer.tx.unlock()
	peer.rx.unlock()
	peer.ctx.Mu.Unlock()

	if err := b.(driver.RecvWaiter).RecvWait(ctx, &in); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in.IOV[0], out.IOV[0]) {
		t.Error("the message arrives changed")
	}
	in = driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err = b.RecvPost(&in); err == nil {
		err = b.(driver.RecvWaiter).RecvWait(ctx, &in)
	}
	if !errors.Is(err, driver.ErrClosed) {
		t.Errorf("receive after the last message: %v, want %v", err, driver.ErrClosed)
	}
}

// counted is memory in pieces that counts how often one is asked for.
type counted struct {
	driver.Layout
	asked int
}

func (c *counted) Segment(i int) []byte {
	c.asked++
	return c.Layout.Segment(i)
}

func (c *counted) At(off int) (segment, skip int) {
	c.asked += c.Segments()
	return c.Layout.At(off)
}

// A long message of many small pieces takes time in proportion to their number, on both sides.
func TestScatteredMessagesAreWalkedOnce(t *testing.T) {
	const pieces = 5000
	a, b := between(t, driver.Large, nil)
	layout := func() *counted {
		l, err := driver.NewStrided(make([]byte, 96*pieces), 64, 96, pieces)
		if err != nil {
			t.Fatal(err)
		}
		return &counted{Layout: l}
	}
	from, to := layout(), layout()
	in := driver.Packet{Data: to}
	if err := b.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	out := driver.Packet{Data: from, RdvData: in.RdvData}
	if err := a.SendPost(&out); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.(driver.SendWaiter).SendWait(ctx, &out); err != nil {
		t.Fatal(err)
	}
	if err := b.(driver.RecvWaiter).RecvWait(ctx, &in); err != nil {
		t.Fatal(err)
	}
	if limit := 10 * pieces; from.asked > limit || to.asked > limit {
		t.Errorf("%d pieces: the sender asked for one %d times, the receiver %d times, want at most %d", pieces, from.asked, to.asked, limit)
	}
}
