package driver

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// create makes the memfd and maps it.
func (a *Arena) create(size int) error {
	fd, err := unix.MemfdCreate("bywash-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w%s", err, remedy(err))
	}
	a.fd = fd
	if err := a.mapMemory(size); err != nil {
		unix.Close(fd)
		return fmt.Errorf("%w%s", err, remedy(err))
	}
	// Failure only costs speed.
	_ = unix.Madvise(a.mem, unix.MADV_HUGEPAGE)
	return nil
}

func (a *Arena) destroy() error { return errors.Join(unix.Munmap(a.mem), unix.Close(a.fd)) }

func (a *Arena) mapMemory(size int) error {
	if err := unix.Ftruncate(a.fd, int64(size)); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	mem, err := unix.Mmap(a.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	a.mem = mem
	return nil
}

func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE):
		return " (raise the limit of open files: ulimit -n)"
	case errors.Is(err, unix.ENFILE):
		return " (raise fs.file-max)"
	case errors.Is(err, unix.ENOMEM):
		return " (too little memory or address space, or vm.max_map_count reached)"
	}
	return ""
}
