//go:build linux

package veth

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offloads that make the sender's stack emit frames that no wire would carry: partial checksums and segments of up to
// 64 KiB. AF_XDP on the other end of a veth gets these frames unchanged.
var offloads = []struct {
	name string
	set  uint32
}{
	{"rx checksum", unix.ETHTOOL_SRXCSUM},
	{"tx checksum", unix.ETHTOOL_STXCSUM},
	{"tso", unix.ETHTOOL_STSO},
	{"gso", unix.ETHTOOL_SGSO},
	{"gro", unix.ETHTOOL_SGRO},
}

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct {
	cmd, data uint32
}

// ethtoolRequest is struct ifreq of net/if.h with a pointer in its union.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// offloadsOff turns the offloads off on a device of the calling thread's namespace.
func offloadsOff(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket for ethtool: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range offloads {
		v := ethtoolValue{cmd: o.set}
		req := ethtoolRequest{data: unsafe.Pointer(&v)}
		copy(req.name[:unix.IFNAMSIZ-1], device)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		// Features that the device lacks need not be turned off.
		if errno != 0 && errno != unix.EOPNOTSUPP {
			return fmt.Errorf("turn %s of %s off: %w", o.name, device, errno)
		}
	}
	return nil
}
