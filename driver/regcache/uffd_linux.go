package regcache

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func openUffd() (*uffd, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, uffdUserModeOnly|unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("userfaultfd", errno)
	}
	u := &uffd{int(fd)}
	api := [3]uint64{uffdAPI, uffdFeatureRemap | uffdFeatureRemove | uffdFeatureUnmap}
	if err := ioctl(u.fd, uffdioAPI, unsafe.Pointer(&api)); err != nil {
		u.close()
		return nil, os.NewSyscallError("UFFDIO_API", err)
	}
	return u, nil
}

// wait blocks until there are events. It takes a thread, because Go's own
// poller is looked at late when all processors are busy, and unmapping would
// take 10 ms then.
func (u *uffd) wait() error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(u.fd), Events: unix.POLLIN}}, -1)
	if err == unix.EINTR {
		return nil
	}
	return err
}

func (u *uffd) read(b []byte) (int, error) { return unix.Read(u.fd, b) }

func (u *uffd) close() { unix.Close(u.fd) }

// register asks for the events of a range. Write-protect mode, without
// protecting anything, costs no faults, as missing mode would.
func (u *uffd) register(lo, hi uintptr) error {
	arg := [4]uint64{uint64(lo), uint64(hi - lo), uffdModeWP}
	return ioctl(u.fd, uffdioRegister, unsafe.Pointer(&arg))
}

func (u *uffd) unregister(lo, hi uintptr) error {
	arg := [2]uint64{uint64(lo), uint64(hi - lo)}
	return ioctl(u.fd, uffdioUnreg, unsafe.Pointer(&arg))
}

// changing reports whether a call that changes a watched mapping has begun and not returned. The kernel looks at that
// before anything of a request, which is an invalid one on purpose.
func (u *uffd) changing() bool {
	var none [3]uint64
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(u.fd), uffdioWP, uintptr(unsafe.Pointer(&none)))
	return errno == unix.EAGAIN
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN: // EAGAIN: mappings are changing
		default:
			return errno
		}
	}
}
