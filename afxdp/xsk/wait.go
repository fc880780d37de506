//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxSleep bounds one sleep in the kernel: poll does not return when the device goes down or is deleted, and netlink
// messages may be lost.
const maxSleep = 250 * time.Millisecond

// A waiter holds the descriptors for which a goroutine waits in addition to the socket: an eventfd for Wake, and
// netlink for the state of the link.
type waiter struct {
	mu      sync.RWMutex // held for reading during a wait
	socket  int
	event   int
	netlink int
	dev     device

	woken atomic.Bool
	link  atomic.Int32 // LinkState
}

func (w *waiter) init() { w.event, w.netlink = -1, -1 }

func (w *waiter) open(socket int, name string) (err error) {
	w.socket = socket
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create an eventfd: %w", err)
	}
	w.netlink, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	if w.dev, err = lookupDevice(w.netlink, name); err != nil {
		return err
	}
	links := unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}
	if err := unix.Bind(w.netlink, &links); err != nil {
		return fmt.Errorf("watch the state of %s by netlink: %w", name, err)
	}
	w.link.Store(int32(w.dev.link(w.netlink)))
	return nil
}

func (w *waiter) close() error {
	w.wake() // a goroutine in wait holds the lock
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, fd := range []*int{&w.event, &w.netlink} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

func (w *waiter) wake() {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.event < 0 || w.woken.Swap(true) {
		return // an earlier wake-up is still pending
	}
	one := uint64(1)
	unix.Syscall(unix.SYS_WRITE, uintptr(w.event), uintptr(unsafe.Pointer(&one)), 8)
}

// Wake makes one goroutine that is in Wait, or the next one that calls it,
// return with EventWake. Any goroutine may call it, at any time.
func (s *Socket) Wake() { s.wait.wake() }

// Wait blocks until one of the events in want occurs, Wake is called, the state of the link changes, or the timeout is
// over. It returns the events; none means the timeout. A negative timeout means no limit; with 0 Wait does not block.
// One goroutine at a time may wait for each direction; its thread is blocked meanwhile.
//
// During the wait the kernel also sends queued frames. After the device was deleted Wait returns ErrDeviceGone, within a
// quarter of a second unless the timeout is shorter, and after Close ErrClosed. While the link is down it continues to wait.
func (s *Socket) Wait(want Event, timeout time.Duration) (Event, error) {
	w := &s.wait
	w.mu.RLock()
	defer w.mu.RUnlock()
	if s.closed.Load() {
		return 0, ErrClosed
	}
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	for {
		sleep := maxSleep
		switch {
		case timeout == 0:
			sleep = 0
		case timeout > 0:
			sleep = min(sleep, max(0, time.Until(deadline)))
		}
		got, err := w.poll(want, sleep)
		if s.closed.Load() {
			return 0, ErrClosed
		}
		if got != 0 || err != nil {
			return got, err
		}
		if timeout == 0 || timeout > 0 && !time.Now().Before(deadline) {
			return 0, nil
		}
	}
}

// poll sleeps once.
func (w *waiter) poll(want Event, sleep time.Duration) (got Event, err error) {
	fds := [...]unix.PollFd{{Fd: int32(w.socket)}, {Fd: int32(w.event), Events: unix.POLLIN},
		{Fd: int32(w.netlink), Events: unix.POLLIN}}
	if want&EventRx != 0 {
		fds[0].Events |= unix.POLLIN
	}
	if want&EventTx != 0 {
		fds[0].Events |= unix.POLLOUT
	}
	ts := unix.NsecToTimespec(int64(sleep))
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	switch errno {
	case 0, unix.EINTR:
	default:
		return 0, fmt.Errorf("xsk: wait for %s: %w", w.dev.name, errno)
	}
	look := errno == 0 && n == 0 // after a time-out, check whether the device still exists
	if errno == 0 && n > 0 {
		if fds[0].Revents&unix.POLLIN != 0 {
			got |= EventRx
		}
		if fds[0].Revents&unix.POLLOUT != 0 {
			got |= EventTx
		}
		if fds[1].Revents&unix.POLLIN != 0 {
			w.drain(w.event)
			w.woken.Store(false)
			got |= EventWake
		}
		if fds[2].Revents != 0 {
			w.drain(w.netlink)
			look = true
		}
	}
	if look {
		was := LinkState(w.link.Load())
		now := w.dev.link(w.netlink)
		if now == LinkGone {
			w.link.Store(int32(now))
			return got, ErrDeviceGone
		}
		if now != was && w.link.CompareAndSwap(int32(was), int32(now)) {
			got |= EventLink
		}
	}
	return got, nil
}

// drain empties a descriptor. The content of netlink's messages is not needed: any message is a reason to look.
func (w *waiter) drain(fd int) {
	var buf [512]byte
	for {
		_, _, errno := unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf)), unsafe.Sizeof(buf))
		if errno != 0 && errno != unix.ENOBUFS && errno != unix.EINTR {
			return
		}
	}
}

// Link returns the state of the device, by a system call.
func (s *Socket) Link() LinkState {
	s.wait.mu.RLock()
	defer s.wait.mu.RUnlock()
	if s.closed.Load() {
		return LinkGone
	}
	return s.wait.dev.link(s.wait.netlink)
}
