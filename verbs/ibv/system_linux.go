package ibv

import (
	"fmt"
	"syscall"
)

// duplicate returns a duplicate of fd that does not block. The flag belongs to the open file, and so affects the library's
// own reads, too.
func duplicate(fd int) (uintptr, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return 0, fmt.Errorf("set non-blocking: %w", err)
	}
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 3)
	if errno != 0 {
		return 0, fmt.Errorf("dup: %w", errno)
	}
	return dup, nil
}

// mapMemory returns memory that is not Go's.
func mapMemory(size int) ([]byte, error) {
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

func unmapMemory(b []byte) error { return syscall.Munmap(b) }
