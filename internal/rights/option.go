//go:build linux

package rights

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Old makes this process behave as on a kernel before 6.16. Only tests set it.
var Old atomic.Bool

var probe = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
})

// Supported reports whether the kernel can refuse descriptors (Linux 6.16). The answer is cached.
func Supported() bool { return !Old.Load() && probe() }

// Refuse makes a Unix socket refuse descriptors: it fits Control of net.ListenConfig and of net.Dialer. On kernels
// before 6.16 it does nothing.
func Refuse(_, _ string, c syscall.RawConn) error { return pass(c, 0) }

// Admit lets the other end of a socket send descriptors from now on.
func Admit(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return pass(raw, 1)
}

func pass(c syscall.RawConn, on int) error {
	if !Supported() {
		return nil
	}
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, on)
	})
	return errors.Join(err, set)
}

// AdmitAttach lets any other process of this user access this process's memory where Yama restricts that to ancestors.
func AdmitAttach() {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && string(bytes.TrimSpace(b)) == "1" {
		_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
	}
}

// Listen listens at a path for packet connections (SOCK_SEQPACKET) that refuse descriptors. The file is removed when
// the listener is closed, as net.ListenUnix does.
func Listen(path string) (*net.UnixListener, error) {
	c := net.ListenConfig{Control: Refuse}
	l, err := c.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Dial connects to a path with a packet socket that refuses descriptors. It does not wait for room in the listener's
// queue: it fails with unix.EAGAIN if there is none.
func Dial(path string) (*net.UnixConn, error) {
	d := net.Dialer{Control: Refuse}
	c, err := d.Dial("unixpacket", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Nobody is the user of processes whose user is unknown: nobody of the Linux distributions.
const Nobody = ^uint32(0)

// Peer returns the credentials of the process that connected, or that listens, at the other end.
func Peer(c syscall.Conn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var got error
	err = raw.Control(func(fd uintptr) {
		cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, got)
}

// Process is Peer with a descriptor of the process (pidfd_open(2)), or -1. Before Linux 6.5 the pid may name another process
// by now.
func Process(c syscall.Conn) (cred *unix.Ucred, pidfd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, -1, err
	}
	pidfd = -1
	var got error
	err = raw.Control(func(fd uintptr) {
		if cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); got != nil {
			return
		}
		v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == unix.ENOPROTOOPT && cred.Pid > 0 {
			v, err = unix.PidfdOpen(int(cred.Pid), 0)
		}
		switch err {
		case nil:
			pidfd = v
		case unix.EMFILE, unix.ENFILE:
			got = err
		}
	})
	return cred, pidfd, errors.Join(err, got)
}

// User returns the user at the other end of a socket, or Nobody.
func User(c syscall.Conn) uint32 {
	cred, err := Peer(c)
	if err != nil {
		return Nobody
	}
	return cred.Uid
}
