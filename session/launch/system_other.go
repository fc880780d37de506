//go:build !linux

package launch

import (
	"errors"
	"net"
)

func inherit(int) error { return errors.ErrUnsupported }

func setUserTimeout(net.Conn) {}

func signalName(int) string { return "" }
