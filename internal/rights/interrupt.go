//go:build linux

package rights

import (
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A system call that closes a lingering socket is interrupted after firstKick, and then again at growing intervals.
const (
	firstKick = 2 * time.Millisecond
	lastKick  = time.Second
)

// call is a system call under way.
type call struct {
	mu    sync.Mutex
	tid   int
	over  bool
	wait  time.Duration
	timer *time.Timer
}

// interrupted runs f, whose system calls must not wait for lingering sockets: such a wait ends when a signal is pending
// for the thread. A late signal has no effect on the thread's other work, like the scheduler's own signals.
func interrupted(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &call{tid: unix.Gettid(), wait: firstKick}
	c.mu.Lock()
	c.timer = time.AfterFunc(c.wait, c.kick)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
		c.timer.Stop()
	}()
	f()
}

func (c *call) kick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	_ = unix.Tgkill(unix.Getpid(), c.tid, unix.SIGURG)
	c.wait = min(2*c.wait, lastKick)
	c.timer.Reset(c.wait)
}

// closeTime bounds Close where signals do not help: the program has blocked SIGURG.
const closeTime = 100 * time.Millisecond

// Close closes a socket or a listener, in whose queue descriptors may lie. No other goroutine may be inside a
// read or an accept of it, as the file would be closed there: call HangUp, and let the reader close.
func Close(c io.Closer) { bounded(func() { _ = c.Close() }) }

// Interrupt ends the accept, or reads and writes, of another goroutine, which closes the listener or socket then. Unlike
// HangUp it shows the other end nothing before. The file may be closed here: by whoever uses it last.
func Interrupt(l interface{ SetDeadline(t time.Time) error }) {
	bounded(func() { _ = l.SetDeadline(time.Now()) })
}

// bounded is interrupted, but waits for closeTime at most on kernels where anybody can pass descriptors.
func bounded(f func()) {
	if Supported() {
		interrupted(f)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		interrupted(f)
	}()
	select {
	case <-done:
	case <-time.After(closeTime):
	}
}

// HangUp ends a connection in both directions without closing the socket: readers of both ends get what was
// sent before, then io.EOF.
func HangUp(c interface {
	CloseRead() error
	CloseWrite() error
}) {
	interrupted(func() {
		_ = c.CloseWrite()
		_ = c.CloseRead()
	})
}
