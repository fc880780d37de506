//go:build linux

package xsk

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Kick makes the kernel send what Transmit has queued, if it waits to be called.
// It does not wait for the frames to be on the wire.
//
// In copy mode it sends them in system calls of 32 descriptors, or
// [SocketConfig.TxBudget], until the ring is empty. ErrAgain: the device's
// queue, the socket's send buffer or the completion ring is full; the rest
// stays queued. ErrLinkDown, ErrDeviceGone: the rest stays queued too.
func (s *Socket) Kick() error {
	for s.tx.needWakeup() {
		before := atomic.LoadUint32(s.tx.consumer)
		if before == s.tx.prod {
			return nil
		}
		switch errno := s.sendto(); errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
			if s.zc {
				// The driver sends in its own time.
				return again(errno)
			}
			// EAGAIN comes after a budget's worth was sent. With EBUSY the
			// device dropped a frame, which counts as sent. Nothing at all
			// taken by a successful call: there is no such queue.
			if atomic.LoadUint32(s.tx.consumer) != before {
				continue
			}
			if errno == 0 {
				return ErrNoTxQueue
			}
			return ErrAgain
		case unix.EINTR:
		case unix.ENETDOWN:
			return ErrLinkDown
		case unix.ENXIO:
			return ErrDeviceGone
		case unix.EBADF:
			return ErrClosed
		default:
			return os.NewSyscallError("xsk: sendto", errno)
		}
	}
	return nil
}

// sendto makes the kernel look at the transmit ring. With the usual budget it is
// over within microseconds, so Go's scheduler is not told: that costs more than
// a frame's share of the call.
func (s *Socket) sendto() (errno unix.Errno) {
	if s.cfg.TxBudget <= 32 {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
	return errno
}

func again(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return ErrAgain
}

// WakeRx calls the driver to receive: in zero-copy mode if it waits to be
// called because the fill ring was empty, with busy-poll always, as nothing is
// received otherwise. Call it when Receive returned nothing. In copy mode
// without busy-poll it does nothing.
func (s *Socket) WakeRx() error {
	if s.cfg.BusyPoll.Time == 0 && !s.fill.needWakeup() {
		return nil
	}
	_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		return nil
	case unix.ENETDOWN:
		return ErrLinkDown
	case unix.ENXIO:
		return ErrDeviceGone
	case unix.EBADF:
		return ErrClosed
	}
	return os.NewSyscallError("xsk: recvfrom", errno)
}
