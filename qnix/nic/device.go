//go:build linux

package nic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// device is a NIC of the kernel module.
type device struct {
	fd   int
	gate gate // of fd

	mu     sync.Mutex
	closed bool
	asleep []*sleeper // under mu, as are the rest
	free   []*sleeper
}

// sleeper is a goroutine in sleep: wake reaches it by an eventfd of its own.
type sleeper struct {
	fd   int
	seen uint32
	set  bool // under mu: written
}

// wake ends the sleep. The caller holds mu.
func (s *sleeper) wake() {
	if !s.set {
		ring(s.fd)
		s.set = true
	}
}

func openDevice(path string) (host, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &device{fd: fd}, nil
}

func ioctl[T any](d *device, request uintptr, arg *T) error {
	if !d.gate.enter() {
		return ErrClosed
	}
	defer d.gate.leave()
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), request, uintptr(unsafe.Pointer(arg)))
		switch errno {
		case 0:
			return nil
		case unix.EINTR: // the Go runtime's signals, too
		default:
			return errno
		}
	}
}

func (d *device) info(i *abi.Info) error { return ioctl(d, abi.IocInfo, i) }

func (d *device) register(_ context.Context, r *abi.Register) (vni, hps []byte, err error) {
	if err := ioctl(d, abi.IocRegister, r); err != nil {
		return nil, nil, err
	}
	if vni, err = d.mmap(r.VNIOffset, r.VNISize); err == nil {
		if hps, err = d.mmap(r.HPSOffset, r.HPSSize); err == nil {
			return vni, hps, nil
		}
		_ = unix.Munmap(vni)
	}
	_ = d.deregister()
	return nil, nil, err
}

func (d *device) mmap(offset uint64, size uint32) ([]byte, error) {
	if size == 0 || size > maxMapping {
		return nil, ErrUntrusted
	}
	return unix.Mmap(d.fd, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func (d *device) deregister() error { return ioctl[byte](d, abi.IocDeregister, nil) }

func (d *device) translate(t *abi.Translate, _ int, _ uint64) error {
	return ioctl(d, abi.IocTranslate, t)
}

func (d *device) untranslate(handle uint32) error {
	return ioctl(d, abi.IocUntranslate, &abi.Untranslate{Handle: handle})
}

func (d *device) join(_ context.Context, g *abi.Group) error {
	return ioctl(d, abi.IocJoin, g)
}

func (d *device) leave(g *abi.Group) error { return ioctl(d, abi.IocLeave, g) }

func (d *device) statistics(s *abi.Statistics) error { return ioctl(d, abi.IocStatistics, s) }

func (d *device) kick() error { return ioctl[byte](d, abi.IocDoorbell, nil) }

// gone implements host. The module reports its end in the status word alone.
func (d *device) gone() bool { return false }

func (d *device) abandon()        {}
func (d *device) abandoned() bool { return false }

// outside implements host. It is never called for a device, whose calls are not given up.
func (d *device) outside() <-chan struct{} { return nil }

func (d *device) watch(func()) {}

// sleep reports to the module which tail was seen, so that the device becomes readable when the tail changes, and polls
// the device together with the sleeper's eventfd.
func (d *device) sleep(tail *uint32, seen uint32, w *atomic.Uint32, seenWakes uint32, timeout time.Duration) {
	s, err := d.enter(seen)
	if err != nil {
		time.Sleep(min(timeout, time.Millisecond)) // no descriptor left: poll slowly
		return
	}
	defer d.wakened(s)
	x := abi.Wait{RingTail: seen}
	if err := ioctl(d, abi.IocWait, &x); err != nil && err != unix.ETIMEDOUT && err != unix.ETIME && err != unix.EAGAIN {
		time.Sleep(min(timeout, time.Millisecond)) // the device is gone, which the caller notices
		return
	}
	if atomic.LoadUint32(tail) != seen || w.Load() != seenWakes {
		return
	}
	fds := [2]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(timeout))
	_, _ = unix.Ppoll(fds[:], &ts, nil)
}

// enter counts the caller as asleep. The module knows only the last tail that was reported to it: those who saw another
// one would not be woken by the doorbells between, so they look again.
func (d *device) enter(seen uint32) (*sleeper, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	var s *sleeper
	if n := len(d.free); n > 0 {
		s, d.free = d.free[n-1], d.free[:n-1]
	} else {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return nil, err
		}
		s = &sleeper{fd: fd}
	}
	s.seen = seen
	for _, other := range d.asleep {
		if other.seen != seen {
			other.wake()
		}
	}
	d.asleep = append(d.asleep, s)
	return s, nil
}

func (d *device) wakened(s *sleeper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, x := range d.asleep {
		if x == s {
			d.asleep[i] = d.asleep[len(d.asleep)-1]
			d.asleep = d.asleep[:len(d.asleep)-1]
			break
		}
	}
	if s.set {
		var b [8]byte
		_, _ = unix.Read(s.fd, b[:])
		s.set = false
	}
	d.free = append(d.free, s)
}

func (d *device) wake(*uint32, *atomic.Uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.asleep {
		s.wake()
	}
}

var one uint64 = 1

// ring adds 1 to an eventfd.
func ring(fd int) {
	_, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// close is called after the process was deregistered, when no goroutine sleeps.
func (d *device) close() error {
	d.gate.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, s := range d.free {
		unix.Close(s.fd)
	}
	d.free = nil
	return unix.Close(d.fd)
}
