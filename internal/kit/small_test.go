package kit_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// looped is an established connection of an open loop.
func looped(t *testing.T) (*loop, *loopback) {
	t.Helper()
	l := openLoop()
	t.Cleanup(func() { _ = l.Close() })
	i, err := l.Connect(l.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := i.ConnectWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, i.(*loopback)
}

func textPacket(s string) *driver.Packet { return &driver.Packet{IOV: [][]byte{[]byte(s)}} }

func room(n int) *driver.Packet { return &driver.Packet{IOV: [][]byte{make([]byte, n)}} }

func polled(t *testing.T, poll func(*driver.Packet) (bool, error), p *driver.Packet) {
	t.Helper()
	if done, err := poll(p); !done || err != nil {
		t.Fatalf("done %v, %v; want it done", done, err)
	}
}

func TestSendsWaitForCredit(t *testing.T) {
	_, n := looped(t)
	var out []*driver.Packet
	for k := range loopSlots + 2 {
		out = append(out, textPacket(fmt.Sprint(k)))
		if err := n.SendPost(out[k]); err != nil {
			t.Fatal(err)
		}
		if posted := out[k].Driver.Phase == driver.Posted; posted != (k >= loopSlots) || n.Stalled() != posted {
			t.Errorf("send %d: phase %v, stalled %v", k, out[k].Driver.Phase, n.Stalled())
		}
	}
	if err := n.Disconnect(); err != driver.ErrBusy {
		t.Errorf("disconnect while sends wait: %v, want busy", err)
	}
	if err := n.SendBufGet(&driver.Packet{}); err != driver.ErrBusy {
		t.Errorf("a buffer while sends wait: %v, want busy", err)
	}
	for k, p := range out {
		in := room(8)
		if err := n.RecvPost(in); err != nil {
			t.Fatal(err)
		}
		polled(t, n.RecvPoll, in)
		if got := string(in.IOV[0][:in.N]); got != fmt.Sprint(k) {
			t.Errorf("message %d is %q: out of order", k, got)
		}
		polled(t, n.SendPoll, p)
	}
	if n.Stalled() || n.Tally.Waited.Load() != 1 {
		t.Errorf("stalled %v at the end, waited %d times", n.Stalled(), n.Tally.Waited.Load())
	}
}

// Credit that comes while a send begins to wait is used at once: the goroutine that brought it has not seen that a send
// waits.
func TestCreditThatComesAsSendBeginsToWait(t *testing.T) {
	_, n := looped(t)
	n.refusals = 2 // SendPost's own attempt, and the one before the send waits
	p := textPacket("x")
	if err := n.SendPost(p); err != nil {
		t.Fatal(err)
	}
	if n.Stalled() || p.Driver.Phase != driver.Done {
		t.Errorf("stalled %v, phase %v; want the message sent", n.Stalled(), p.Driver.Phase)
	}
}

func TestWaitingSendsFailAtTheEnd(t *testing.T) {
	_, n := looped(t)
	var last *driver.Packet
	for range loopSlots + 1 {
		last = textPacket("x")
		if err := n.SendPost(last); err != nil {
			t.Fatal(err)
		}
	}
	n.Fail(errLost)
	if done, err := n.SendPoll(last); !done || !errors.Is(err, driver.ErrBroken) || n.Stalled() {
		t.Errorf("done %v, %v, stalled %v", done, err, n.Stalled())
	}
	in := room(1)
	for range loopSlots {
		if err := n.RecvPost(in); !errors.Is(err, driver.ErrBroken) {
			t.Fatalf("%v, want broken", err)
		}
		polled(t, n.RecvPoll, in) // a buffer receive: what came before the end
		if err := n.RecvBufRelease(in); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := n.RecvPoll(in); !done || !errors.Is(err, driver.ErrBroken) {
		t.Errorf("after the last message: %v, %v", done, err)
	}
}

func TestMessagesInPieces(t *testing.T) {
	const text = "a message in several pieces"
	for _, half := range []int{0, 1, 5, len(text) - 1, len(text)} {
		_, n := looped(t)
		n.half = half
		for range 3 {
			if err := n.SendPost(textPacket(text)); err != nil {
				t.Fatal(err)
			}
		}
		whole := &driver.Packet{IOV: [][]byte{make([]byte, 3), make([]byte, 40)}}
		short, lent := room(7), &driver.Packet{}
		for _, p := range []*driver.Packet{whole, short} {
			if err := n.RecvPost(p); err != nil {
				t.Fatal(err)
			}
		}
		polled(t, n.RecvPoll, whole)
		if got := bytes.Join(whole.IOV, nil)[:whole.N]; string(got) != text {
			t.Errorf("pieces of %d: got %q", half, got)
		}
		var cut *driver.TruncatedError
		if done, err := n.RecvPoll(short); !done || !errors.As(err, &cut) || cut.Message != len(text) || cut.Buffer != 7 {
			t.Errorf("pieces of %d, truncated: %v, %v", half, done, err)
		}
		polled(t, n.RecvPoll, lent)
		if string(lent.Buf) != text || lent.N != len(text) {
			t.Errorf("pieces of %d, lent: %q", half, lent.Buf)
		}
		if err := n.RecvBufRelease(lent); err != nil || n.head != 3 {
			t.Errorf("%v, %d messages were given back, want 3", err, n.head)
		}
	}
}

func TestSendBuffers(t *testing.T) {
	_, n := looped(t)
	p := &driver.Packet{}
	get := func() {
		t.Helper()
		if err := n.SendBufGet(p); err != nil || len(p.Buf) != loopRoom {
			t.Fatalf("%v, %d bytes", err, len(p.Buf))
		}
	}
	get()
	if err := n.SendPost(textPacket("x")); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a send while a buffer is out: %v", err)
	}
	if err := n.SendBufPost(p, loopRoom+1); !errors.Is(err, driver.ErrTooLong) {
		t.Errorf("more than it holds: %v", err)
	}
	if err := n.SendBufPost(p, -1); err != nil || n.tail != 0 || p.Driver.Phase != driver.Idle {
		t.Fatalf("unsent: %v, %d sent, phase %v", err, n.tail, p.Driver.Phase)
	}
	for k := range loopSlots {
		get()
		copy(p.Buf, "abcd")
		if err := n.SendBufPost(p, k); err != nil || p.N != k {
			t.Fatalf("%v, %d bytes", err, p.N)
		}
		polled(t, n.SendPoll, p)
	}
	if err := n.SendBufGet(p); err != driver.ErrBusy {
		t.Errorf("without room: %v, want busy", err)
	}
	if n.Tally.Sent.Load() != loopSlots || n.Tally.BytesSent.Load() != 6 {
		t.Errorf("counted %d messages of %d bytes", n.Tally.Sent.Load(), n.Tally.BytesSent.Load())
	}
}

func TestSmallDoesNotAllocate(t *testing.T) {
	l, n := looped(t)
	out, in, lent := textPacket("message"), room(8), &driver.Packet{}
	prober := l.Self().(driver.Prober)
	if allocs := testing.AllocsPerRun(100, func() {
		_ = n.RecvPost(in)
		_ = n.SendPost(out)
		_, _ = prober.RecvProbeAny()
		polled(t, n.RecvPoll, in)
		polled(t, n.SendPoll, out)
		_ = n.SendPost(out)
		polled(t, n.RecvPoll, lent)
		_ = n.RecvBufRelease(lent)
		polled(t, n.SendPoll, out)
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

var _ kit.Starter = (*loopback)(nil)
