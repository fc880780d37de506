//go:build linux

package softnic

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/memfd"
	"github.com/bywash/bywash/kmod/ncp"
	"github.com/bywash/bywash/qnix/internal/abi"
)

var euid = os.Geteuid()

// memory is the memory that a process and the NIC share: its Virtual Network Interface, the host page, and the eventfd
// that wakes the NIC. The NIC takes over the mappings; the descriptors are for the client.
type memory struct {
	info         abi.MemoryInfo
	vni, hps     []byte
	vniFD, hpsFD int
	wakeup       int
}

func makeMemory(r *abi.Register) (*memory, error) {
	m := &memory{vniFD: -1, hpsFD: -1, wakeup: -1}
	if err := ncp.SoftLayout(abi.Bytes(r), abi.Bytes(&m.info)); err != nil {
		return nil, err
	}
	err := m.make()
	if err != nil {
		m.free()
		return nil, err
	}
	return m, nil
}

func (m *memory) make() (err error) {
	if m.vniFD, m.vni, err = sealed("qnix-vni", m.info.VNISize); err != nil {
		return err
	}
	if m.hpsFD, m.hps, err = sealed("qnix-hps", m.info.HPSSize); err != nil {
		return err
	}
	m.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return err
}

// sealed makes shared memory whose size no process can change: otherwise a process could end the NIC by SIGBUS. It
// allocates all pages at once, so that a lack of memory is an error here.
func sealed(name string, size uint32) (int, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	if err = memfd.Allocate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	var p unsafe.Pointer
	if err == nil {
		// Not Mmap, which keeps a record of mappings: C unmaps this one.
		p, err = unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, unsafe.Slice((*byte)(p), size), nil
}

// fds returns the descriptors for the client.
func (m *memory) fds() []int {
	if m == nil {
		return nil
	}
	return []int{m.vniFD, m.hpsFD, m.wakeup}
}

func (m *memory) closeFDs() {
	if m == nil {
		return
	}
	for _, fd := range m.fds() {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// free frees memory that was not passed to the NIC.
func (m *memory) free() {
	m.closeFDs()
	for _, b := range [][]byte{m.vni, m.hps} {
		if b != nil {
			_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
		}
	}
}
