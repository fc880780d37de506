//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"os"
	"runtime"
	"strings"
	"testing"

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
}
