//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/rights"
)

// process is a peer's, named so that it cannot be mistaken for another one
// that was given the same pid later. All connections to it share one.
type process struct {
	uid   uint32
	pid   int // in our pid namespace; 0 if it cannot be seen from here
	pidfd int // -1 if unknown

	name  processName
	users int // connections; guarded by processes
}

// processName identifies a living process: by the inode of the pidfd (Linux
// 6.9), else by the pid. Empty: the process is not shared.
type processName struct {
	inode uint64
	pid   int
}

var processes = struct {
	mu     sync.Mutex
	living map[processName]*process
}{living: make(map[processName]*process)}

// noProcess is the process of a connection that has none yet, or not any more.
var noProcess = &process{uid: rights.Nobody, pidfd: -1}

// peerOf returns the process at the other end of a socket; the caller closes it.
func peerOf(sock *net.UnixConn) (*process, error) {
	cred, pidfd, err := rights.Process(sock)
	if err != nil {
		return nil, fmt.Errorf("credentials of the peer: %w", err)
	}
	p := &process{uid: cred.Uid, pid: int(cred.Pid), pidfd: pidfd} // the attempt at CMA notices that the pid names another
	return p.share(), nil
}

// pidFS is the type of the file system that pidfds are of since Linux 6.9.
const pidFS = 0x50494446

// share returns the process that p is, of which there may be one already.
func (p *process) share() *process {
	p.users = 1
	if p.pidfd < 0 {
		return p
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(p.pidfd, &fs) == nil && fs.Type == pidFS && unix.Fstat(p.pidfd, &st) == nil {
		p.name.inode = st.Ino
	} else if p.pid > 0 && !p.dead() {
		// Two processes that live now, and have the same pid, are one.
		p.name.pid = p.pid
	} else {
		return p
	}
	processes.mu.Lock()
	defer processes.mu.Unlock()
	if q := processes.living[p.name]; q != nil && q.uid == p.uid && (p.name.inode != 0 || !q.dead()) {
		unix.Close(p.pidfd)
		q.users++
		return q
	}
	processes.living[p.name] = p
	return p
}

// dead reports whether the process has ended: no thread of it runs any more.
// False if that cannot be known.
func (p *process) dead() bool {
	if p.pidfd < 0 {
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n == 1
}

// presence shows whether memory at a peer's addresses is still the peer's. The owner of the connection uses it.
type presence struct {
	pidfd int
	sock  syscall.RawConn
	look  func(sock uintptr) // sets ended
	ended bool
	seen  time.Duration // when the peer was last found there, since started; 0: never
}

// sure is how long the memory of a peer that was seen stays its own: the kernel gives all other pids before it gives
// this one again, and a program that the process executes takes longer to start.
const sure = 100 * time.Microsecond

var started = time.Now()

// observe is called before the first use.
func (p *presence) observe(sock *net.UnixConn, pidfd int) (err error) {
	p.pidfd = pidfd
	p.look = func(sock uintptr) {
		fds := [2]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}, {Fd: int32(sock), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		p.ended = err == nil && n > 0
	}
	p.sock, err = sock.SyscallConn()
	return err
}

// gone reports whether the pid may name another process by now, or the process may execute another program: both end
// the socket.
func (p *presence) gone() bool { return p.sock.Control(p.look) != nil || p.ended }

// replaced is gone without a system call where the peer was seen a moment ago.
func (p *presence) replaced() bool {
	now := time.Since(started)
	if p.seen != 0 && now-p.seen < sure {
		return false
	}
	if p.gone() {
		return true
	}
	p.seen = now
	return false
}

// close gives up one connection's share.
func (p *process) close() {
	if p.pidfd < 0 {
		return
	}
	processes.mu.Lock()
	defer processes.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if processes.living[p.name] == p {
		delete(processes.living, p.name)
	}
	unix.Close(p.pidfd)
	p.pidfd = -1
}

// attach reads the nonce whose address the peer has sent: if it is there, we can
// reach the memory of this process, and of no other that happens to have its
// pid. ErrBroken: the process has ended, or is about to: the memory of a process
// that dies goes before its pidfd shows it.
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

// selfAttach reports whether the kernel, and a sandbox around us, admit
// process_vm_readv at all.
func selfAttach() bool {
	nonce := &[nonceBytes]byte{1}
	p := process{pid: os.Getpid(), pidfd: 0}
	ok, _ := p.attach(uint64(uintptr(unsafe.Pointer(nonce))), nonce)
	return ok
}
