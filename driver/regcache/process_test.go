//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// Some tests need a process of their own: this binary again, which envRole orders to
// play one of roles.
const envRole = "BYWASH_REGCACHE_ROLE"

var roles = map[string]func() error{"refused": refusedRole, "unprivileged": unprivilegedRole}

func TestMain(m *testing.M) {
	if role := roles[os.Getenv(envRole)]; role != nil {
		if err := role(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(t *testing.T, role string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{envRole + "=" + role}
	cmd.Dir = "/"
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "skip: ") {
		t.Skip(strings.TrimSpace(string(out)))
	}
	if err != nil {
		t.Fatalf("%s: %v: %s", role, err, out)
	}
	t.Logf("%s", out)
}

// Where the system call is forbidden, as by default in some containers, Watch
// names the remedy, and memory is registered per transfer.
func TestWatchWhereForbidden(t *testing.T) { play(t, "refused", nil) }

func refusedRole() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_USERFAULTFD},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("skip: needs seccomp: %w", errno)
	}
	b, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	_, err = Watch(b)
	var u *driver.UnavailableError
	if !errors.As(err, &u) || !errors.Is(err, unix.EPERM) || !strings.Contains(u.Remedy, "seccomp") {
		return fmt.Errorf("got %w, want the remedy", err)
	}
	fmt.Println(err)
	dev := newDevice()
	c := New(dev, Config{})
	r, err := c.Acquire(b, 1)
	if err != nil {
		return err
	}
	r.Release()
	if n := dev.count(); n != 0 {
		return fmt.Errorf("%d registrations after the release", n)
	}
	return c.Close()
}

// No privilege is needed.
func TestWatchUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		play(t, "unprivileged", nil)
		return
	}
	play(t, "unprivileged", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
}

func unprivilegedRole() error {
	if os.Getuid() == 0 {
		return errors.New("still root")
	}
	b, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if _, err = Watch(b); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("skip: needs userfaultfd: %w", err)
	} else if err != nil {
		return err
	}
	c := New(newDevice(), Config{})
	for range 2 {
		r, err := c.Acquire(b, 1)
		if err != nil {
			return err
		}
		r.Release()
	}
	if got := c.Counters(); got.Hits != 1 {
		return fmt.Errorf("%+v, want a hit", got)
	}
	if err := unix.Madvise(b, unix.MADV_DONTNEED); err != nil {
		return err
	}
	settle()
	if got := c.Counters(); got.Invalidated != 1 {
		return fmt.Errorf("%+v, want an invalidation", got)
	}
	return c.Close()
}

// After a fork the child is not watched, so that nothing it does waits for the
// parent, and the parent keeps the pages that are registered, whichever process writes
// first.
func TestFork(t *testing.T) {
	d := newDMA(t)
	c := New(d, Config{})
	defer closeCache(t, c)
	b := fenced(t, 4*page)
	mustWatch(t, b)
	if err := d.receive(c, b, 1); err != nil {
		t.Fatal(err)
	}
	pid, errno := forkAndUnmap(b)
	if errno != 0 {
		t.Skipf("needs fork: %v", errno)
	}
	for i := range b {
		b[i] = 0x55 // a copy on write, if pages were shared with the child
	}
	if err := d.receive(c, b, 2); err != nil {
		t.Error(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
		t.Fatalf("child: %v, status %#x", err, status)
	}
	if err := d.receive(c, b, 3); err != nil {
		t.Error(err)
	}
	if got := c.Counters(); got.Hits != 2 || got.Misses != 1 || got.Invalidated != 0 {
		t.Errorf("%+v, want hits alone", got)
	}
}

// forkAndUnmap makes a child that discards and unmaps b and exits with 0. There
// is no Go runtime in the child: it only makes raw system calls.
//
//go:norace
//go:noinline
func forkAndUnmap(b []byte) (pid int, errno unix.Errno) {
	at, n := uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))
	child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || child != 0 {
		return int(child), errno
	}
	_, _, e1 := unix.RawSyscall(unix.SYS_MADVISE, at, n, unix.MADV_DONTNEED)
	_, _, e2 := unix.RawSyscall(unix.SYS_MUNMAP, at, n, 0)
	unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e1|e2), 0, 0)
	panic("unreachable")
}
