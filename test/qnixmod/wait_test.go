//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ways to learn that a doorbell has rung, without looking at it.
var ways = map[string]func(p *process, event int, seen uint32) error{
	"wait": func(p *process, _ int, seen uint32) error {
		return p.wait(waitArg{RingTail: seen, TimeoutNs: int64(time.Minute)})
	},
	"poll": func(p *process, _ int, _ uint32) error { return pollOne(p.fd) },
	"epoll": func(p *process, _ int, _ uint32) error {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, p.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
			return err
		}
		n, err := unix.EpollWait(fd, make([]unix.EpollEvent, 1), 60000)
		for err == unix.EINTR {
			n, err = unix.EpollWait(fd, make([]unix.EpollEvent, 1), 60000)
		}
		if err == nil && n != 1 {
			err = unix.ETIMEDOUT
		}
		return err
	},
	"eventfd": func(_ *process, event int, _ uint32) error {
		if err := pollOne(event); err != nil {
			return err
		}
		_, err := unix.Read(event, make([]byte, 8))
		return err
	},
}

// wait is the ioctl; the signals by which Go's runtime preempts a goroutine interrupt it, too.
func (p *process) wait(arg waitArg) error {
	for {
		if err := ioctl(p.fd, iocWait, unsafe.Pointer(&arg)); err != unix.EINTR {
			return err
		}
	}
}

func pollOne(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		default:
			return nil
		}
	}
}

func TestWaiterIsWoken(t *testing.T) {
	load(t, "nics=2")
	a, b := mustRegister(t, 0, small("a")), mustRegister(t, 1, small("b"))
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	if err := ioctl(b.fd, iocEventfd, unsafe.Pointer(&eventfdArg{FD: int32(event)})); err != nil {
		t.Fatal(err)
	}
	for what, wait := range ways {
		t.Run(what, func(t *testing.T) {
			for i := range 20 {
				checkWoken(t, a, b, event, wait, i)
			}
		})
	}
}

func checkWoken(t *testing.T, a, b *process, event int, wait func(*process, int, uint32) error, i int) {
	t.Helper()
	unix.Read(event, make([]byte, 8)) // consume earlier rings
	seen := b.ringTail()
	if err := b.wait(waitArg{RingTail: seen}); err != unix.ETIMEDOUT {
		t.Fatalf("acknowledging: got %v, want %v", err, unix.ETIMEDOUT)
	}
	err := b.transfer(cmdReceive, 0, sendContext{Process: a.reg.Name, Flags: flagDoorbell | flagInline, Len: 64})
	if err != nil {
		t.Fatal(err)
	}
	woken, sleeps := waiter(func() error { return wait(b, event, seen) })
	if i%2 == 0 { // both orders happen: it sleeps already, or not yet
		if err := sleeps(); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.transfer(cmdSendShort, 0, sendContext{Process: b.reg.Name, Flags: flagDoorbell, Len: 8}); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Fatalf("round %d: %v", i, err)
	}
	checkRung(t, b, true, 0, stateDone, 8)
	checkRung(t, a, false, 0, stateDone, 8)
}

func TestEndWakesTheWaiter(t *testing.T) {
	load(t, "nics=1")
	p := mustRegister(t, 0, small("p"))
	woken, sleeps := waiter(func() error { return p.wait(waitArg{TimeoutNs: -1}) })
	if err := sleeps(); err != nil {
		t.Fatal(err)
	}
	if err := ioctl(p.fd, iocDeregister, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != unix.ENOTCONN {
		t.Errorf("got %v, want %v", err, unix.ENOTCONN)
	}
}

// waiter calls wait on a thread of its own, whose error woken gives; sleeps waits until that thread sleeps in a system
// call, or has been woken.
func waiter(wait func() error) (woken <-chan error, sleeps func() error) {
	thread, result := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		result <- wait()
	}()
	return result, func() error {
		file := fmt.Sprintf("/proc/self/task/%d/syscall", <-thread)
		for deadline := time.Now().Add(time.Minute); len(result) == 0 && !asleep(file); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				return errors.New("the waiter does not sleep")
			}
		}
		return nil
	}
}

// asleep says whether a thread sleeps in a system call, but for that in which Go's scheduler parks it.
func asleep(file string) bool {
	text, _ := readFile(file)
	var number int
	_, err := fmt.Sscan(text, &number)
	return err == nil && number >= 0 && number != unix.SYS_FUTEX // "running" is no number; -1: in none
}

// An idle NIC runs nothing: no thread, no timer, with messages behind it and processes registered and asleep.
func TestIdleNICRunsNothing(t *testing.T) {
	load(t, "nics=2")
	a, b := mustRegister(t, 0, small("a")), mustRegister(t, 1, small("b"))
	for i := range 100 {
		checkShort(t, a, b, i)
		checkShort(t, b, a, i)
	}
	woken, sleeps := waiter(func() error { return b.wait(waitArg{RingTail: b.ringTail(), TimeoutNs: -1}) })
	t.Cleanup(func() {
		ioctl(b.fd, iocDeregister, nil)
		<-woken
	})
	if err := sleeps(); err != nil {
		t.Fatal(err)
	}
	// The work after the messages is done when two samples in a row are equal.
	const look = 250 * time.Millisecond
	before := runs(t)
	for end := time.Now().Add(time.Minute); ; {
		time.Sleep(look)
		now := runs(t)
		if now == before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("an idle NIC goes on running: %q, then %q", before, now)
		}
		before = now
	}
}

// runs tells how often the NICs have been run, and by whom.
func runs(t testing.TB) (text string) {
	t.Helper()
	for nic := range 2 {
		one, err := readFile(fmt.Sprintf("/sys/kernel/debug/qnix/qnix%d/runs", nic))
		if err != nil {
			t.Fatal(err)
		}
		text += one
	}
	return text
}
