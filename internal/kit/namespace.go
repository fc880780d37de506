//go:build linux

package kit

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// InNamespace runs f in the network namespace that path names, on a thread in it: sockets that f makes stay in the
// namespace, goroutines that it starts do not run there. An empty path means the present namespace. It needs
// CAP_SYS_ADMIN. If path is no network namespace, the error is ErrInvalid.
func InNamespace(path string, f func() error) (err error) {
	if path == "" {
		return f()
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: network namespace %s: %w", driver.ErrInvalid, path, err)
	}
	defer unix.Close(fd)
	runtime.LockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(home)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer func() {
		if back := unix.Setns(home, unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread() // without this the thread, which is in the other namespace, ends with the goroutine
		}
	}()
	return f()
}

// Namespace returns the number of the calling thread's namespace of a kind, as /proc/PID/ns names it ("mnt", "net",
// "user"). Two namespaces of one kernel that exist at a time have different numbers. It is 0 if it cannot be known.
func Namespace(kind string) uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/"+kind, &st) != nil {
		return 0
	}
	return st.Ino
}
