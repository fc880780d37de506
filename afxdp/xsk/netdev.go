//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A device is a network device in the namespace of a socket. Its index stays the same when it is renamed.
type device struct {
	name  string
	index int
}

// The ioctls below ask the kernel about a device in the namespace of the socket fd, which does not depend on the
// thread. The socket must not be of AF_XDP.

// ethtool carries out the command in the structure that data points to.
func ethtool(fd int, name string, data unsafe.Pointer) error {
	var r struct { // struct ifreq of net/if.h with a pointer in it
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [2]uint64
	}
	r.data = data
	copy(r.name[:len(r.name)-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	if errno != 0 {
		return errno
	}
	return nil
}

func lookupDevice(fd int, name string) (device, error) {
	r, err := unix.NewIfreq(name)
	if name == "" || err != nil {
		return device{}, fmt.Errorf("%q is no name of a device: %w", name, unix.ENODEV)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return device{}, fmt.Errorf("no such device (ip link lists them): %w", err)
	}
	return device{name: name, index: int(r.Uint32())}, nil
}

// link returns the state of the device. Calls of AF_XDP return ENETDOWN and ENXIO, but do not report a missing carrier.
func (d device) link(fd int) LinkState {
	var r unix.Ifreq
	r.SetUint32(uint32(d.index))
	for _, request := range []uint{unix.SIOCGIFNAME, unix.SIOCGIFFLAGS} {
		if unix.IoctlIfreq(fd, request, &r) != nil {
			return LinkGone
		}
	}
	switch flags := r.Uint16(); {
	case flags&unix.IFF_UP == 0:
		return LinkDown
	case flags&unix.IFF_RUNNING == 0:
		return LinkNoCarrier
	}
	return LinkUp
}

// ethtoolChannels is struct ethtool_channels of linux/ethtool.h.
type ethtoolChannels struct {
	cmd                                 uint32
	maxRx, maxTx, maxOther, maxCombined uint32
	rx, tx, other, combined             uint32
}

// queues returns the numbers of queues (ETHTOOL_GCHANNELS, or what the kernel lists). A combined queue counts as one of each
// kind.
func (d device) queues(fd int) (Queues, error) {
	c := ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}
	if err := ethtool(fd, d.name, unsafe.Pointer(&c)); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return d.listedQueues(), nil
		}
		return Queues{}, fmt.Errorf("ask for the number of queues of %s: %w", d.name, err)
	}
	return Queues{
		Rx: int(c.rx + c.combined), Tx: int(c.tx + c.combined),
		MaxRx: int(c.maxRx + c.maxCombined), MaxTx: int(c.maxTx + c.maxCombined),
	}, nil
}

// listedQueues returns the numbers of queues that sysfs lists: bonds have many, but report none by ethtool.
// Where sysfs cannot be read, or shows another network namespace, it returns one of each.
func (d device) listedQueues() Queues {
	folder := filepath.Join("/sys/class/net", d.name)
	read := func(file string) string {
		b, _ := os.ReadFile(filepath.Join(folder, file))
		return strings.TrimSpace(string(b))
	}
	l, err := netlink.LinkByIndex(d.index)
	if err != nil || read("ifindex") != strconv.Itoa(d.index) || read("address") != l.Attrs().HardwareAddr.String() {
		return Queues{1, 1, 1, 1}
	}
	rx, tx := 0, 0
	entries, _ := os.ReadDir(filepath.Join(folder, "queues"))
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), "rx-"):
			rx++
		case strings.HasPrefix(e.Name(), "tx-"):
			tx++
		}
	}
	rx, tx = max(rx, 1), max(tx, 1)
	return Queues{rx, tx, rx, tx}
}

// DeviceQueues returns the numbers of queues of a device in the network namespace of the calling thread. For a driver
// that does not report them it returns those that sysfs lists, or one of each if that shows another namespace.
func DeviceQueues(name string) (Queues, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Queues{}, fmt.Errorf("xsk: open a socket: %w", err)
	}
	defer unix.Close(fd)
	dev, err := lookupDevice(fd, name)
	if err == nil {
		var q Queues
		if q, err = dev.queues(fd); err == nil {
			return q, nil
		}
	}
	return Queues{}, fmt.Errorf("xsk: %s: %w", name, err)
}
