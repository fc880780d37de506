//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// In other processes this test program is the runner, or a command in a machine.
const (
	asRunner = "VM_TEST_RUNNER"
	asPeer   = "VM_TEST_PEER"
)

func TestMain(m *testing.M) {
	if os.Getenv(asRunner) != "" {
		os.Unsetenv(asRunner)
		main()
		return
	}
	if os.Getenv(asPeer) != "" {
		if err := exchange(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// exchange is for both of two machines: the first sends words to the second, which says that it heard it.
func exchange() error {
	const port, heard = ":7000", "heard\n"
	words := bytes.Repeat([]byte("some words "), 256<<10/11)
	deadline := time.Now().Add(2 * time.Minute)
	if os.Getenv("VM_RANK") == "0" {
		l, err := net.Listen("tcp", os.Getenv("VM_ADDR")+port)
		if err != nil {
			return err
		}
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		conn.SetDeadline(deadline)
		_, err1 := conn.Write(words)
		reply, err2 := io.ReadAll(conn)
		if string(reply) != heard {
			return fmt.Errorf("the reply is %q: %w", reply, errors.Join(err1, err2))
		}
		return nil
	}
	for {
		conn, err := net.Dial("tcp", os.Getenv("VM_PEER")+port)
		if err != nil && time.Now().Before(deadline) {
			time.Sleep(100 * time.Millisecond)
			continue
		} else if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(deadline)
		got := make([]byte, len(words))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, words) {
			return fmt.Errorf("heard something else: %w", err)
		}
		fmt.Print(heard)
		_, err = io.WriteString(conn, heard)
		return err
	}
}

// kernels fetches them before the clock of any test runs.
var kernels = sync.OnceValue(func() error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	_, err1 := stockKernel(context.Background(), cache, "6.1", os.Getenv("BYWASH_MIRROR"))
	_, err2 := stockKernel(context.Background(), cache, "6.12", os.Getenv("BYWASH_MIRROR"))
	return errors.Join(err1, err2)
})

// A result is what a run of the runner left.
type result struct {
	status         int
	stdout, stderr string
}

// runner returns a command for the runner, or skips where no machine can be.
func runner(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("boots a virtual machine: not with -short")
	case runtime.GOARCH != "amd64":
		t.Skip("needs an amd64 machine: the guest runs its programs")
	}
	for _, tool := range []string{
		"qemu-system-x86_64", "busybox", "rdma", "tc", "ibv_rc_pingpong", "depmod", "xz", "apt-get",
	} {
		if _, err := findTool(tool); err != nil {
			t.Skip(err)
		}
	}
	if err := kernels(); errors.Is(err, errNoArchive) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asRunner+"=1", "BYWASH_PASSED=by itself", "NOT_PASSED=no")
	return cmd
}

func runVM(t *testing.T, args ...string) result {
	t.Helper()
	cmd := runner(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	t.Logf("vm %q: status %d\nstdout: %.2000s\nstderr: %.4000s", args, r.status, r.stdout, r.stderr)
	return r
}

func wantStatus(t *testing.T, r result, want int) {
	t.Helper()
	if r.status != want {
		t.Errorf("status %d, want %d", r.status, want)
	}
}

func wantIn(t *testing.T, where, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		t.Errorf("%s has no %q", where, want)
	}
}

// One boot shows what does not disturb each other.
func TestCommandInMachine(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "a directory, with a comma")
	t.Chdir(dir)
	if err := os.WriteFile("of the host", []byte("untouched\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const script = `
echo "kernel $(uname -r)"
echo "id $(id -u)"
echo "dir $(pwd)"
echo "file $(cat 'of the host')"
echo "passed $BYWASH_PASSED, set $SET, not passed $NOT_PASSED"
echo "vm $VM_RANK $VM_ADDR peer $VM_PEER out $VM_OUT"
echo "rxe $(ls /sys/class/infiniband)"
echo "processors $(nproc)"
echo "arguments $0|$1|$2"
echo "to stderr" >&2
echo changed >'of the host' && echo new >'new file' && rm -rf /etc/hostname && echo "writes succeed"
echo result >"$VM_OUT/result"
chmod 600 "$VM_OUT/result"
echo "again" >/dev/stdout
yes 0123456789abcde | head -n 100000
sleep 1000 &
exit 77
`
	r := runVM(t, "-cpus", "3", "-out", out, "-env", "SET=it's \"set\"", "--", "sh", "-c", script, "zero", "one  two", "$(three)'")
	wantStatus(t, r, 77)
	for _, want := range []string{
		"kernel 6.1.", "id 0\n", "dir " + dir + "\n", "file untouched\n",
		"passed by itself, set it's \"set\", not passed \n", "vm 0 192.0.2.1 peer  out " + out + "\n", "rxe rxe0\n", "processors 3\n",
		"arguments zero|one  two|$(three)'\n", "writes succeed\n", "\nagain\n",
	} {
		wantIn(t, "stdout", r.stdout, want)
	}
	if n := strings.Count(r.stdout, "0123456789abcde\n"); n != 100000 {
		t.Errorf("%d of 100000 lines came out", n)
	}
	wantIn(t, "stderr", r.stderr, "to stderr\n")
	if strings.Contains(r.stdout, "to stderr") {
		t.Error("stdout has what was written to stderr")
	}
	if got, err := os.ReadFile(filepath.Join(out, "result")); err != nil || string(got) != "result\n" {
		t.Errorf("output file: %q, %v", got, err)
	}
	if got, err := os.ReadFile("of the host"); err != nil || string(got) != "untouched\n" {
		t.Errorf("the host's file after the guest wrote to it: %q, %v", got, err)
	}
	for _, name := range []string{"new file", "/etc/hostname"} {
		_, err := os.Stat(name)
		if exists := err == nil; exists != (name == "/etc/hostname") {
			t.Errorf("%s on the host: %v", name, err)
		}
	}
}

func TestKernelPanicFailsTheRun(t *testing.T) {
	start := time.Now()
	r := runVM(t, "-timeout", "2m", "--", "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 1000")
	wantStatus(t, r, statusFault)
	wantIn(t, "stderr", r.stderr, "Kernel panic - not syncing: sysrq triggered crash")
	wantIn(t, "stderr", r.stderr, "Call Trace:")
	if time.Since(start) > time.Minute {
		t.Errorf("the panic was noticed after %v", time.Since(start))
	}
}

func TestWarningFailsTheRunOfASuccessfulCommand(t *testing.T) {
	r := runVM(t, "--", "sh", "-c", "echo '<4>WARNING: CPU: 0 PID: 1 at a test' >/dev/kmsg")
	wantStatus(t, r, statusFault)
	wantIn(t, "stderr", r.stderr, "WARNING: CPU: 0 PID: 1 at a test")
	wantIn(t, "stderr", r.stderr, "the command's status: 0")
}

func TestTaintFailsTheRunWithoutAReport(t *testing.T) {
	r := runVM(t, "-kernel", "6.12", "--", "sh", "-c", "uname -r; echo 512 >/proc/sys/kernel/tainted")
	wantStatus(t, r, statusFault)
	wantIn(t, "stdout", r.stdout, "6.12.")
	wantIn(t, "stderr", r.stderr, "tainted (0x200)")
}

func TestTimeLimitEndsTheRun(t *testing.T) {
	r := runVM(t, "-timeout", "1s", "--", "true")
	wantStatus(t, r, statusTimeout)
	wantIn(t, "stderr", r.stderr, "machine 0 was still booting after 1s")
}

func TestSignalReachesTheCommand(t *testing.T) {
	cmd := runner(t, "--", "sh", "-c", "trap 'echo trapped; exit 9' INT; echo started; while :; do sleep 0.1; done")
	output := startUntil(t, cmd, "started")
	cmd.Process.Signal(syscall.SIGINT)
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("%v, want status 9: %s", err, output)
	}
	wantIn(t, "output", output.String(), "trapped")
}

// Of a command that does not end after a signal, perhaps as its machine hangs, the runner shows what the processors are at.
func TestSignalShowsWhereAMachineHangs(t *testing.T) {
	cmd := runner(t, "--", "sh", "-c", "trap '' QUIT; echo started; while :; do sleep 0.1; done")
	output := startUntil(t, cmd, "started")
	cmd.Process.Signal(syscall.SIGQUIT)
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != statusFault {
		t.Errorf("%v, want status %d: %s", err, statusFault, output)
	}
	for _, want := range []string{"did not end within", "Kernel panic", "backtrace for cpu 0", "backtrace for cpu 1"} {
		wantIn(t, "output", output.String(), want)
	}
}

func TestKilledRunnerLeavesNoQEMU(t *testing.T) {
	cmd := runner(t, "-two", "--", "sh", "-c", "echo started; sleep 1000")
	startUntil(t, cmd, "started")
	machines := children(t, cmd.Process.Pid)
	if len(machines) != 2 {
		t.Errorf("%d processes of the runner, want 2", len(machines))
	}
	cmd.Process.Kill()
	cmd.Wait()
	for _, pid := range machines {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil || !bytes.Contains(command, []byte("qemu")) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("process %d lives on: %q", pid, command)
			}
		}
	}
}

// startUntil starts the command and returns once it has said a word. Its output goes on being collected.
func startUntil(t *testing.T, cmd *exec.Cmd, word string) *bytes.Buffer {
	t.Helper()
	said := make(chan struct{})
	output := &watcher{word: word, said: said}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	select {
	case <-said:
	case <-time.After(4 * time.Minute):
		t.Fatalf("%q was not said in 4 minutes", word)
	}
	return &output.buf
}

// A watcher tells when a word has been written.
type watcher struct {
	buf  bytes.Buffer
	word string
	said chan struct{}
	done bool
}

func (w *watcher) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if !w.done && strings.Contains(w.buf.String(), w.word) {
		w.done = true
		close(w.said)
	}
	return len(p), nil
}

func children(t *testing.T, parent int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestTwoMachinesReachEachOtherWithLoss(t *testing.T) {
	// TCP over the lossy link; then each says how many packets its own end has dropped. RDMA without the loss: where the
	// last acknowledgement is lost and its sender gone, there is no good end. One command fails.
	const script = `
set -e
"$0"
tc -s qdisc show dev eth0
tc qdisc del dev eth0 root
# A machine that gets no time gives up sending, and then the other end would wait for ever.
if [ $VM_RANK = 0 ]; then peer=; else peer=$VM_PEER; fi
until timeout 20 ibv_rc_pingpong -g 1 -n 50 $peer; do sleep 0.1; done
echo "pingpong with $VM_PEER"
printf 'no newline' >&2
exit $((VM_RANK * 5))
`
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := runVM(t, "-kernel", "6.12", "-two", "-netem", "delay 1ms loss 5% reorder 5%", "-env", asPeer+"=1",
		"--", "sh", "-c", script, program)
	wantStatus(t, r, 5)
	for rank, peer := range []string{"192.0.2.2", "192.0.2.1"} {
		wantIn(t, "stdout", r.stdout, fmt.Sprintf("[%d] pingpong with %s\n", rank, peer))
		wantIn(t, "stderr", r.stderr, fmt.Sprintf("[%d] no newline\n", rank))
	}
	wantIn(t, "stdout", r.stdout, "[1] heard\n")
	dropped := 0
	for line := range strings.Lines(r.stdout) {
		if _, rest, ok := strings.Cut(line, "(dropped "); ok {
			number, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			dropped += n
		}
	}
	if dropped == 0 {
		t.Error("netem dropped no packet")
	}
}

func TestShellTakesStandardInput(t *testing.T) {
	cmd := runner(t, "-shell")
	cmd.Stdin = strings.NewReader("echo $((6 * 7)); tty; exit 4\n")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("%v, want status 4", err)
	}
	for _, want := range []string{"42\r\n", "/dev/hvc0\r\n"} {
		wantIn(t, "output", string(out), want)
	}
	t.Logf("%s", out)
}

// It takes more than a minute, and before that the kernel has to be built.
func TestDebugKernelFindsMistakes(t *testing.T) {
	if os.Getenv("BYWASH_VM_DEBUG") == "" {
		t.Skip("needs BYWASH_VM_DEBUG=1, which builds a debug kernel first: some five minutes")
	}
	const script = `
leak=$(find "$0" -name kmemleak-test.ko)
insmod "$leak" && echo READ_AFTER_FREE >/sys/kernel/debug/provoke-crash/DIRECT && echo "no harm seen"
`
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	r := runVM(t, "-debug", "--", "sh", "-c", script, cache)
	wantStatus(t, r, statusFault)
	wantIn(t, "stdout", r.stdout, "no harm seen")
	wantIn(t, "stderr", r.stderr, "the command's status: 0")
	wantIn(t, "stderr", r.stderr, "BUG: KASAN: use-after-free in lkdtm_READ_AFTER_FREE")
	wantIn(t, "stderr", r.stderr, "new suspected memory leaks")
	r = runVM(t, "-debug", "--", "sh", "-c", "uname -r; ibv_devinfo")
	wantStatus(t, r, 0)
	wantIn(t, "stdout", r.stdout, "-debug\n")
}

func TestSoftwareIWARPIsTheOnlyDevice(t *testing.T) {
	r := runVM(t, "-siw", "--", "ibv_devinfo")
	wantStatus(t, r, 0)
	for _, want := range []string{"siw0", "iWARP (1)", "PORT_ACTIVE"} {
		wantIn(t, "the devices", r.stdout, want)
	}
	if strings.Contains(r.stdout, "rxe0") {
		t.Errorf("Soft-RoCE is there, too:\n%s", r.stdout)
	}
}
