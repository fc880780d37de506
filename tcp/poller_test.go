//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// A goroutine that wakes sleepers of a context that was closed meanwhile writes to no file that has got the number of
// the context's descriptor.
func TestLateWakeupWritesToNoFile(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "foreign"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for range 100 {
		c := aContext(t, driver.Small, nil)
		number := c.poll.wakeup
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, number)
		if err != nil {
			t.Fatal(err)
		}
		if again == number {
			c.poll.ring()
		}
		_ = unix.Close(again)
		if again != number { // the runtime was faster
			continue
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != 0 {
			t.Errorf("a foreign file has %d bytes, want 0", info.Size())
		}
		return
	}
	t.Error("the number of the closed descriptor was never free")
}

// An event of a connection that had the number before does not concern the new one.
func TestEventOfEarlierConnectionIsIgnored(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	c.watch()
	c.Mu.Lock()
	before := c.newConn() // number 0
	c.Mu.Unlock()
	now, fd := c.fed(t)
	defer unix.Close(fd)
	if now.Number() != before.Number() {
		t.Fatalf("the new connection has number %d, want %d", now.Number(), before.Number())
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	if err := c.poll.control(unix.EPOLL_CTL_ADD, fds[0], unix.EPOLLIN|unix.EPOLLRDHUP, tokenOf(before)); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fds[1])
	for range 4 { // another goroutine may drain
		c.takeReady()
	}
	if now.hup.Load() {
		t.Error("the new connection has ended")
	}
}
