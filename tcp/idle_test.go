//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// frames are heads without messages.
func frames(kinds ...uint32) (b []byte) {
	for _, k := range kinds {
		b = binary.LittleEndian.AppendUint32(b, k)
	}
	return b
}

// Frames without messages take no room from messages, however many come at once: a program that only sends gets grants,
// and no message with which their room would be freed.
func TestFramesWithoutMessagesKeepNoRoom(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	i, fd := c.fed(t)
	defer unix.Close(fd)
	s := i.api.(*small)
	ping := frameHead(framePing, 0)
	several := frames(ping, ping, ping, ping)
	for range inSize/len(several) + 100 {
		if _, err := unix.Write(fd, several); err != nil {
			t.Fatal(err)
		}
		i.receive()
	}
	if left := s.inTail - s.inHead.Load(); left > 0 {
		t.Errorf("%d bytes of frames without messages are kept", left)
	}
}

// A grant behind as many frames as one poll handles is applied once, by the next poll.
func TestGrantBehindManyFramesIsAppliedOnce(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	i, fd := c.fed(t)
	defer unix.Close(fd)
	s := i.api.(*small)
	c.drain.lock.lock() // nobody else reads
	defer c.drain.lock.unlock()
	s.sentFrames.Store(window)
	heads := make([]uint32, parseLimit, parseLimit+1)
	for k := range heads {
		heads[k] = frameHead(framePing, 0)
	}
	if _, err := unix.Write(fd, frames(append(heads, frameHead(frameGrant, grantStep/4))...)); err != nil {
		t.Fatal(err)
	}
	i.receive()
	i.receive()
	if got := s.granted.Load(); got != window+grantStep {
		t.Errorf("%d bytes are granted, want %d", got, window+grantStep)
	}
}

// A program that takes no messages, while its peer takes its own, gets the grants and the end of the peer nevertheless:
// frames without messages between those that wait do not fill the ring.
func TestWaitingMessagesLeaveRoomForOtherFrames(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	i, fd := c.fed(t)
	defer unix.Close(fd)
	s := i.api.(*small)
	const size, text = 12, "8 bytes."
	n := window / size
	ping := frameHead(framePing, 0)
	for range n {
		b := append(frames(ping, ping, frameHead(frameMessage, len(text))), text...)
		if _, err := unix.Write(fd, append(b, frames(ping)...)); err != nil {
			t.Fatal(err)
		}
		i.receive()
	}
	if free := inSize - (s.inTail - s.inHead.Load()); free < 4096 {
		t.Fatalf("%d bytes are free behind %d messages of %d bytes: the end of the peer may not be read", free, n, size)
	}
	for k := range n {
		var p driver.Packet
		if done, err := i.Self.RecvPoll(&p); !done || err != nil || string(p.Buf) != text {
			t.Fatalf("message %d: %v, %v, %q", k, done, err, p.Buf)
		}
		if err := i.Self.(driver.BufferReceiver).RecvBufRelease(&p); err != nil {
			t.Fatal(err)
		}
	}
}

// A program that holds a buffer of SendBufGet for longer than the dead time is not taken for dead, and its peer can
// send on: signs of life and grants do not wait for the buffer.
func TestHeldBufferKeepsConnection(t *testing.T) {
	for _, encrypt := range []string{"off", "on"} {
		t.Run("encrypt="+encrypt, func(t *testing.T) {
			a, b := between(t, driver.Small, map[string]string{"dead-time": "300ms", "encrypt": encrypt})
			held := driver.Packet{}
			if err := a.(driver.BufferSender).SendBufGet(&held); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			text := bytes.Repeat([]byte{7}, maxSmall)
			sent := make(chan error, 1)
			const messages = 4 * window / maxSmall
			go func() {
				for range messages {
					p := driver.Packet{IOV: [][]byte{text}}
					err := b.SendPost(&p)
					if err == nil {
						err = b.(driver.SendWaiter).SendWait(ctx, &p)
					}
					if err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			for k := range messages {
				receives(ctx, t, a, text, k)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			p := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			if err := b.RecvPost(&p); err != nil {
				t.Fatal(err)
			}
			silence, stop := context.WithTimeout(t.Context(), 600*time.Millisecond)
			defer stop()
			if err := b.(driver.RecvWaiter).RecvWait(silence, &p); err != context.DeadlineExceeded {
				t.Fatalf("the peer of a program that holds a buffer for twice the dead time: %v", err)
			}
			copy(held.Buf, "whole")
			if err := a.(driver.BufferSender).SendBufPost(&held, 5); err != nil {
				t.Fatal(err)
			}
			if err := b.(driver.RecvWaiter).RecvWait(ctx, &p); err != nil || string(p.IOV[0][:p.N]) != "whole" {
				t.Fatalf("the message of the buffer: %q, %v", p.IOV[0][:p.N], err)
			}
		})
	}
}

// receives takes message k, which is to be text.
func receives(ctx context.Context, t *testing.T, i driver.Instance, text []byte, k int) {
	t.Helper()
	p := driver.Packet{IOV: [][]byte{make([]byte, len(text))}}
	if err := i.RecvPost(&p); err != nil {
		t.Fatal(err)
	}
	if err := i.(driver.RecvWaiter).RecvWait(ctx, &p); err != nil {
		t.Fatalf("message %d: %v", k, err)
	}
	if !bytes.Equal(p.IOV[0][:p.N], text) {
		t.Fatalf("message %d arrives changed", k)
	}
}

// between are two contexts in this process that are connected.
func between(t *testing.T, track driver.Track, options map[string]string) (a, b driver.Instance) {
	t.Helper()
	return connected(t, aContext(t, track, options), aContext(t, track, options))
}

// connected are the ends of a new connection.
func connected(t *testing.T, a, b *share) (x, y driver.Instance) {
	t.Helper()
	x, err := a.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	if y, err = b.Connect(a.URL()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, i := range []driver.Instance{x, y} {
		if err := i.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return x, y
}
