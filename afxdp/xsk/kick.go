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
	if !s.tx.needWakeup(s.zc) {
		return nil
	}
	before := atomic.LoadUint32(s.tx.consumer)
	if before == s.tx.prod {
		return nil
	}
	for idle := s.patience(s.tx.prod - before); ; {
		errno := s.sendto()
		switch errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		default:
			return fatal("sendto", errno)
		}
		if s.zc {
			// The driver sends in its own time.
			if errno == 0 {
				return nil
			}
			return ErrAgain
		}
		// EAGAIN comes after a budget's worth was sent, or when nothing can be.
		// With EBUSY the device dropped a frame, which counts as sent.
		switch now := atomic.LoadUint32(s.tx.consumer); {
		case now == s.tx.prod:
			return nil
		case now != before:
			before = now
		case idle == 0:
			return s.stuck(errno)
		default:
			idle--
		}
	}
}

// patience is how many calls may go by without the consumer's index moving.
// Since Linux 6.17, which has the transmit budget too, the kernel publishes it
// at the end of each call. Before it does so when it has come to the end of what
// it had seen of the ring, after several calls of 32 descriptors.
func (s *Socket) patience(pending uint32) uint32 {
	if s.publishes {
		return 0
	}
	return pending/32 + 2
}

// stuck says why nothing is taken. A call for a queue that is not there succeeds;
// so does, before Linux 6.17, one that finds the completion ring full.
func (s *Socket) stuck(errno unix.Errno) error {
	if errno == 0 {
		if q, err := s.wait.dev.queues(s.wait.netlink); err == nil && s.cfg.Queue >= q.Tx {
			return ErrNoTxQueue
		}
	}
	return ErrAgain
}

// sendto makes the kernel look at the transmit ring. With the usual budget it is
// over within microseconds, so Go's scheduler is not told, which would cost a
// twelfth of a round trip on veth. A collection that stops the world waits for
// the call meanwhile.
func (s *Socket) sendto() (errno unix.Errno) {
	if s.cfg.TxBudget <= 32 {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
	return errno
}

// fatal translates what no further call will change.
func fatal(call string, errno unix.Errno) error {
	switch errno {
	case unix.ENETDOWN:
		return ErrLinkDown
	case unix.ENXIO:
		return ErrDeviceGone
	case unix.EBADF:
		return ErrClosed
	}
	return os.NewSyscallError("xsk: "+call, errno)
}

// WakeRx calls the driver to receive: in zero-copy mode if it waits to be
// called because the fill ring was empty, with busy-poll always, as nothing is
// received otherwise. Call it when Receive returned nothing. In copy mode
// without busy-poll it does nothing.
func (s *Socket) WakeRx() error {
	if s.cfg.BusyPoll.Time == 0 && !s.fill.needWakeup(s.zc) {
		return nil
	}
	_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		return nil
	}
	return fatal("recvfrom", errno)
}
