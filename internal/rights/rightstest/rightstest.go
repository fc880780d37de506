//go:build linux

// Package rightstest makes descriptors whose close blocks, for tests of programs that receive descriptors.
package rightstest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
)

// linger is how long the last close of a Lingering socket blocks.
const linger = 25 * time.Second

// EachKernel runs f as on the running kernel, and as on one before 6.16.
func EachKernel(t *testing.T, f func(*testing.T)) {
	t.Run("this kernel", f)
	t.Run("before 6.16", func(t *testing.T) {
		rights.Old.Store(true)
		defer rights.Old.Store(false)
		f(t)
	})
}

// Lingering returns a TCP socket that is connected over loopback to one that does not read, with unsent data: its last
// close blocks for linger.
func Lingering(t testing.TB) int {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	defer unix.Close(l)
	check(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	check(err)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	check(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<16))
	check(unix.Connect(s, at))
	unread, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	check(err)
	t.Cleanup(func() { unix.Close(unread) })
	for b := make([]byte, 1<<16); ; {
		if _, err := unix.SendmsgN(s, b, nil, nil, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	wait := unix.Linger{Onoff: 1, Linger: int32(linger / time.Second)}
	check(unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, &wait))
	return s
}

// Nested returns a Unix socket in whose queue a Lingering one lies: SO_LINGER cannot be cleared from outside.
func Nested(t testing.TB) int {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := Lingering(t)
	if err := unix.Sendmsg(p[0], []byte{1}, unix.UnixRights(s), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(s)
	unix.Close(p[0])
	return p[1]
}
