package xsk

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Errors of the data path. They are values, so that returning them allocates
// nothing.
var (
	// ErrAgain means that the device or a ring is full: call again after [Socket.Complete]. Nothing was lost.
	ErrAgain = errors.New("xsk: transmit: the device or the completion ring is full")

	// ErrLinkDown means that the device is set down. It matches unix.ENETDOWN.
	ErrLinkDown = fmt.Errorf("xsk: the device is down (ip link set DEV up): %w", syscall.ENETDOWN)

	// ErrDeviceGone means that the device was deleted: close the socket. It
	// matches unix.ENXIO. With zero-copy some drivers return it also while
	// they reset the queue: [Socket.Link] says whether the device exists.
	ErrDeviceGone = fmt.Errorf("xsk: the device is gone: %w", syscall.ENXIO)

	// ErrNoTxQueue means that the device has fewer transmit than receive
	// queues, and none for this socket. It matches unix.EINVAL.
	ErrNoTxQueue = fmt.Errorf("xsk: the device has no transmit queue of this number (ethtool -l DEV): %w", syscall.EINVAL)

	// ErrClosed matches os.ErrClosed.
	ErrClosed = fmt.Errorf("xsk: the socket is closed: %w", os.ErrClosed)
)

// Errors of opening sockets and attaching programs, for errors.Is.
var (
	// ErrQueueBusy means that another socket, mostly of another process, has
	// the queue. It matches unix.EBUSY.
	ErrQueueBusy = fmt.Errorf("another socket has the queue: %w", syscall.EBUSY)

	// ErrProgramAttached means that the device has another XDP program, which stays in place. It matches unix.EBUSY.
	ErrProgramAttached = fmt.Errorf("another XDP program is attached: %w", syscall.EBUSY)
)

// unsupported is the error for a feature that the kernel does not have.
func unsupported(feature, since string, cause error) error {
	if cause == nil {
		return fmt.Errorf("%s: %w (requires Linux >= %s)", feature, errors.ErrUnsupported, since)
	}
	return fmt.Errorf("%s: %w (requires Linux >= %s): %w", feature, errors.ErrUnsupported, since, cause)
}
