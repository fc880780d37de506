//go:build linux

package rights

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTruncated means that a message was longer than the buffer, or had more descriptors than expected.
var ErrTruncated = errors.New("message too long, or with too many descriptors")

// Receive reads one message of a packet socket, and at most that many descriptors with it. The caller owns them, also
// after an error; they are close-on-exec. It blocks until a message comes, the connection ends (io.EOF) or the deadline
// of the socket is over. An empty message without descriptors is io.EOF, too.
func Receive(c syscall.Conn, b []byte, most int) (n int, fds []int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var oob []byte
	if most > 0 {
		oob = make([]byte, unix.CmsgSpace(4*most))
	}
	var on, flags int
	var got error
	err = raw.Read(func(fd uintptr) bool {
		interrupted(func() {
			for {
				n, on, flags, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
				if got != unix.EINTR {
					return
				}
			}
		})
		return got != unix.EAGAIN
	})
	if err = errors.Join(err, got); err != nil {
		return 0, nil, err
	}
	fds = parse(oob[:on])
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > most:
		return n, fds, ErrTruncated
	case n == 0 && len(fds) == 0:
		return 0, nil, io.EOF
	}
	return n, fds, nil
}

// parse returns the descriptors among control messages. Room for an odd number of descriptors is padded, and
// the kernel may use it for one more.
func parse(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if f, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, f...)
		}
	}
	return fds
}

// Send sends one message with descriptors, which the caller still owns. If the other end does not read, Send returns
// unix.EAGAIN or, with wait, blocks until the deadline of the socket.
func Send(c syscall.Conn, b []byte, wait bool, fds ...int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var sent error
	write := func() {
		err = raw.Write(func(fd uintptr) bool {
			for {
				sent = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
				if sent != unix.EINTR {
					return !wait || sent != unix.EAGAIN
				}
			}
		})
	}
	if wait {
		write()
	} else {
		interrupted(write) // a socket that is closed meanwhile is closed in this thread
	}
	return errors.Join(err, sent)
}

// Read reads from a socket of any type and takes no descriptors: those that come along are closed.
func Read(c interface {
	syscall.Conn
	net.Conn
}, b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		interrupted(func() {
			for {
				n, _, _, _, got = unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
				if got != unix.EINTR {
					return
				}
			}
		})
		return got != unix.EAGAIN
	})
	return max(n, 0), errors.Join(err, got)
}
