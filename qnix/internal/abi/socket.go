package abi

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Send writes one message with descriptors. It blocks while the other end does
// not read.
func Send(conn syscall.Conn, b []byte, fds ...int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		for {
			if sent = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); sent != unix.EINTR {
				return sent != unix.EAGAIN
			}
		}
	})
	if err == nil {
		err = sent
	}
	return err
}

// Receive reads one message and the descriptors with it, which the caller
// owns, with an error too. io.EOF at the end.
func Receive(conn *net.UnixConn) (b []byte, fds []int, err error) {
	buf := make([]byte, MaxMessageSize+1)
	oob := make([]byte, unix.CmsgSpace(4*MaxFDs))
	n, on, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if on > 0 {
		msgs, perr := unix.ParseSocketControlMessage(oob[:on])
		if perr != nil {
			return nil, nil, ErrMalformed
		}
		for i := range msgs {
			if f, err := unix.ParseUnixRights(&msgs[i]); err == nil {
				fds = append(fds, f...)
			}
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
	}
	switch {
	case err != nil:
		return nil, fds, err
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > MaxMessageSize:
		return nil, fds, ErrMalformed
	case n == 0:
		return nil, fds, io.EOF
	}
	return buf[:n], fds, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
