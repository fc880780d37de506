package launch

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// inherit takes over a connected socket that the launcher has passed: children do not inherit it. It fails for
// anything else.
func inherit(fd int) error {
	if _, err := syscall.Getpeername(fd); err != nil {
		return err
	}
	syscall.CloseOnExec(fd)
	return nil
}

// setUserTimeout lets the kernel end a connection when bytes that it has sent are not acknowledged for hostDeadTime. The
// default is a quarter of an hour, and keep-alive does not probe while there are such bytes.
func setUserTimeout(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(hostDeadTime.Milliseconds()))
	})
}

// signalName returns the name of a signal, or "".
func signalName(number int) string { return unix.SignalName(unix.Signal(number)) }
