package launch

import (
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

// signalName returns the name of a signal, or "".
func signalName(number int) string { return unix.SignalName(unix.Signal(number)) }
