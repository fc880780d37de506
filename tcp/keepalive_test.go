//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/attack"
)

// The keep-alive goroutine takes what has come for all connections, however few of them one poll has time for, before
// its next check is due: it would break those of healthy peers otherwise.
func TestKeepAlivePollsAllConnections(t *testing.T) {
	defer func(d time.Duration) { pollTime = d }(pollTime)
	pollTime = time.Nanosecond
	t.Run("in short polls", keepAlivePollsAll) // its context ends before the time is restored
}

func keepAlivePollsAll(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"dead-time": "1h"}) // no check meanwhile
	c.watch()
	conns := make([]*conn, 64)
	for k := range conns {
		i, fd := c.fed(t)
		t.Cleanup(func() { _ = unix.Close(fd) })
		if _, err := unix.Write(fd, frames(frameHead(framePing, 0))); err != nil {
			t.Fatal(err)
		}
		conns[k] = i
	}
	left := func() (n int) {
		for _, i := range conns {
			if !i.hasReceived.Load() {
				n++
			}
		}
		return n
	}
	c.takeReady()
	if left() == 0 {
		t.Fatal("one poll has taken everything")
	}
	c.wakeKeepAlive()
	attack.Await(t, fmt.Sprintf("signs of life of %d connections are taken", len(conns)), func() bool { return left() == 0 })
}

// Messages that are held back do not wait for the next check when the keep-alive goroutine went to sleep on the sockets
// on behalf of a waiter that has left since.
func TestHeldMessagesWakeKeepAlive(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"dead-time": "1h"})
	i, fd := c.fed(t)
	defer unix.Close(fd)
	wait := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if _, err := c.Self().(driver.Prober).RecvWaitAny(ctx); err != context.Canceled {
				t.Errorf("wait for any connection: %v, want %v", err, context.Canceled)
			}
		}()
		return func() { cancel(); <-ended }
	}
	endFirst := wait()
	attack.Await(t, "the first waiter watches the sockets", c.waits.Watching)
	endSecond := wait()
	attack.Await(t, "both wait", func() bool { return c.waits.Sleepers() == 2 })
	endFirst()
	attack.Await(t, "the keep-alive goroutine sleeps on the sockets", c.poll.keepAlive.asleep.Load)
	endSecond()
	const messages = promptPosts + 1
	for range messages {
		p := driver.Packet{IOV: [][]byte{[]byte("held")}}
		if err := i.Self.SendPost(&p); err != nil {
			t.Fatal(err)
		}
	}
	attack.Await(t, "the peer has all messages", func() bool {
		n, err := unix.IoctlGetInt(fd, unix.SIOCINQ) // reading would wake the goroutine: there is more room
		return err == nil && n == messages*frameSize(len("held"))
	})
}

// A silent peer is broken within the dead time after its last bytes, and one that is stopped for 0.8 of it is not.
func TestChecksKeepDeadTime(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"dead-time": "1h"})
	i, fd := c.fed(t)
	defer unix.Close(fd)
	c.Mu.Lock() // the keep-alive goroutine checks nothing meanwhile
	defer c.Mu.Unlock()
	i.hasSent.Store(true) // just after a check
	sign, b := 0, make([]byte, 16)
	for n := 0; n <= 0; n, _ = unix.Read(fd, b) {
		if sign++; sign > checks {
			t.Fatalf("no sign of life in %d checks, the dead time has %d", sign, checks)
		}
		i.beat(i.every, 1)
		i.checkAlive()
		i.signOfLife()
	}
	i.hasReceived.Store(true)
	i.checkAlive() // for bytes that came up to one check ago
	silent := 0
	for i.State() == kit.StateUp {
		i.checkAlive()
		silent++
	}
	if silent+1 > checks {
		t.Errorf("silence is found up to %d checks after the last bytes, the dead time has %d", silent+1, checks)
	}
	if stopped := float64(silent - sign); stopped < 0.8*checks {
		t.Errorf("a peer that is stopped for %v checks is broken, want none below 0.8 of %d", stopped, checks)
	}
}

// Each end sends signs of life as often as the end with the lesser dead time wants them.
func TestPeersDeadTimeSetsSignsOfLife(t *testing.T) {
	a := aContext(t, driver.Small, map[string]string{"dead-time": "1h"})
	b := aContext(t, driver.Small, map[string]string{"dead-time": "2s"})
	x, y := connected(t, a, b)
	for _, i := range []driver.Instance{x, y} {
		if got, want := i.(*small).every, 2*time.Second/checks; got != want {
			t.Errorf("a sign of life at least every %v, want 2 times %v", 2*got, want)
		}
	}
	i, fd := a.fed(t)
	defer unix.Close(fd)
	a.Mu.Lock()
	i.every = b.opts.deadTime / checks
	a.Mu.Unlock()
	a.wakeKeepAlive()
	attack.Await(t, "a sign of life comes long before the own dead time", func() bool {
		n, _ := unix.Read(fd, make([]byte, headSize))
		return n > 0
	})
}

// A send that the keep-alive goroutine finishes wakes the goroutine that waits for it.
func TestKeepAliveWakesSenders(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"dead-time": "1h"})
	i, fd := c.fed(t)
	defer unix.Close(fd)
	s := i.api.(*small)
	s.granted.Store(1 << 40)
	var p driver.Packet
	for !s.Stalled() {
		p = driver.Packet{IOV: [][]byte{make([]byte, maxSmall)}}
		if err := i.Self.SendPost(&p); err != nil {
			t.Fatal(err)
		}
	}
	woken := i.Life.Sleep()
	defer i.Awake()
	c.drain.lock.lock() // no event of the socket wakes it
	defer c.drain.lock.unlock()
	b := make([]byte, 1<<20)
	attack.Await(t, "the waiter is woken", func() bool {
		_, _ = unix.Read(fd, b)
		select {
		case <-woken:
			return true
		default:
			return false
		}
	})
}

// Credit that comes while the owner is in a call, after the call has looked for it, is used soon after the call.
func TestKeepAliveReturnsToStalledSends(t *testing.T) {
	c := aContext(t, driver.Small, map[string]string{"dead-time": "1h"})
	i, fd := c.fed(t)
	defer unix.Close(fd)
	s := i.api.(*small)
	s.granted.Store(0)
	p := driver.Packet{IOV: [][]byte{[]byte("waits")}}
	if err := i.Self.SendPost(&p); err != nil || !s.Stalled() {
		t.Fatalf("stalled %v, %v; want a send that waits", s.Stalled(), err)
	}
	if !i.Enter() { // a long call
		t.Fatal("the connection is closed")
	}
	s.granted.Store(window)
	_, busy := c.pollAll(time.Now(), false, &clock{tick: time.Hour}, 0)
	i.Leave()
	if !busy {
		t.Error("the keep-alive goroutine rests until its next check, want that it returns soon")
	}
}
