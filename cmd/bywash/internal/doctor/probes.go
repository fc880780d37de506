//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/userdir"
)

func openFiles() Finding {
	f := Finding{Name: "open files (RLIMIT_NOFILE)", Level: OK}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return failed(f, Slow, err, "")
	}
	f.Found = fmt.Sprintf("%s, at most %s", limit(r.Cur), limit(r.Max))
	// A connection takes a few descriptors.
	switch {
	case r.Max < 256:
		f.Level, f.Remedy = Blocked, "raise it: ulimit -Hn 65536 as root, or LimitNOFILE= in the unit"
	case r.Max < 4096:
		f.Level, f.Remedy = Slow, "enough for some hundred peers; for more: ulimit -Hn 65536 as root, or LimitNOFILE= in the unit"
	}
	return f
}

func limit(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func sharedMemory() Finding {
	f := Finding{Name: "/dev/shm", Level: OK}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		return failed(f, Slow, err, "mount it: mount -t tmpfs tmpfs /dev/shm (drivers use memfds, programs may want it)")
	}
	size, free := st.Blocks*uint64(st.Bsize)>>20, st.Bavail*uint64(st.Bsize)>>20
	f.Found = fmt.Sprintf("%d MiB, %d MiB free", size, free)
	if free < 64 {
		f.Level, f.Remedy = Slow, "remove old files in /dev/shm, or mount -o remount,size=50% /dev/shm (drivers use memfds, programs may want it)"
	}
	return f
}

func hugePages() Finding {
	f := Finding{Name: "huge pages for arenas", Level: OK}
	const name = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
	b, err := os.ReadFile(name)
	if err != nil {
		return failed(f, Absent, errors.New("this kernel has no transparent huge pages for shared memory"), "")
	}
	f.Found = chosen(string(b))
	if f.Found == "never" || f.Found == "deny" {
		f.Level, f.Remedy = Slow, "large messages take more TLB misses; as root: echo advise > "+name
	}
	return f
}

// chosen is the word in brackets, as in "always [never] force".
func chosen(s string) string {
	_, s, ok := strings.Cut(s, "[")
	if !ok {
		return "unknown"
	}
	s, _, _ = strings.Cut(s, "]")
	return s
}

func sealing() Finding {
	f := Finding{Name: "sealed memfds", Level: OK, Found: "work"}
	remedy := "a kernel from 3.17 on; in a container, a seccomp profile that allows memfd_create"
	fd, err := unix.MemfdCreate("bywash-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return failed(f, Blocked, fmt.Errorf("memfd_create: %w", err), remedy)
	}
	defer unix.Close(fd)
	err = unix.Ftruncate(fd, int64(os.Getpagesize()))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return failed(f, Blocked, fmt.Errorf("seal: %w", err), remedy)
	}
	return f
}

// attach reads a word of a child's stack.
func attach() Finding {
	f := Finding{Name: "cross-memory attach", Level: OK, Found: "process_vm_readv on a child works"}
	if err := readChild(); err != nil {
		return failed(f, Slow, err, "large messages in private memory are copied twice; allow ptrace: --cap-add SYS_PTRACE or a seccomp profile with process_vm_readv, or use arenas")
	}
	return f
}

func readChild() error {
	cmd := exec.Command("/proc/self/exe", "version")
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true} // stopped at its first instruction, it is surely there
	runtime.LockOSThread()                            // a tracer is a thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a child: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &ws, 0, nil); err != nil {
		return fmt.Errorf("wait for a child: %w", err)
	}
	addr, err := stackOf(cmd.Process.Pid)
	if err != nil {
		return err
	}
	var b [8]byte
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: addr, Len: len(b)}}
	if _, err := unix.ProcessVMReadv(cmd.Process.Pid, local, remote, 0); err != nil {
		return fmt.Errorf("process_vm_readv: %w", err)
	}
	return nil
}

// stackOf finds an address that is mapped in a process.
func stackOf(pid int) (uintptr, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(string(line), "%x-%x", &lo, &hi); n == 2 && bytes.Contains(line, []byte("[stack]")) {
			return hi - 64, nil
		}
	}
	return 0, errors.New("a child's stack was not found")
}

func yama() Finding {
	f := Finding{Name: "Yama ptrace_scope", Level: OK}
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		f.Found = "absent: tracing is not restricted"
		return f
	}
	switch f.Found = strings.TrimSpace(string(b)); f.Found {
	case "0":
	case "1":
		f.Found = "1: drivers permit tracing with PR_SET_PTRACER"
	case "2":
		if may, err := capable(unix.CAP_SYS_PTRACE); err == nil && may {
			break
		}
		f.Level = Slow
		f.Remedy = "large messages in private memory are copied twice; as root: sysctl kernel.yama.ptrace_scope=1, or use arenas"
	default:
		f.Level = Slow
		f.Remedy = "large messages in private memory are copied twice; set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and boot again, or use arenas"
	}
	return f
}

func pidfds() Finding {
	f := Finding{Name: "pidfd", Level: OK, Found: "works"}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return failed(f, Blocked, fmt.Errorf("pidfd_open: %w", err), "a kernel from 5.3 on; in a container, a seccomp profile that allows pidfd_open")
	}
	unix.Close(fd)
	return f
}

func barrier() Finding {
	f := Finding{Name: "membarrier", Level: OK, Found: "works"}
	const registerGlobal = 1 << 2 // MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
	mask, _, e := unix.Syscall(unix.SYS_MEMBARRIER, 0, 0, 0)
	if e != 0 {
		return failed(f, Slow, fmt.Errorf("membarrier: %w", e), "senders pay a fence for each message; use a kernel from 4.16 on, or a seccomp profile that allows membarrier")
	}
	if mask&registerGlobal == 0 {
		return failed(f, Slow, errors.New("no expedited global barrier"), "senders pay a fence for each message; use a kernel from 4.16 on")
	}
	return f
}

func runtimeDir() Finding {
	f := Finding{Name: "directory for sockets", Level: OK}
	dir := filepath.Dir(userdir.Path())
	d, err := os.MkdirTemp(dir, "bywash-doctor-*")
	if err != nil {
		return failed(f, Blocked, err, "make "+dir+" writable, or name another directory in XDG_RUNTIME_DIR")
	}
	defer os.RemoveAll(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(d, "s")})
	}
	if err != nil {
		return failed(f, Blocked, fmt.Errorf("bind a socket in %s: %w", dir, err), "name another directory, with a short path, in XDG_RUNTIME_DIR")
	}
	f.Found = dir
	return f
}

// loopback looks at the interface by which processes of this host find each other.
func loopback() Finding {
	f := Finding{Name: "loopback interface", Level: OK, Found: "is up"}
	lo, err := net.InterfaceByName("lo")
	switch {
	case err != nil:
		return failed(f, Blocked, err, "run in a network namespace that has lo")
	case lo.Flags&net.FlagUp == 0:
		f.Level, f.Found, f.Remedy = Blocked, "is down: bywash run and perf find no other process", "ip link set lo up"
	}
	return f
}

func cores() Finding {
	f := Finding{Name: "CPUs", Level: OK}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return failed(f, Slow, err, "")
	}
	n := set.Count()
	online, _ := os.ReadFile("/sys/devices/system/cpu/online")
	f.Found = fmt.Sprintf("%d for this process, %s of the machine", n, bytes.TrimSpace(online))
	if n < 2 {
		f.Level, f.Remedy = Slow, "both ends share a CPU, so latency is that of the scheduler: give this process two CPUs (taskset, docker run --cpuset-cpus)"
	}
	return f
}

func governor() Finding {
	f := Finding{Name: "CPU frequency", Level: OK}
	b, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		f.Found = "not visible from here (a virtual machine?)"
		return f
	}
	f.Found = "governor " + strings.TrimSpace(string(b))
	if strings.TrimSpace(string(b)) == "powersave" {
		// intel_pstate calls its normal mode so.
		if d, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"); err != nil || !strings.HasPrefix(string(d), "intel_pstate") {
			f.Level, f.Remedy = Slow, "as root: cpupower frequency-set -g performance"
		}
	}
	if b, err := os.ReadFile("/sys/devices/system/cpu/cpufreq/boost"); err == nil && strings.TrimSpace(string(b)) == "0" {
		f.Found += ", boost off"
	}
	return f
}

func failed(f Finding, l Level, err error, remedy string) Finding {
	f.Level, f.Found, f.Remedy = l, err.Error(), remedy
	return f
}
