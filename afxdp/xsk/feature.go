//go:build linux

package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/netdev.h.
const (
	netdevCmdGet = 1

	netdevIfindex     = 1
	netdevXDPFeatures = 3
	netdevZCMaxSegs   = 4
	netdevXSKFeatures = 6

	xdpActBasic    = 1
	xdpActRedirect = 2
	xdpActZeroCopy = 8
	xdpActRxSG     = 32

	xskTxTimestamp  = 1
	xskTxChecksum   = 2
	xskTxLaunchTime = 4
)

// DeviceFeatures returns the capabilities of a device's driver. The device is in the network namespace of the calling
// thread. It needs Linux 6.3.
func DeviceFeatures(name string) (Features, error) {
	f, err := deviceFeatures(name)
	if err != nil {
		return f, fmt.Errorf("xsk: features of %s: %w", name, err)
	}
	return f, nil
}

func deviceFeatures(name string) (f Features, err error) {
	dev, _, err := inspect(name)
	if err != nil {
		return f, err
	}
	family, err := netlink.GenlFamilyGet("netdev")
	if errors.Is(err, unix.ENOENT) {
		return f, unsupported("announced features", "6.3", err)
	}
	if err != nil {
		return f, fmt.Errorf("find netdev netlink: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// nl.Genlmsg would leave two bytes uninitialised that must be zero.
	req.AddRawData([]byte{netdevCmdGet, 1, 0, 0})
	req.AddRawData(nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(dev.index))).Serialize())
	replies, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return f, fmt.Errorf("netdev netlink: %w", err)
	}
	for _, r := range replies {
		if err := f.parse(r); err != nil {
			return f, err
		}
	}
	return f, nil
}

// parse reads one reply: a generic header and attributes, each of a length, a
// kind and a value, padded to four bytes. Newer kernels may have more of them.
func (f *Features) parse(reply []byte) error {
	if len(reply) < nl.SizeofGenlmsg {
		return fmt.Errorf("netdev netlink: a reply of %d bytes", len(reply))
	}
	for b := reply[nl.SizeofGenlmsg:]; len(b) >= unix.SizeofRtAttr; {
		length, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < unix.SizeofRtAttr || length > len(b) {
			return fmt.Errorf("netdev netlink: an attribute of %d bytes in %d", length, len(b))
		}
		switch value := b[unix.SizeofRtAttr:length]; len(value) {
		case 4:
			f.set(kind, uint64(binary.NativeEndian.Uint32(value)))
		case 8:
			f.set(kind, binary.NativeEndian.Uint64(value))
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return nil
}

func (f *Features) set(kind uint16, v uint64) {
	switch kind {
	case netdevXDPFeatures:
		f.Native = v&(xdpActBasic|xdpActRedirect) == xdpActBasic|xdpActRedirect
		f.ZeroCopy = v&xdpActZeroCopy != 0
		f.MultiBuffer = v&xdpActRxSG != 0
	case netdevZCMaxSegs:
		f.ZeroCopySegments = int(v)
	case netdevXSKFeatures:
		f.TxTimestamp = v&xskTxTimestamp != 0
		f.TxChecksum = v&xskTxChecksum != 0
		f.TxLaunchTime = v&xskTxLaunchTime != 0
	}
}

var features = [numFeatures]struct {
	name, since string
	probe       func(fd int) error
}{
	FeatureSocket:      {"AF_XDP", "4.18 with CONFIG_XDP_SOCKETS", func(int) error { return nil }},
	FeatureBusyPoll:    {"preferred busy-poll", "5.11", probeBusyPoll},
	FeatureMultiBuffer: {"multi-buffer", "6.6", probeMultiBuffer},
	FeatureTxMetadata:  {"transmit metadata", "6.11", probeTxMetadata},
	FeatureTxBudget:    {"a transmit budget", "6.17", probeTxBudget},
}

func (f Feature) String() string { return features[f].name }

// probed remembers results for the life of the process.
var probed struct {
	sync.Mutex
	known [numFeatures]bool
	err   [numFeatures]error
}

// Probe returns nil if the kernel has the feature, and an error that matches errors.ErrUnsupported and names the kernel
// that has it if not. It tries the feature on a socket of its own and remembers the result. It needs CAP_NET_RAW; any
// other error means that it could not find out.
func Probe(f Feature) error {
	if f < 0 || f >= numFeatures {
		return fmt.Errorf("xsk: no feature has number %d", f)
	}
	probed.Lock()
	defer probed.Unlock()
	if probed.known[f] {
		return probed.err[f]
	}
	err := probe(f)
	if err == nil || errors.Is(err, errors.ErrUnsupported) {
		probed.known[f], probed.err[f] = true, err
	}
	return err
}

// probe tries a feature. The kernel answers an unknown one with one of three error numbers.
func probe(f Feature) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case err == unix.EAFNOSUPPORT:
		f = FeatureSocket
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("xsk: probe %s: needs CAP_NET_RAW: %w", f, err)
	case err == nil:
		defer unix.Close(fd)
		err = features[f].probe(fd)
	}
	if err == nil {
		return nil
	}
	for _, unknown := range []error{unix.EAFNOSUPPORT, unix.EINVAL, unix.ENOPROTOOPT} {
		if errors.Is(err, unknown) {
			return fmt.Errorf("xsk: %w", unsupported(features[f].name, features[f].since, err))
		}
	}
	return fmt.Errorf("xsk: probe %s: %w", f, err)
}

func probeBusyPoll(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 0)
}

// probeMultiBuffer binds to no device: the kernel checks the flags first.
func probeMultiBuffer(fd int) error {
	err := unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_USE_SG})
	if err == unix.ENODEV {
		return nil
	}
	return err
}

func probeTxMetadata(fd int) error {
	size := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), Len: uint64(size), Size: 4096,
		Flags: unix.XDP_UMEM_TX_METADATA_LEN, Tx_metadata_len: uint32(TxMetadataLen),
	}
	return setsockopt(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
}

func probeTxBudget(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_TX_RING, 64); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, 32)
}
