//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
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
