//go:build linux

package abi

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
)

// Send writes one message with descriptors. It blocks while the other end does not read.
func Send(conn syscall.Conn, b []byte, fds ...int) error { return rights.Send(conn, b, true, fds...) }

// Receive reads one message and at most that many descriptors with it. The caller owns the descriptors, also when there
// is an error: rights.Discard closes them. Receive returns io.EOF at the end of the connection.
func Receive(conn syscall.Conn, most int) (b []byte, fds []int, err error) {
	buf := make([]byte, MaxMessageSize)
	n, fds, err := rights.Receive(conn, buf, most)
	switch {
	case errors.Is(err, rights.ErrTruncated):
		return nil, fds, fmt.Errorf("%w: %w", errMalformed, err)
	case err != nil:
		return nil, fds, err
	}
	return buf[:n], fds, nil
}

// CloseAll closes descriptors that this process has opened.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
