//go:build linux

// Package memfd has what files in memory (memfd_create) need besides their system calls.
package memfd

import "golang.org/x/sys/unix"

// Allocate gives the first size bytes of a file in memory their pages, so that a lack of memory is an error here, and
// not by a fault later. It extends the file if need be. Errors are those of fallocate(2), but not EINTR: some kernels,
// such as 6.1, undo an allocation that a signal meets (mm/shmem.c), the signals by which the Go runtime preempts
// goroutines are such, and a long one might never end. So it allocates in pieces, shorter ones after each signal.
func Allocate(fd int, size int64) error {
	const longest, shortest = 4 << 20, 64 << 10
	piece := int64(longest)
	for off := int64(0); off < size; {
		n := min(size-off, piece)
		err := unix.Fallocate(fd, 0, off, n)
		if err == unix.EINTR {
			piece = max(piece/2, shortest)
			continue
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}
