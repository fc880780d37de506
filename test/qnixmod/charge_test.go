//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["charged"] = func([]string) error { return roleCharged() }
	roles["owner"] = func(args []string) error { return roleOwner(args[0]) }
	roles["owner of namespace"] = func([]string) error { return roleNamespace() }
	roles["inside"] = func([]string) error { return roleInside() }
}

// large is a registration whose tables in the NIC are as large as they can be, and its mappings small.
func large(n string) registerArg {
	return registerArg{Name: name(n), Commands: 16, Sends: 4096, Receives: 4096}
}

// leastTables is less than what 8192 contexts take in the NIC: 128 bytes each.
const leastTables = 8192 * 128

// roleCharged registers when its input says so, and tells what is pinned before and after.
func roleCharged() error {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	in.Scan()
	before, err := pinned()
	if err != nil {
		return err
	}
	p, err := register(0, large("charged"))
	if err != nil {
		return err
	}
	after, err := pinned()
	if err != nil {
		return err
	}
	fmt.Println(p.reg.VNISize+p.reg.HPSSize, (after-before)*1024)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// newCgroup makes one with a controller, removed when the test ends.
func newCgroup(t *testing.T, controller string) string {
	t.Helper()
	top := t.TempDir()
	if err := unix.Mount("none", top, "cgroup2", 0, ""); err != nil {
		t.Skipf("needs a kernel with cgroups: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(top, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
		t.Skipf("needs a kernel with the %s controller of cgroups: %v", controller, err)
	}
	dir := filepath.Join(top, "qnixmod")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func current(t *testing.T, cgroup string) int {
	t.Helper()
	text, err := readFile(filepath.Join(cgroup, "memory.current"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The memory of a registration counts for its cgroup and towards its RLIMIT_MEMLOCK, the NIC's own tables too.
func TestRegistrationIsCharged(t *testing.T) {
	load(t, "nics=1")
	cgroup := newCgroup(t, "memory")
	cmd := child(t, "charged")
	in, out := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)
	lines.ReadString('\n')
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	before := current(t, cgroup)
	fmt.Fprintln(in)
	var interfaces, pins int
	if line, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscan(line, &interfaces, &pins); err != nil {
		t.Fatal(err)
	}
	charged := current(t, cgroup) - before
	t.Logf("interfaces take %d bytes; %d are charged to the cgroup, %d are pinned", interfaces, charged, pins)
	if want := interfaces + leastTables; charged < want {
		t.Errorf("the cgroup is charged with %d bytes, want at least %d", charged, want)
	}
	if want := interfaces + leastTables; pins < want || pins > 2*want {
		t.Errorf("%d bytes count as pinned, want at least %d and not twice that", pins, want)
	}
}

func pipes(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// roleInside is in a user namespace. It prints its pid and waits for a line with two numbers, of users and of
// registrations of each, which comes when its users are mapped. For each user it prints how many registrations it got, and
// the error of the last one.
func roleInside() error {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println(os.Getpid())
	in.Scan()
	var users, each int
	if _, err := fmt.Sscan(in.Text(), &users, &each); err != nil {
		return err
	}
	for uid := range users {
		// The real user is who counts; the effective one stays the root of the namespace.
		if err := syscall.Setresuid(uid, 0, 0); err != nil {
			return err
		}
		n, err := 0, error(nil)
		for n < each {
			if _, err = register(0, small(fmt.Sprintf("%d-%d-%d", os.Getpid(), uid, n))); err != nil {
				break
			}
			n++
		}
		fmt.Println(n, "errno="+unix.ErrnoName(errnoOf(err)))
	}
	in.Scan()
	return nil
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	errors.As(err, &errno)
	return errno
}

// leaveChroot makes the root directory of this process that of its mount namespace, which it has to be for who makes a
// user namespace: a machine of hack/vm runs its command in another one. back undoes it, for all but this process.
func leaveChroot() (back func(), err error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	root, err := unix.Open("/proc/1/root", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root of process 1: %w", err)
	}
	if err := unix.MoveMount(tree, "", root, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("move_mount: %w", err)
	}
	if err := unix.Fchdir(tree); err != nil {
		return nil, err
	}
	if err := unix.Chroot("."); err != nil {
		return nil, err
	}
	return func() { unix.Unmount(".", unix.MNT_DETACH) }, nil
}

// roleOwner has a process in a user namespace of the user that its argument names.
func roleOwner(uid string) error {
	back, err := leaveChroot()
	if err != nil {
		return err
	}
	defer back()
	n, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BYWASH_QNIX_ROLE=owner of namespace")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(n), Gid: uint32(n)}, Pdeathsig: unix.SIGKILL}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// roleNamespace makes a user namespace.
func roleNamespace() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BYWASH_QNIX_ROLE=inside")
	// Its user is not mapped yet, so it would lose its capabilities with exec.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, AmbientCaps: []uintptr{unix.CAP_SETUID}, Pdeathsig: unix.SIGKILL,
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// subordinate starts somebody in a user namespace of user owner, with ten users from first on.
func subordinate(t *testing.T, owner, first int) (*bufio.Reader, io.WriteCloser) {
	t.Helper()
	cmd := child(t, "owner", strconv.Itoa(owner))
	in, out := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	lines := bufio.NewReader(out)
	pid, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"gid_map", "uid_map"} {
		path := filepath.Join("/proc", strings.TrimSpace(pid), file)
		if err := os.WriteFile(path, fmt.Appendf(nil, "0 %d 10", first), 0); err != nil {
			t.Fatal(err)
		}
	}
	return lines, in
}

// A user who has subordinate ids has the limit once, not once for each of them.
func TestLimitCountsForOwnersOfNamespaces(t *testing.T) {
	load(t, "nics=2 max_per_user=2")
	if err := os.Chmod(device(0), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		owner, first int
	}{
		{"of a user", 1000, 100_000},
		{"of another user", 1001, 200_000},
		{"of root", 0, 300_000},
		{"of root, other users", 0, 400_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines, in := subordinate(t, c.owner, c.first)
			fmt.Fprintln(in, 3, 1)
			for i, want := range []string{"1 errno=", "1 errno=", "0 errno=EUSERS"} {
				got, err := lines.ReadString('\n')
				if err != nil || strings.TrimSpace(got) != want {
					t.Errorf("user %d of the namespace: got %q (%v), want %q", i, strings.TrimSpace(got), err, want)
				}
			}
		})
	}
}

// All users of a container have one share of a NIC's tables, whoever made the container: half of what is there, and the rest
// is for others.
func TestContainerHasOneShare(t *testing.T) {
	for _, owner := range []int{1000, 0} {
		t.Run(fmt.Sprintf("made by user %d", owner), func(t *testing.T) {
			const processes = 64
			load(t, fmt.Sprintf("nics=1 processes=%d names=%d", processes, processes))
			if err := os.Chmod(device(0), 0o666); err != nil {
				t.Fatal(err)
			}
			lines, in := subordinate(t, owner, 100_000)
			fmt.Fprintln(in, 9, processes)
			sum := 0
			for uid := range 9 {
				line, err := lines.ReadString('\n')
				var n int
				var why string
				if err == nil {
					_, err = fmt.Sscan(line, &n, &why)
				}
				if err != nil || why != "errno=EDQUOT" {
					t.Fatalf("user %d of the container: got %q (%v), want EDQUOT at the end", uid, line, err)
				}
				sum += n
			}
			if sum < 1 || sum > processes/2 {
				t.Errorf("nine users of a container have %d of %d processes, want at most half", sum, processes)
			}
			other, in2 := subordinate(t, 1001, 200_000)
			fmt.Fprintln(in2, 1, 1)
			if got, err := other.ReadString('\n'); err != nil || strings.TrimSpace(got) != "1 errno=" {
				t.Errorf("another user: got %q (%v), want one registration", got, err)
			}
		})
	}
}
