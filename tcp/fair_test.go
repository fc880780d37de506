//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// flooded writes as many copies of b as the socket takes, and returns how many bytes that were.
func flooded(fd int, b []byte) (n int) {
	for b = bytes.Repeat(b, (64<<10)/len(b)); ; {
		k, err := unix.Write(fd, b[n%len(b):])
		if err != nil {
			return n
		}
		n += k
	}
}

// unread is how many bytes wait at the connection's socket.
func unread(t *testing.T, i *conn) int {
	t.Helper()
	n, err := unix.IoctlGetInt(i.wire.in, unix.SIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A peer that sends nothing but the shortest frames takes a bounded part of each poll of the connections, and all of
// them are handled.
func TestFloodOfHeadsIsShared(t *testing.T) {
	c := aContext(t, driver.Large, nil)
	i, fd := c.fed(t)
	defer unix.Close(fd)
	c.drain.lock.lock() // the keep-alive goroutine reads nothing meanwhile
	defer c.drain.lock.unlock()
	var ping [transferHead]byte
	(&transfer{kind: framePing}).put(&ping)
	total := flooded(fd, ping[:])
	if total < 4*readCalls*transferHead {
		t.Fatalf("the socket takes %d bytes only", total)
	}
	c.drain.requeue(i)
	for look := range 2 {
		before := unread(t, i)
		c.takeAgain(new(pollClock))
		if took := before - unread(t, i); took > readCalls*transferHead || took == 0 {
			t.Errorf("look %d took %d bytes, the limit is %d", look, took, readCalls*transferHead)
		}
	}
	for n := 0; unread(t, i) > 0; n++ {
		if n > total {
			t.Fatalf("%d bytes are left", unread(t, i))
		}
		c.takeAgain(new(pollClock))
	}
	if err := i.Err(); err != nil {
		t.Error(err)
	}
}

// A poll leaves connections to the next one when many peers have sent much, and a genuine peer among them has its turn.
func TestFloodOfPeersIsShared(t *testing.T) {
	const peers = 256
	c := aContext(t, driver.Small, nil)
	c.watch()
	c.drain.lock.lock() // the keep-alive goroutine reads nothing meanwhile
	ping := binary.LittleEndian.AppendUint32(nil, frameHead(framePing, 0))
	var flooders []*conn
	var genuine *conn
	var flood []int
	for k := range peers {
		i, fd := c.fed(t)
		defer unix.Close(fd)
		if k < peers-1 {
			flood = append(flood, flooded(fd, ping))
			flooders = append(flooders, i)
		} else {
			genuine = i
			if _, err := unix.Write(fd, append(binary.LittleEndian.AppendUint32(nil, frameHead(frameMessage, 4)), "good"...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.drain.lock.unlock()
	checks, left := 0, 0
	for ; !genuine.HasMessage(); checks++ {
		c.drain.lock.lock() // a poll beside the keep-alive goroutine's does nothing
		c.drain.lock.unlock()
		c.takeReady()
		if checks == 0 {
			for k, i := range flooders {
				if unread(t, i) == flood[k] {
					left++
				}
			}
		}
		if checks > 2*peers {
			t.Fatalf("after %d polls the genuine peer's message was not taken", checks)
		}
	}
	if left == 0 {
		t.Error("the first look took from all peers")
	}
	for _, i := range flooders {
		if err := i.Err(); err != nil {
			t.Error(err)
		}
	}
}

// keys are the two ends of a handshake.
func keys(t testing.TB) (a, b *handshake.Conn) {
	t.Helper()
	key, err := handshake.NewKey([]byte("the secret of the test"))
	if err != nil {
		t.Fatal(err)
	}
	x, y := net.Pipe()
	cfg := &handshake.Config{Protocol: protocol}
	done := make(chan error, 1)
	go func() {
		var err error
		b, _, err = handshake.Accept(y, key.Find, cfg)
		done <- err
	}()
	if a, err = handshake.Dial(x, key, cfg, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return a, b
}

// A drain takes all encrypted bytes that have come, without a call of the user: the socket announces them only once,
// and a program that sleeps would not learn of the rest.
func TestSealedBytesAreAllTaken(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"encrypt": "on"})
	i, fd := c.fed(t)
	defer unix.Close(fd)
	mine, theirs := keys(t)
	c.drain.lock.lock()
	i.wire.seal = newSealer(mine)
	w := &wire{in: fd, out: fd, seal: newSealer(theirs)}
	s := newSmall()
	const messages, n = 6, maxSmall - headSize
	for range messages {
		s.put(s.outTail.Load(), frameMessage, n)
		end := s.outTail.Load()
		bufs := pieces(&s.outBufs, s.out[:outSize], end-uint64(frameSize(n)), frameSize(n))
		if k, st := w.write(bufs); k != frameSize(n) || st != ok {
			t.Fatalf("%d bytes were sent, status %d", k, st)
		}
	}
	c.drain.lock.unlock()
	for range 2 * messages {
		c.takeAll()
	}
	if got := int(s.outTail.Load()); int(i.api.(*small).inTail) != got {
		t.Errorf("%d bytes are taken, %d have come", i.api.(*small).inTail, got)
	}
}
