//go:build linux

package xsk

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Kick makes the kernel send the frames that Transmit has queued, if the kernel waits for a call. It does not wait
// until the frames are on the wire.
//
// In copy mode it sends them in system calls of 32 descriptors, or [SocketConfig.TxBudget], until the ring is empty. It
// returns ErrAgain if the device's queue, the socket's send buffer or the completion ring is full, or ErrLinkDown, or
// ErrDeviceGone. In these cases the rest stays queued.
func (s *Socket) Kick() error {
	if !s.tx.needWakeup(s.zc) {
		return nil
	}
	before := atomic.LoadUint32(s.tx.consumer)
	if before == s.tx.prod {
		return nil
	}
	for idle := s.idleCalls(s.tx.prod - before); ; {
		errno := s.sendto()
		switch errno {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		default:
			return fatal("sendto", errno)
		}
		if s.zc {
			// The driver sends by itself.
			if errno == 0 {
				return nil
			}
			return ErrAgain
		}
		// EAGAIN means that a whole budget was sent, or that nothing can be sent. EBUSY means that the device dropped a
		// frame, which counts as sent.
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

// idleCalls returns how many calls may pass without a change of the consumer's index. From Linux 6.17 on, which also
// has the transmit budget, the kernel publishes the index at the end of each call. Older kernels publish it when they
// have processed all descriptors that they had seen, after several calls of 32 descriptors.
func (s *Socket) idleCalls(pending uint32) uint32 {
	if s.publishes {
		return 0
	}
	return pending/32 + 2
}

// stuck returns the reason why the kernel takes no descriptors. A call for a queue that does not exist succeeds; before
// Linux 6.17 so does a call that finds the completion ring full.
func (s *Socket) stuck(errno unix.Errno) error {
	if errno == 0 {
		if q, err := s.wait.dev.queues(s.wait.netlink); err == nil && s.cfg.Queue >= q.Tx {
			return ErrNoTxQueue
		}
	}
	return ErrAgain
}

// sendto makes the kernel look at the transmit ring. With the default budget it takes microseconds, so it does not
// notify Go's scheduler, which would cost a twelfth of a round trip on veth. A garbage collection that stops the world
// waits for the call.
func (s *Socket) sendto() (errno unix.Errno) {
	if s.cfg.TxBudget <= 32 {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
	return errno
}

// fatal translates errors that no further call will change.
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

// WakeRx calls the driver to receive. In zero-copy mode it does so if the driver waits for a call because it has found too
// few chunks in the fill ring, and Fill has added some since the last call: a driver whose own ring is longer waits all the
// time. With busy-poll it always does, because the driver receives nothing otherwise. Call it when Receive returned
// nothing. In copy mode without busy-poll it does nothing.
func (s *Socket) WakeRx() error {
	if s.cfg.BusyPoll.Time == 0 && (!s.fill.needWakeup(s.zc) || s.zc && !s.filled.Swap(false)) {
		return nil
	}
	_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.EINTR:
		return nil
	}
	return fatal("recvfrom", errno)
}
