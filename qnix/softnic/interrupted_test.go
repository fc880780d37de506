//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

func init() { roles["interrupted"] = interruptedRole }

// A signal to a thread of the softnic, such as the death of a child or a request of the Go runtime to yield, interrupts
// system calls. The softnic makes them again: an interrupted question whether a process lives does not mean that it is
// dead. The process registers, its memory is translated, and its transfers succeed.
func TestSignalIsNoFailure(t *testing.T) {
	needNIC(t)
	path := filepath.Join(dir(t), "0")
	c := startChild(t, "interrupted")
	c.write(path)
	var refusal string
	if c.read(&refusal); refusal != "" {
		t.Skip(refusal)
	}
	const size = 1 << 20
	a, b := join(t, path, nic.Config{Name: "a"}), join(t, path, nic.Config{Name: "b"})
	from, to := anonymous(t, size), anonymous(t, size)
	fill(from, 1)
	source, err := a.Translate(from, nic.Read)
	if err != nil {
		t.Fatal(err)
	}
	target, err := b.Translate(to, nic.Write)
	if err != nil {
		t.Fatal(err)
	}
	kick(t, b, b.Post(nic.Receive, 0, &nic.Message{Peer: name("a"), Len: size, Flags: nic.Doorbell,
		Descriptors: []nic.Descriptor{{Handle: target, Len: size}}}))
	kick(t, a, a.Post(nic.Send, 0, &nic.Message{Peer: name("b"), Len: size, Flags: nic.Doorbell,
		Descriptors: []nic.Descriptor{{Handle: source, Len: size}}}))
	if s, n := received(t, b, 0); s != nic.Done || n != size || !bytes.Equal(to, from) {
		t.Errorf("received: %v, %d bytes, equal %v", s, n, bytes.Equal(to, from))
	}
	if s, n := sent(t, a, 0); s != nic.Done || n != size {
		t.Errorf("sent: %v, %d bytes", s, n)
	}
	c.write(0)
	var n interrupts
	// Two mappings of each process; two translations and at least one copy: with fewer, the test has shown nothing.
	if c.read(&n); n.Allocations < 4 || n.Polls < 3 {
		t.Errorf("the softnic was interrupted only this often: %+v", n)
	}
}

// interrupts is how often a process was interrupted.
type interrupts struct{ Allocations, Polls int64 }

// interruptedRole is a softnic of which every other poll and fallocate ends with EINTR. It sends the reason if that is
// impossible here, or "" when it serves; and, asked for it, how often it was interrupted.
func interruptedRole(in *json.Decoder) error {
	var path string
	if err := in.Decode(&path); err != nil {
		return err
	}
	count, err := interruptCalls()
	if err != nil {
		reply(fmt.Sprintf("needs seccomp's notifications: %v", err))
		return nil
	}
	s, err := Start(Config{Sockets: []string{path}})
	if err != nil {
		return err
	}
	reply("")
	var x int
	if err := in.Decode(&x); err == nil {
		reply(count())
		_ = in.Decode(&x) // until the test closes its end
	}
	return s.Close()
}

// What the kernel sends to a supervisor of system calls, and the answer: linux/seccomp.h.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		call, arch uint32
		ip         uint64
		args       [6]uint64
	}
	verdict struct {
		id    uint64
		value int64
		err   int32
		flags uint32
	}
)

// interruptCalls has every other poll and fallocate of this process end with EINTR, from now on. A real signal would
// have to come in the few instructions in which the call looks for one.
func interruptCalls() (count func() interrupts, err error) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 2, K: unix.SYS_FALLOCATE},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.SYS_PPOLL},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: oldPoll()},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // both calls are about a thread
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	const allThreads = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		allThreads|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return nil, errno
	}
	var allocations, polls atomic.Int64
	go func() {
		for interrupt := true; ; interrupt = !interrupt {
			var n notification // the kernel wants zeros
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
			if errno != 0 {
				continue // a signal, to this thread or to the one that polls
			}
			v := verdict{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			if interrupt {
				v.err, v.flags = -int32(unix.EINTR), 0
			}
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&v)))
			switch {
			case !interrupt || errno != 0:
			case n.call == unix.SYS_FALLOCATE:
				allocations.Add(1)
			default:
				polls.Add(1)
			}
		}
	}()
	return func() interrupts { return interrupts{allocations.Load(), polls.Load()} }, nil
}

// oldPoll is the number of the system call poll, which newer architectures have not.
func oldPoll() uint32 {
	if runtime.GOARCH == "amd64" {
		return 7
	}
	return unix.SYS_PPOLL
}
