//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
)

// noDescriptors lets this process open no further descriptors, until the function that it returns is called.
func noDescriptors(t *testing.T) (again func()) {
	t.Helper()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(f.Fd()) // the lowest that is free
	_ = f.Close()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: next, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	again = func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(again)
	return again
}

// A process without descriptors gets an error that names them when it connects, keeps the connections that it has, and
// accepts those that have waited once it has some.
func TestWithoutDescriptors(t *testing.T) {
	a, b, d := aContext(t, driver.Small, nil), aContext(t, driver.Small, nil), aContext(t, driver.Small, nil)
	opened := attack.Settled().FDs
	x, y := connected(t, a, b)
	attack.Await(t, "of the sockets that raced to connect, one is left at each end", func() bool {
		return attack.Settled().FDs == opened+2
	})
	before := attack.Settled()
	unproven, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	again := noDescriptors(t)
	if err := unix.Connect(unproven, &unix.SockaddrInet4{Port: portOf(a), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait)
	defer cancel()
	p, err := b.Connect(d.URL())
	if err != nil {
		t.Fatal(err)
	}
	err = p.ConnectWait(ctx)
	if !errors.Is(err, unix.EMFILE) || !errors.Is(err, driver.ErrBroken) {
		t.Errorf("connect without descriptors: %v, want %v", err, unix.EMFILE)
	} else if !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("connect without descriptors: %v: want the remedy", err)
	}
	_ = p.Disconnect()
	moves(t, x, y, driver.Small, 1000)
	used := cpu(t)
	time.Sleep(4 * acceptPause)
	if used = cpu(t) - used; used > 2*acceptPause {
		t.Errorf("the process computes for %v of %v while it can accept nothing", used, 4*acceptPause)
	}
	again()
	attack.Await(t, "the dialer that waited is accepted", func() bool {
		a.unauthenticated.mu.Lock()
		defer a.unauthenticated.mu.Unlock()
		return len(a.unauthenticated.list) > 0
	})
	_ = unix.Close(unproven)
	p, q := connected(t, a, d)
	moves(t, p, q, driver.Small, 1000)
	_, _ = p.Disconnect(), q.Disconnect()
	attack.Left(t, "once there are descriptors again", before)
}

// cpu is how long this process has computed.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
