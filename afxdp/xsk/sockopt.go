//go:build linux

package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

func setsockopt(fd, option int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getsockopt(fd, option int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	if uintptr(length) != size {
		return fmt.Errorf("%w: the kernel returned %d bytes of %d", unix.EINVAL, length, size)
	}
	return nil
}

func zeroCopy(fd int) (bool, error) {
	var flags uint32
	if err := getsockopt(fd, unix.XDP_OPTIONS, unsafe.Pointer(&flags), unsafe.Sizeof(flags)); err != nil {
		return false, fmt.Errorf("get the socket's mode: %w", err)
	}
	return flags&unix.XDP_OPTIONS_ZEROCOPY != 0, nil
}

// Stats returns the counters since the socket was opened, by a system call.
func (s *Socket) Stats() (Stats, error) {
	var k unix.XDPStatistics
	if s.closed.Load() {
		return Stats{}, ErrClosed
	}
	if err := getsockopt(s.fd, unix.XDP_STATISTICS, unsafe.Pointer(&k), unsafe.Sizeof(k)); err != nil {
		return Stats{}, fmt.Errorf("xsk: statistics of %s queue %d: %w", s.cfg.Device, s.cfg.Queue, err)
	}
	return Stats{
		RxDropped:     k.Rx_dropped,
		RxInvalid:     k.Rx_invalid_descs,
		TxInvalid:     k.Tx_invalid_descs,
		RxRingFull:    k.Rx_ring_full,
		FillRingEmpty: k.Rx_fill_ring_empty_descs,
		TxRingEmpty:   k.Tx_ring_empty_descs,
	}, nil
}
