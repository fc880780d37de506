//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// A process without descriptors gets an error that names the limit, where the kernel has dropped those that came.
func TestLackOfDescriptorsIsNamed(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		defer c.Close()
	}
	if err := send(ends[0], &message{kind: msgConfirm}, 0, 1); err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	var m message
	_, err = expect(ends[1], &m, msgConfirm, 2)
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); e != nil {
		t.Fatal(e)
	}
	oneLine(t, err, "ulimit -n", "too many open files")
	if !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want %v", err, driver.ErrBroken)
	}
}

// A listener that lacks descriptors sends a reason, instead of hanging up.
func TestListenerWithoutDescriptorsIsNamed(t *testing.T) {
	oneLine(t, rejectError(rejectResources), "the peer has no descriptors", "ulimit -n")
}
