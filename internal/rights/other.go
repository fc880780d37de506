//go:build !linux

package rights

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// Refuse fails, and with it the listening that it controls: other systems neither refuse descriptors nor have the abstract
// names at which this module listens.
func Refuse(_, _ string, _ syscall.RawConn) error { return errors.ErrUnsupported }

// Peer fails: see Refuse.
func Peer(syscall.Conn) (*Ucred, error) { return nil, errors.ErrUnsupported }

// Ucred is the process and the user at the other end of a socket.
type Ucred struct {
	Pid int32
	Uid uint32
}

// Close closes a socket or a listener.
func Close(c io.Closer) { _ = c.Close() }

// Read reads from a socket.
func Read(c net.Conn, b []byte) (int, error) { return c.Read(b) }
