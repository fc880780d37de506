//go:build !linux

package stat

import (
	"errors"
	"net"
)

// ucred is the process and the user at the other end of a socket.
type ucred struct {
	Pid int32
	Uid uint32
}

func credentials(*net.UnixConn) (*ucred, error) { return nil, errors.ErrUnsupported }
