//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// A child is this test binary, with the device and queue to open in the
// environment. It reports the result in one line, and exits when its input ends.
const childEnv = "BYWASH_TEST_XSK_CHILD"

func TestMain(m *testing.M) {
	if device, ok := os.LookupEnv(childEnv); ok {
		child(device)
		return
	}
	os.Exit(m.Run())
}

func child(arg string) {
	device, queue, _ := strings.Cut(arg, ":")
	q, err := strconv.Atoi(queue)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	d, err := xsk.Open(xsk.Config{Device: device, Queues: []int{q}, Match: xsk.Match{EtherType: etherType}})
	switch {
	case err == nil:
		for i := range d.UMEM.Chunks() / 2 {
			d.Sockets[0].Fill([]uint64{d.UMEM.Addr(i)})
		}
		fmt.Println("open", d.Mode())
	case errors.Is(err, os.ErrPermission):
		fmt.Println("permission", err)
	default:
		fmt.Println("failed", err)
	}
	signal.Ignore(syscall.SIGPIPE)
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0) // like a crash: nothing is closed
}

// A process is a child and its first line.
type process struct {
	*exec.Cmd
	output string
}

func start(t *testing.T, e *veth.End, queue int, attr *syscall.SysProcAttr) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d", childEnv, e.Device, queue))
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd}
	t.Cleanup(func() {
		in.Close()
		p.kill()
	})
	if p.output, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal("child: ", err)
	}
	return p
}

func (p *process) kill() {
	p.Process.Kill()
	p.Wait()
}

// attached is the ID of the program on a device; 0: none.
func attached(t testing.TB, e *veth.End) (id uint32) {
	t.Helper()
	err := e.Do(func() (err error) {
		l, err := netlink.LinkByName(e.Device)
		if err == nil && l.Attrs().Xdp != nil {
			id = l.Attrs().Xdp.ProgId
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestKilledProcessLeavesNoProgram(t *testing.T) {
	p := lab(t, veth.Config{})
	c := start(t, &p.Ends[0], 0, nil)
	if !strings.HasPrefix(c.output, "open native-copy") {
		t.Fatalf("child: %s", c.output)
	}
	if attached(t, &p.Ends[0]) == 0 {
		t.Fatal("the child has no program attached")
	}
	c.kill()
	until(t, "the program is gone", func() bool { return attached(t, &p.Ends[0]) == 0 })
	open(t, &p.Ends[0], xsk.Config{}) // the queue too
}

func TestQueueOfAnotherProcessIsBusy(t *testing.T) {
	p := lab(t, veth.Config{})
	c := start(t, &p.Ends[0], 0, nil)
	if !strings.HasPrefix(c.output, "open") {
		t.Fatalf("child: %s", c.output)
	}
	d, err := tryOpen(&p.Ends[0], xsk.Config{Socket: xsk.SocketConfig{BindTimeout: 1}})
	if err == nil {
		d.Close()
	}
	if !errors.Is(err, xsk.ErrQueueBusy) {
		t.Errorf("got %v, want ErrQueueBusy", err)
	}
	if attached(t, &p.Ends[0]) == 0 {
		t.Error("the other process lost its program")
	}
}

func TestProcessesShareADeviceOnDisjointQueues(t *testing.T) {
	p := lab(t, veth.Config{Queues: 2})
	c := start(t, &p.Ends[1], 0, nil)
	if !strings.HasPrefix(c.output, "open") {
		t.Fatalf("child: %s", c.output)
	}
	id := attached(t, &p.Ends[1])
	a := open(t, &p.Ends[0], xsk.Config{})
	b := open(t, &p.Ends[1], xsk.Config{Queues: []int{1}, Memory: xsk.UMEMConfig{Chunks: 512}})
	if got := b.Mode(); got != "native-copy" {
		t.Errorf("got mode %s, want native-copy", got)
	}
	free := halves(t, a)
	halves(t, b)
	head := header(&p.Ends[0], &p.Ends[1])
	transmit(t, a.Sockets[0], head, free[:4], 0, 64) // the other process's
	transmit(t, a.Sockets[1], head, free[4:8], 7, 64)
	for i, d := range receive(t, b.Sockets[0], 4) {
		checkFrame(t, b.UMEM.Data(d), head, 7+i, 64)
	}
	// The process that attached the program dies.
	c.kill()
	if got := attached(t, &p.Ends[1]); got != id {
		t.Errorf("got program %d, want %d to stay", got, id)
	}
	transmit(t, a.Sockets[1], head, free[8:12], 9, 64)
	for i, d := range receive(t, b.Sockets[0], 4) {
		checkFrame(t, b.UMEM.Data(d), head, 9+i, 64)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the program is gone", func() bool { return attached(t, &p.Ends[1]) == 0 })
}

func TestOtherMatchIsAnotherProgram(t *testing.T) {
	p := lab(t, veth.Config{Queues: 2})
	open(t, &p.Ends[0], xsk.Config{Queues: []int{0}})
	for _, cfg := range []xsk.Config{
		{Match: xsk.Match{UDPPort: 4791}},
		{Attach: xsk.AttachGeneric},
		{Socket: xsk.SocketConfig{MultiBuffer: true}},
	} {
		cfg.Queues = []int{1}
		d, err := tryOpen(&p.Ends[0], cfg)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, xsk.ErrProgramAttached) {
			t.Errorf("%+v: got %v, want ErrProgramAttached", cfg, err)
		}
	}
}

func TestWithoutPrivilegeTheErrorNamesWhatIsMissing(t *testing.T) {
	p := lab(t, veth.Config{})
	c := start(t, &p.Ends[0], 0, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if !strings.HasPrefix(c.output, "permission") || !strings.Contains(c.output, "CAP_") {
		t.Errorf("got %q, want an os.ErrPermission that names a capability", c.output)
	}
}

// passing is a program of another process.
func passing(t *testing.T, e *veth.End, flags link.XDPAttachFlags) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody", Type: ebpf.XDP, License: "BSD",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	var l link.Link
	err = e.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: e.Index, Flags: flags})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return prog
}

func TestForeignProgramIsLeftAlone(t *testing.T) {
	for _, theirs := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		p := lab(t, veth.Config{})
		passing(t, &p.Ends[0], theirs)
		id := attached(t, &p.Ends[0])
		for _, ours := range []xsk.Attachment{xsk.AttachAuto, xsk.AttachNative, xsk.AttachGeneric} {
			d, err := tryOpen(&p.Ends[0], xsk.Config{Attach: ours})
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, xsk.ErrProgramAttached) || !strings.Contains(err.Error(), "somebody") {
				t.Errorf("theirs %d, ours %s: got %v, want ErrProgramAttached that names it", theirs, ours, err)
			}
			if got := attached(t, &p.Ends[0]); got != id {
				t.Fatalf("theirs %d, ours %s: got program %d, want theirs, %d", theirs, ours, got, id)
			}
		}
	}
}
