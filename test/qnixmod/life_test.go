//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/qnixko"
)

func init() {
	roles["register"] = func(args []string) error { return roleRegister(args[0], false) }
	roles["register and exec"] = func(args []string) error { return roleRegister(args[0], true) }
	roles["sleep"] = func([]string) error { _, err := io.Copy(io.Discard, os.Stdin); return err }
	roles["limits"] = func([]string) error { return roleLimits() }
}

// roleRegister registers, says so, and stays until it is killed or its input ends.
func roleRegister(n string, exec bool) error {
	p, err := register(0, small(n))
	if err != nil {
		return err
	}
	if err := p.transfer(cmdReceive, 0, sendContext{Process: name("watcher"), Flags: flagDoorbell | flagInline, Len: 64}); err != nil {
		return err
	}
	fmt.Println("registered")
	if exec {
		if _, err := unix.FcntlInt(uintptr(p.fd), unix.F_SETFD, 0); err != nil {
			return err
		}
		env := append(os.Environ(), "BYWASH_QNIX_ROLE=sleep")
		return syscall.Exec("/proc/self/exe", os.Args[:1], env)
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// started runs a role and returns when it has said a line.
func started(t *testing.T, role string, args ...string) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := child(t, role, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%s: %v", role, err)
	}
	return cmd, in
}

func TestEndOfProcessEndsItsRegistration(t *testing.T) {
	for _, c := range []struct {
		how, role string
		end       func(t *testing.T, cmd *exec.Cmd, in io.Closer)
	}{
		{"exit", "register", func(_ *testing.T, _ *exec.Cmd, in io.Closer) { in.Close() }},
		{"kill -9", "register", func(t *testing.T, cmd *exec.Cmd, _ io.Closer) { cmd.Process.Kill() }},
		{"kill -ABRT", "register", func(t *testing.T, cmd *exec.Cmd, _ io.Closer) { cmd.Process.Signal(unix.SIGABRT) }},
		{"exec", "register and exec", func(*testing.T, *exec.Cmd, io.Closer) {}},
	} {
		t.Run(c.how, func(t *testing.T) {
			load(t, "nics=2")
			watcher := mustRegister(t, 1, small("watcher"))
			cmd, in := started(t, c.role, "ending")
			if c.how != "exec" {
				checkKnown(t, watcher)
			}
			c.end(t, cmd, in)
			// The watcher is told: a receive that waits for the dead rings.
			receive := sendContext{Process: name("ending"), Flags: flagDoorbell | flagInline, Len: 64}
			if err := watcher.transfer(cmdReceive, 1, receive); err != nil {
				t.Fatal(err)
			}
			state, _, err := watcher.await(true, 1)
			if err != nil || (state != stateGone && state != stateUnknown) {
				t.Errorf("a receive from the dead rings %d (%v), want %d or %d", state, err, stateGone, stateUnknown)
			}
			// Its name is free. Its pid, the NIC's first, soon is, too: then with another generation.
			p := mustRegister(t, 0, small("ending"))
			if p.reg.PID == 1 && p.reg.Generation < 2 {
				t.Errorf("the pid is that of the dead, and so is the generation: %d", p.reg.Generation)
			}
		})
	}
}

// checkKnown sends to the other process, which has posted a receive.
func checkKnown(t *testing.T, p *process) {
	t.Helper()
	if err := p.transfer(cmdSendShort, 0, sendContext{Process: name("ending"), Flags: flagDoorbell, Len: 8}); err != nil {
		t.Fatal(err)
	}
	checkRung(t, p, false, 0, stateDone, 8)
}

//go:norace
func rawChild(fd int, vni uintptr) (pid uintptr, errno syscall.Errno) {
	var vec [1]byte
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0) // as fork
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	// The child: no Go from here on but raw system calls. Its status tells what it could do.
	status := uintptr(0)
	if _, _, e := syscall.RawSyscall(unix.SYS_MINCORE, vni, 4096, uintptr(unsafe.Pointer(&vec))); e != unix.ENOMEM {
		status |= 1 // it has the mapping
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), iocDoorbell, 0); e != unix.EACCES {
		status |= 2
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), iocDeregister, 0); e != unix.EACCES {
		status |= 4
	}
	if _, _, e := syscall.RawSyscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_SHARED, uintptr(fd), 0); e != unix.EACCES {
		status |= 8
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
	}
}

func TestForkInheritsNothing(t *testing.T) {
	load(t, "nics=1")
	p := mustRegister(t, 0, small("parent"))
	pid, errno := rawChild(p.fd, uintptr(unsafe.Pointer(&p.vni[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	for bit, what := range []string{"the VNI's mapping", "a doorbell", "de-registration", "mmap"} {
		if status.ExitStatus()&(1<<bit) != 0 {
			t.Errorf("the child of a fork has its parent's: %s", what)
		}
	}
	checkShort(t, p, p, 1)
}

// The module cannot be unloaded while a device is open or an interface of a process is mapped.
func TestUnloadWaitsForTheLastUser(t *testing.T) {
	load(t, "nics=1")
	fd, err := openDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := qnixko.TryUnload(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("rmmod with an open device: got %v, want %v", err, unix.EAGAIN)
	}
	unix.Close(fd)
	p, err := register(0, small("p"))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(p.fd)
	if err := qnixko.TryUnload(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("rmmod with a mapping: got %v, want %v", err, unix.EAGAIN)
	}
	checkGone(t, p)
	unix.Munmap(p.vni)
	unix.Munmap(p.hps)
}

// checkGone: a mapping holds its file, so close alone does not end a registration.
func checkGone(t *testing.T, p *process) {
	t.Helper()
	if gone := p.status().Gone; gone != 0 {
		t.Errorf("gone is %d while the VNI is mapped, want 0", gone)
	}
}

// De-registration releases translated memory and tables. Mapped interfaces stay charged until they are unmapped.
func TestDeregistrationLeavesTheMappings(t *testing.T) {
	load(t, "nics=1")
	p := mustRegister(t, 0, small("p"))
	if _, err := p.translate(mustMap(t, 1<<20), accessRead); err != nil {
		t.Fatal(err)
	}
	interfaces, tables := int(p.reg.VNISize+p.reg.HPSSize)/1024, tablesOf(t, p, 1024)
	if err := ioctl(p.fd, iocDeregister, nil); err != nil {
		t.Fatal(err)
	}
	checkPinned(t, "after de-registration", interfaces)
	if gone := p.status().Gone; gone != 1 {
		t.Errorf("gone is %d, want 1", gone)
	}
	p.vni[0] = 1
	if err := ioctl(p.fd, iocDoorbell, nil); err != unix.ENOTCONN {
		t.Errorf("doorbell: got %v, want %v", err, unix.ENOTCONN)
	}
	// The descriptor can register again.
	again := small("again")
	if err := ioctl(p.fd, iocRegister, unsafe.Pointer(&again)); err != nil {
		t.Fatalf("again: %v", err)
	}
	if p.status().Gone != 1 {
		t.Error("an old mapping shows the new registration")
	}
	checkPinned(t, "with old mappings and a new registration", 2*interfaces+tables)
	unix.Munmap(p.vni)
	unix.Munmap(p.hps)
	checkPinned(t, "with a new registration alone", interfaces+tables)
}

// tablesOf is what the NIC has of its own for this process, in KiB: it counts as pinned with the interfaces and what is translated.
func tablesOf(t *testing.T, p *process, translated int) int {
	t.Helper()
	got, err := pinned()
	tables := got - translated - int(p.reg.VNISize+p.reg.HPSSize)/1024
	if err != nil || tables <= 0 {
		t.Fatalf("the NIC's tables for a process count as %d KiB of pinned memory (error %v), want more than 0", tables, err)
	}
	return tables
}

func checkPinned(t *testing.T, when string, want int) {
	t.Helper()
	if got, err := pinned(); err != nil || got != want {
		t.Errorf("%s: %d KiB are pinned (error %v), want %d", when, got, err, want)
	}
}

func TestLoadedAgainAndAgain(t *testing.T) {
	needModule(t)
	for i := range 10 {
		load := fmt.Sprintf("nics=%d key=000102030405060708090a0b0c0d0e0f peers=127.0.0.1:%d", 1+i%4, 20000+i)
		if err := insmod(load); err != nil {
			t.Fatal(err)
		}
		p, err := register(0, small("p"))
		if err != nil {
			t.Fatal(err)
		}
		p.close()
		unload(t)
	}
}

// roleLimits is a user without capabilities and with 1 MiB of RLIMIT_MEMLOCK.
func roleLimits() error {
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	p, err := register(0, small("limited"))
	if err != nil {
		return err
	}
	before, err := pinned()
	if err != nil {
		return err
	}
	if interfaces := int(p.reg.VNISize+p.reg.HPSSize) / 1024; before <= interfaces || before > 2*interfaces {
		return fmt.Errorf("a registration counts as %d KiB of pinned memory, want more than its %d of mappings, and not twice that",
			before, interfaces)
	}
	memory, err := anonymous(1 << 20)
	if err != nil {
		return err
	}
	if _, err := p.translate(memory, accessRead); err != unix.ENOMEM {
		return fmt.Errorf("more than RLIMIT_MEMLOCK: got %v, want %v", err, unix.ENOMEM)
	}
	h, err := p.translate(memory[:512<<10], accessRead)
	if err != nil {
		return fmt.Errorf("half of RLIMIT_MEMLOCK: %w", err)
	}
	if now, _ := pinned(); now != before+512 {
		return fmt.Errorf("%d KiB are pinned, want %d", now, before+512)
	}
	if err := p.untranslate(h); err != nil {
		return err
	}
	if now, _ := pinned(); now != before {
		return fmt.Errorf("%d KiB are pinned after untranslate, want %d", now, before)
	}
	large := small("large")
	large.Sends, large.RegionSize = 1024, 16384
	if _, err := register(0, large); !errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("an interface larger than RLIMIT_MEMLOCK: got %v, want %v", err, unix.ENOMEM)
	}
	if _, err := register(0, small("second")); err != nil {
		return fmt.Errorf("second of max_per_user: %w", err)
	}
	if _, err := register(0, small("third")); !errors.Is(err, unix.EUSERS) {
		return fmt.Errorf("third of max_per_user 2: got %v, want %v", err, unix.EUSERS)
	}
	if _, err := os.ReadFile("/sys/module/qnix/parameters/key"); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a user reads the key: got %v, want %v", err, unix.EACCES)
	}
	return nil
}

// pinned is VmPin, in KiB.
func pinned() (int, error) {
	text, err := readFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(text, "VmPin:")
	return strconv.Atoi(strings.Fields(rest)[0])
}

// A user registers no more processes than max_per_user, pins no more than RLIMIT_MEMLOCK, and cannot read the key.
func TestUserHasLimits(t *testing.T) {
	load(t, "nics=1 max_per_user=2")
	if err := os.Chmod(device(0), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := child(t, "limits")
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

func TestNameIsFreeOnEveryNICOfTheHostAfterTheEnd(t *testing.T) {
	load(t, "nics=2")
	for i := range 300 {
		p, err := register(i%2, small("again"))
		if err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
		if i%4 < 2 {
			err = ioctl(p.fd, iocDeregister, nil)
		}
		p.close()
		if err != nil {
			t.Fatalf("end of registration %d: %v", i, err)
		}
	}
}

// A file that a program has inherited over execve, registered by the program before, can be used like a new one.
func TestFileIsUsableAfterExec(t *testing.T) {
	load(t, "nics=1")
	for _, deregister := range []string{"no", "yes"} {
		out, err := child(t, "before exec", deregister).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != "registered again" {
			t.Errorf("deregister first: %s: got %q, %v; want \"registered again\"", deregister, got, err)
		}
	}
}

func init() {
	roles["before exec"] = func(args []string) error {
		p, err := register(0, small("inherits"))
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(p.fd), unix.F_SETFD, 0); err != nil {
			return err
		}
		if err := os.Setenv("BYWASH_QNIX_ROLE", "after exec"); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", []string{"after exec", strconv.Itoa(p.fd), args[0]}, os.Environ())
	}
	roles["after exec"] = func(args []string) error {
		fd, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		if args[1] == "yes" {
			if err := ioctl(fd, iocDeregister, nil); err != nil {
				return fmt.Errorf("deregister: %w", err)
			}
		}
		p := &process{fd: fd, reg: small("inherits")}
		if err := ioctl(fd, iocRegister, unsafe.Pointer(&p.reg)); err != nil {
			return fmt.Errorf("register: %w", err)
		}
		if err := p.mapAll(); err != nil {
			return err
		}
		fmt.Println("registered again")
		return nil
	}
}
