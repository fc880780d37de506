//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wire is the stream of a connection. Reading and writing are independent of each other; each is done by one goroutine
// at a time.
type wire struct {
	in, out int // descriptors, the same but to oneself
	seal    *sealer

	err     error // of the last read that returned over
	inVec   [maxPieces]unix.Iovec
	outVec  [maxPieces]unix.Iovec
	inHead  unix.Msghdr
	outHead unix.Msghdr
}

// maxPieces is how many pieces of memory one system call takes.
const maxPieces = 32

// status is the outcome of a system call.
type status uint8

const (
	ok    status = iota
	again        // nothing there, or no room: an epoll event will report a change
	over         // the stream has ended
)

// write sends bufs and returns how many bytes were taken, also beside again.
func (w *wire) write(bufs [][]byte) (n int, s status) {
	if w.seal != nil {
		return w.seal.write(w, bufs)
	}
	if len(bufs) == 1 {
		n, s = sendBytes(w.out, bufs[0])
	} else {
		k := vector(&w.outVec, bufs)
		w.outHead.Iov, w.outHead.Iovlen = &w.outVec[0], uint64(k)
		n, s = message(unix.SYS_SENDMSG, w.out, &w.outHead)
		clear(w.outVec[:k])
	}
	return n, s
}

// read fills bufs and returns how many bytes have come. With over, err is the reason, unless the peer has closed.
func (w *wire) read(bufs [][]byte) (n int, s status) {
	if w.seal != nil {
		return w.seal.read(w, bufs)
	}
	if len(bufs) == 1 {
		return w.readBytes(bufs[0])
	}
	k := vector(&w.inVec, bufs)
	w.inHead.Iov, w.inHead.Iovlen = &w.inVec[0], uint64(k)
	n, s, w.err = received(call(unix.SYS_RECVMSG, w.in, &w.inHead))
	clear(w.inVec[:k])
	return n, s
}

// vector describes bufs to the kernel.
func vector(vec *[maxPieces]unix.Iovec, bufs [][]byte) (k int) {
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		vec[k].Base = unsafe.SliceData(b)
		vec[k].SetLen(len(b))
		k++
	}
	return k
}

// System calls are made without telling Go's scheduler: none of them blocks, the longest copies callBudget bytes, which
// takes as long as a copy within the process, and telling it costs 50 ns a call and has the runtime's monitor wake up
// every 20 µs.
const callFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

func sendBytes(fd int, b []byte) (int, status) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), callFlags, 0, 0)
	if errno != 0 {
		return 0, outcome(errno)
	}
	return int(n), ok
}

func (w *wire) readBytes(b []byte) (n int, s status) {
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(w.in), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), callFlags, 0, 0)
	if errno == unix.EAGAIN {
		return 0, again
	}
	n, s, w.err = received(int(r), errno)
	return n, s
}

// received is the outcome of a read: no bytes and no error mean that the peer has closed.
func received(n int, errno unix.Errno) (int, status, error) {
	switch {
	case errno != 0:
		if s := outcome(errno); s == again {
			return 0, again, nil
		}
		return 0, over, errno
	case n == 0:
		return 0, over, nil
	}
	return n, ok, nil
}

func call(trap uintptr, fd int, h *unix.Msghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(h)), callFlags)
	return int(n), errno
}

func message(trap uintptr, fd int, h *unix.Msghdr) (int, status) {
	n, errno := call(trap, fd, h)
	if errno != 0 {
		return 0, outcome(errno)
	}
	return n, ok
}

// outcome returns the status for an error of a system call. ENOBUFS and ENOMEM pass: the kernel may have memory later.
func outcome(errno unix.Errno) status {
	switch errno {
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM:
		return again
	}
	return over
}

// discard receives and drops bytes.
func discard(fd int) (int, status) {
	// MSG_TRUNC on a TCP socket drops bytes without a copy (tcp(7)).
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 1<<20, callFlags|unix.MSG_TRUNC, 0, 0)
	if errno != 0 {
		return 0, outcome(errno)
	}
	return int(n), ok
}

// close closes the descriptors.
func (w *wire) close() {
	_ = unix.Close(w.in)
	if w.out != w.in {
		_ = unix.Close(w.out)
	}
}

// takeSocket takes a socket out of Go's poller.
func takeSocket(sock *net.TCPConn) (fd int, err error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	_ = sock.Close()
	if err != nil {
		return -1, err
	}
	return fd, nil
}
