//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// lateTrack is a track on which something is put to be sent just after a flush has looked whether there is more.
type lateTrack struct {
	track
	writes atomic.Int32
	put    func()
}

func (l *lateTrack) write() { l.writes.Add(1) }

func (l *lateTrack) unsent() bool {
	if f := l.put; f != nil {
		l.put = nil
		f()
	}
	return false
}

// Bytes that are queued while another goroutine is about to end its flush are sent by that one: no other goroutine
// would send them, not even the keep-alive goroutine, and the peer would take this side for dead.
func TestFlushLosesNothing(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	i, fd := c.fed(t)
	defer unix.Close(fd)
	c.Mu.Lock() // the keep-alive goroutine polls nothing meanwhile
	defer c.Mu.Unlock()
	c.drain.lock.lock()
	defer c.drain.lock.unlock()
	late := &lateTrack{track: i.api}
	late.put = i.flush // the lock is held: it relies on the flush that is under way
	i.api = late
	i.flush()
	i.api = late.track
	if n := late.writes.Load(); n != 2 {
		t.Errorf("%d writes, want one more for what was put late", n)
	}
}
