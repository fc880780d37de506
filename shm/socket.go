package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// send writes one message with descriptors. It never blocks: messages are far
// smaller than a socket's buffer, and each side sends few; a peer that does not
// read them gets an error here.
func send(sock *net.UnixConn, m *message, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	b := m.append(nil)
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		for {
			if sent = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); sent != unix.EINTR {
				return true
			}
		}
	})
	if err == nil {
		err = sent
	}
	return err
}

// maxFDs is the most descriptors that a message carries.
const maxFDs = 3

// receive reads one message and the descriptors with it, which the caller
// owns, with an error too. io.EOF at the end.
func receive(sock *net.UnixConn, m *message) ([]int, error) {
	var buf [maxMessage]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, on, flags, _, err := sock.ReadMsgUnix(buf[:], oob)
	if err != nil && on == 0 {
		return nil, err
	}
	// An empty datagram, which ReadMsgUnix takes for the end, can carry
	// descriptors.
	var fds []int
	if on > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			return nil, errMalformed
		}
		for i := range msgs {
			if f, err := unix.ParseUnixRights(&msgs[i]); err == nil {
				fds = append(fds, f...)
			}
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return fds, errMalformed
	case n == 0 && len(fds) == 0:
		return nil, io.EOF
	case err != nil:
		return fds, errMalformed
	}
	return fds, m.parse(buf[:n])
}

// expect reads one message that must be of a kind and have so many
// descriptors.
func expect(sock *net.UnixConn, m *message, kind messageKind, fds int) ([]int, error) {
	got, err := receive(sock, m)
	return m.must(kind, fds, got, err)
}

// must checks what receive has returned.
func (m *message) must(kind messageKind, fds int, got []int, err error) ([]int, error) {
	switch {
	case err != nil:
	case m.kind == msgReject:
		err = rejectError(m.code)
	case m.kind != kind || len(got) != fds:
		err = errMalformed
	}
	if err != nil {
		closeAll(got)
		return nil, err
	}
	return got, nil
}

// process is the peer's, named so that it cannot be mistaken for another one
// that was given the same pid later.
type process struct {
	pid   int // in our pid namespace; 0 if it cannot be seen from here
	pidfd int // -1 if unknown
}

// peerOf tells who is at the other end of a socket.
func peerOf(sock *net.UnixConn) (uid uint32, p process, err error) {
	p.pidfd = -1
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, p, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr != nil {
			return
		}
		p.pid = int(cred.Pid)
		// Linux 6.5; before, the pid could have been reused by now, which
		// the attempt at CMA notices.
		if v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			p.pidfd = v
		} else if p.pid > 0 {
			if v, err := unix.PidfdOpen(p.pid, 0); err == nil {
				p.pidfd = v
			}
		}
	})
	if err = errors.Join(err, cerr); err != nil {
		return 0, p, fmt.Errorf("credentials of the peer: %w", err)
	}
	return cred.Uid, p, nil
}

// dead tells whether the process has ended: no thread of it runs any more.
// False if that cannot be known.
func (p *process) dead() bool {
	if p.pidfd < 0 {
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n == 1
}

func (p *process) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// attach reads the nonce that the peer says lies at addr: if it does, we can
// reach the memory of this process, and of no other that happens to have its
// pid. ErrBroken: the process has ended, or is about to: the memory of a process
// that dies goes before its pidfd says so.
func (p *process) attach(addr uint64, nonce *[nonceBytes]byte) (bool, error) {
	if p.pid <= 0 || p.pidfd < 0 {
		return false, nil
	}
	var got [nonceBytes]byte
	local := [1]unix.Iovec{{Base: &got[0], Len: nonceBytes}}
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: nonceBytes}}
	n, err := unix.ProcessVMReadv(p.pid, local[:], remote[:], 0)
	if err == unix.ESRCH || err != nil && p.dead() {
		return false, fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken)
	}
	return err == nil && n == nonceBytes && got == *nonce, nil
}

// selfAttach tells whether the kernel, and a sandbox around us, admit
// process_vm_readv at all.
func selfAttach() bool {
	nonce := &[nonceBytes]byte{1}
	p := process{pid: os.Getpid(), pidfd: 0}
	ok, _ := p.attach(uint64(uintptr(unsafe.Pointer(nonce))), nonce)
	return ok
}

// admitPeers lets peers attach where Yama restricts that to descendants. They
// are of the same user, else the connection would not have been made; but any
// process of this user can attach then.
func admitPeers() {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n == 1 {
		_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0)
	}
}

// dialSocket connects to a context's socket. It retries while the listener's
// queue is full.
func dialSocket(path string, given func() bool) (*net.UnixConn, error) {
	for {
		s, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, unix.EAGAIN) && !given():
			pause()
		case errors.Is(err, unix.ENOENT) && missing(filepath.Dir(path)):
			return nil, fmt.Errorf("%w: the directory of the peer's socket, %s, is not here: containers have to share it, or use another driver", driver.ErrBroken, filepath.Dir(path))
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
			return nil, fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return nil, fmt.Errorf("%w: this user may not open the peer's socket (option allow-uids)", driver.ErrAuth)
		case errors.Is(err, unix.EMFILE):
			return nil, resourceError("connect", unix.EMFILE)
		default:
			return nil, fmt.Errorf("%w: %w", driver.ErrBroken, err)
		}
	}
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// pause is the step of loops that wait for something nobody announces.
func pause() { time.Sleep(time.Millisecond) }
