//go:build linux

package veth

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNamespace opens the network namespace of the calling thread, which
// the caller has locked.
func threadNamespace() (int, error) {
	const path = "/proc/thread-self/ns/net"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// inside runs f on this goroutine's thread after enter has moved the thread into another network namespace, and moves
// it back. If it cannot move back, the goroutine stays locked to the thread, and the runtime ends the thread with the
// goroutine instead of using it for another one.
func inside(enter, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := threadNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		back := unix.Setns(home, unix.CLONE_NEWNET)
		unix.Close(home)
		if back == nil {
			runtime.UnlockOSThread()
		} else if err == nil {
			err = fmt.Errorf("return to the network namespace before: %w", back)
		}
	}()
	if err := enter(); err != nil {
		return err
	}
	return f()
}

// newNamespace makes a network namespace and returns its descriptor. The namespace exists as long as the descriptor or
// a process in it.
func newNamespace() (int, error) {
	fd := -1
	err := inside(
		func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("create a network namespace: %w", explain(err))
			}
			return nil
		},
		func() (err error) {
			fd, err = threadNamespace()
			return err
		})
	return fd, err
}

// explain adds the remedy to a lack of permission or of a feature, and makes it
// os.ErrPermission or errors.ErrUnsupported, whichever error number the kernel
// chose.
func explain(err error) error {
	switch err {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): %w", os.ErrPermission, err)
	case unix.EINVAL, unix.ENOSYS:
		return fmt.Errorf("%w: this kernel has no network namespaces (CONFIG_NET_NS): %w", errors.ErrUnsupported, err)
	case unix.EAFNOSUPPORT:
		return fmt.Errorf("%w: this kernel has no packet sockets (modprobe af_packet): %w", errors.ErrUnsupported, err)
	case unix.EOPNOTSUPP:
		return fmt.Errorf("%w: this kernel has no veth (modprobe veth): %w", errors.ErrUnsupported, err)
	}
	return err
}
