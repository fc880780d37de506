package regcache

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The part of linux/userfaultfd.h that is needed.
const (
	uffdUserModeOnly = 1 // Linux 5.11: no privilege is needed, as no kernel faults are asked for

	uffdAPI        = 0xaa
	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdioUnreg    = 0x8010aa01

	uffdModeWP = 1 << 1

	uffdFeatureRemap  = 1 << 2
	uffdFeatureRemove = 1 << 3
	uffdFeatureUnmap  = 1 << 6

	uffdEventRemap  = 0x14
	uffdEventRemove = 0x15
	uffdEventUnmap  = 0x16

	uffdMessageSize = 32
)

// uffd is a userfaultfd that reports what happens to mappings, and nothing that
// happens inside them.
type uffd struct{ fd int }

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

// uffdEvent is a mapping that went: [lo, hi). For a remap, its pages are at to.
type uffdEvent struct {
	kind   byte
	lo, hi uintptr
	to     uintptr
}

func parseEvent(m []byte) uffdEvent {
	arg := func(i int) uintptr { return uintptr(binary.NativeEndian.Uint64(m[8+8*i:])) }
	e := uffdEvent{kind: m[0], lo: arg(0), hi: arg(1)}
	if e.kind == uffdEventRemap {
		e.to, e.hi = arg(1), arg(0)+arg(2)
	}
	return e
}
