//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A machine is a running QEMU. It holds no file and no name outside: all its channels are inherited sockets, its first
// file system is memory, and the kernel kills it when this process ends.
type machine struct {
	rank    int
	cmd     *exec.Cmd
	qemu    strings.Builder // QEMU's own output
	console consoleScanner
	control *os.File
	monitor *os.File // QEMU's
	tty     *os.File // of a shell
	copies  sync.WaitGroup
}

// A hardware is what the guests are made of.
type hardware struct {
	accel   string
	headers string // where modules are built, if that was asked for
	kernel  *kernel
	siw     string // file of the module, if it is to be loaded
	memory  int    // MiB
	cpus    int
	mtu     int
	out     string // directory to export writable
	shell   bool
	verbose bool // the kernel says more
}

// Where a machine's output goes.
type outputs struct {
	stdout, stderr io.Writer
	console        io.Writer // gets the console's output, or nil
}

// inherited numbers the files that QEMU gets.
type inherited struct{ files []*os.File }

func (i *inherited) add(f *os.File) int {
	i.files = append(i.files, f)
	return 2 + len(i.files)
}

// channel makes a socket pair, gives one end to QEMU and returns the other.
func (i *inherited) channel() (*os.File, int, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, 0, err
	}
	return ours, i.add(theirs), nil
}

func (i *inherited) close() {
	for _, f := range i.files {
		f.Close()
	}
}

func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "vm socket"), os.NewFile(uintptr(fds[1]), "vm socket"), nil
}

// memoryFile is a file without a name.
func memoryFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initrd")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// startMachine must be called from a thread that lives as long as the machine shall. It takes the link.
// Messages of the guest go to send, also those that are not understood, and io.EOF once QEMU has ended.
func startMachine(
	h *hardware, g guest, image []byte, link *os.File, to outputs, send func(int, message, error),
) (*machine, error) {
	qemu, err := findTool("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	m := &machine{rank: g.rank}
	var give inherited
	defer give.close()
	args := h.arguments()
	var errs []error
	attach := func(id string, device ...string) *os.File {
		ours, fd, err := give.channel()
		errs = append(errs, err)
		args = append(args, "-chardev", fmt.Sprintf("socket,id=%s,fd=%d", id, fd))
		args = append(args, device...)
		return ours
	}
	console := attach("console", "-serial", "chardev:console")
	m.control = attach("control", "-device", "virtserialport,nr=1,chardev=control")
	stdout := attach("stdout", "-device", "virtserialport,nr=2,chardev=stdout")
	stderr := attach("stderr", "-device", "virtserialport,nr=3,chardev=stderr")
	m.monitor = attach("monitor", "-mon", "chardev=monitor,mode=readline")
	if h.shell {
		m.tty = attach("tty", "-device", "virtconsole,chardev=tty")
	}
	root, err := memoryFile(image)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	args = append(args, "-initrd", fmt.Sprintf("/proc/self/fd/%d", give.add(root)))
	args = append(args, "-netdev", fmt.Sprintf("socket,id=n0,fd=%d", give.add(link)),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n0,romfile=,host_mtu=%d,mac=52:54:00:12:34:%02x", h.mtu, g.rank+1))

	m.cmd = exec.Command(qemu, args...)
	m.cmd.ExtraFiles = give.files
	m.cmd.Stdout, m.cmd.Stderr = &m.qemu, &m.qemu
	// A group of its own: Ctrl-C is for the command in the guest.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", qemu, err)
	}
	m.copy(stdout, to.stdout)
	m.copy(stderr, to.stderr)
	if to.console == nil {
		to.console = io.Discard
	}
	m.copy(console, &m.console, to.console)
	m.copy(m.monitor, io.Discard)
	if m.tty != nil {
		m.copy(m.tty, to.stdout)
	}
	go m.listen(send)
	return m, nil
}

// arguments are those that do not depend on what the machine is connected to.
func (h *hardware) arguments() []string {
	level := 5 // warnings, too
	if h.verbose {
		level = 7
	}
	// An NMI makes the kernel print what its processors are at (panic_print), and end: see backtrace.
	kernel := fmt.Sprintf("console=ttyS0 loglevel=%d panic=-1 oops=panic unknown_nmi_panic panic_print=0x40 "+
		"mitigations=off nokaslr tsc=reliable cryptomgr.notests random.trust_cpu=on rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30", level)
	accel, cpu := h.accel, "max"
	if accel == "tcg" {
		accel = "tcg,thread=multi"
		// Emulated, one byte at a time is the slowest way to copy, and AVX slower than SSE: tests take a sixth less without.
		cpu += ",erms=off,fsrm=off,avx=off,avx2=off"
		// An emulated processor that runs code which another one is patching can meet the half of a patch (Oops: int3).
		// The kernel patches itself while it boots: on one processor. init.sh takes the others in.
		kernel += fmt.Sprintf(" maxcpus=1 tsc_early_khz=%d", tscKHz())
	}
	args := []string{
		"-M", "q35", "-cpu", cpu, "-smp", fmt.Sprint(h.cpus), "-m", fmt.Sprint(h.memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-accel", accel, "-kernel", h.kernel.image, "-append", kernel,
		"-device", "virtio-serial-pci",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
	}
	if h.out != "" {
		path := strings.ReplaceAll(h.out, ",", ",,")
		args = append(args, "-fsdev", "local,id=out,path="+path+",security_model=none,multidevs=remap",
			"-device", "virtio-9p-pci,fsdev=out,mount_tag=out")
	}
	return args
}

// copy passes on what comes from the machine until it ends.
func (m *machine) copy(from *os.File, to ...io.Writer) {
	m.copies.Add(1)
	go func() {
		defer m.copies.Done()
		defer from.Close()
		io.Copy(io.MultiWriter(to...), from)
		for _, w := range to {
			if p, ok := w.(*prefixWriter); ok {
				p.flush()
			}
		}
	}()
}

// listen passes on the guest's messages, then that the machine has ended.
func (m *machine) listen(send func(int, message, error)) {
	lines := bufio.NewScanner(m.control)
	for lines.Scan() {
		msg, err := parseMessage(lines.Text())
		send(m.rank, msg, err)
	}
	send(m.rank, message{}, io.EOF)
}

// tell sends a line to the guest's init, which reads them at once.
func (m *machine) tell(format string, args ...any) {
	fmt.Fprintf(m.control, format+"\n", args...)
}

// backtrace makes the guest's kernel print what its processors are at, even one that runs nothing any more. The machine
// then ends.
func (m *machine) backtrace() {
	fmt.Fprintln(m.monitor, "nmi")
}

// stop ends the machine and returns when all that it said has been passed on.
func (m *machine) stop() {
	m.cmd.Process.Kill()
	m.cmd.Wait()
	m.copies.Wait()
	m.control.Close()
	m.console.finish()
}
