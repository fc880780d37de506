//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Without a loopback interface ranks of one host do not find each other: the error names the remedy.
func TestLoopbackThatIsDownIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err == unix.EPERM || err == unix.EINVAL {
		t.Skip("needs CAP_SYS_ADMIN and a kernel with network namespaces: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	j, err := Join(t.Context(), "127.0.0.1:9", 0, 2, NewSecret())
	if err == nil || !strings.Contains(err.Error(), "ip link set lo up") {
		t.Errorf("%v, %v; want the remedy", j, err)
	}
	// An interface that was up keeps its addresses: connections to them time out.
	for _, up := range []uint16{unix.IFF_UP, 0} {
		setLoopback(t, up)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if j, err := Join(ctx, "127.0.0.1:9", 0, 2, NewSecret()); err == nil || !strings.Contains(err.Error(), "ip link set lo up") {
		t.Errorf("after it was up: %v, %v; want the remedy", j, err)
	}
}

func setLoopback(t *testing.T, flags uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	r.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		t.Fatal(err)
	}
}
