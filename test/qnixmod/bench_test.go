package qnixmod

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["echo"] = func(args []string) error { return roleEcho(args[0]) }
	roles["unix echo"] = func([]string) error { return roleUnixEcho() }
}

var (
	toEcho = sendContext{Process: name("echo"), Flags: flagDoorbell, Len: 8}
	toPing = sendContext{Process: name("ping"), Flags: flagDoorbell, Len: 8}
)

// roleEcho sends back what it receives, until its parent kills it.
func roleEcho(nic string) error {
	n, err := strconv.Atoi(nic)
	if err != nil {
		return err
	}
	p, err := register(n, small("echo"))
	if err != nil {
		return err
	}
	if err := expect(p, toPing, 0); err != nil {
		return err
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		if err := p.pingPong(toPing, i); err != nil {
			return err
		}
	}
}

// expect posts the receive of message i: it is there before the message that is answered by it.
func expect(p *process, peer sendContext, i int) error {
	peer.Flags |= flagInline
	return p.transfer(cmdReceive, i&1, peer)
}

// pingPong receives message i and answers it, spinning on doorbells.
func (p *process) pingPong(peer sendContext, i int) error {
	if err := p.spin(true, i&1); err != nil {
		return err
	}
	if err := expect(p, peer, i+1); err != nil {
		return err
	}
	return p.transfer(cmdSendShort, 0, peer)
}

func (p *process) spin(receive bool, i int) error {
	for atomic.LoadUint64(p.doorbell(receive, i)) == 0 {
	}
	if state, _ := p.rung(receive, i); state != stateDone {
		return fmt.Errorf("doorbell tells state %d", state)
	}
	return nil
}

func BenchmarkHalfRoundTrip8B(b *testing.B) {
	load(b, "nics=2")
	b.Run("unix socket", benchUnix)
	for nic, where := range []string{"one NIC", "two NICs"} {
		b.Run(where, func(b *testing.B) { benchPing(b, nic) })
	}
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("one NIC and %d idle processes", n), func(b *testing.B) {
			for i := range n {
				p, err := register(0, small(fmt.Sprintf("idle%d", i)))
				if err != nil {
					b.Fatal(err)
				}
				defer p.close()
			}
			benchPing(b, 0)
		})
	}
}

func startReady(b *testing.B, role string, file *os.File, args ...string) *exec.Cmd {
	b.Helper()
	cmd := child(b, role, args...)
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("%s: %v", role, err)
	}
	return cmd
}

func benchPing(b *testing.B, nic int) {
	p, err := register(0, small("ping"))
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	cmd := startReady(b, "echo", nil, strconv.Itoa(nic))
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if err := expect(p, toEcho, 0); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	if err := p.transfer(cmdSendShort, 0, toEcho); err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		if err := p.spin(false, 0); err != nil {
			b.Fatal(err)
		}
		if err := p.pingPong(toEcho, i); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half")
}

func roleUnixEcho() error {
	fmt.Println("ready")
	buffer := make([]byte, 8)
	for {
		if n, err := unix.Read(3, buffer); err != nil || n == 0 {
			return err
		}
		if _, err := unix.Write(3, buffer); err != nil {
			return err
		}
	}
}

func benchUnix(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fds[0])
	peer := os.NewFile(uintptr(fds[1]), "peer")
	cmd := startReady(b, "unix echo", peer)
	peer.Close()
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	buffer := make([]byte, 8)
	b.ResetTimer()
	for range b.N {
		if _, err := unix.Write(fds[0], buffer); err != nil {
			b.Fatal(err)
		}
		if _, err := unix.Read(fds[0], buffer); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half")
}

func BenchmarkRegister(b *testing.B) {
	load(b, "nics=1")
	for range b.N {
		p, err := register(0, small("p"))
		if err != nil {
			b.Fatal(err)
		}
		p.close()
	}
}

func BenchmarkTranslate(b *testing.B) {
	load(b, "nics=1")
	p, err := register(0, small("p"))
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	for size := 4096; size <= 64<<20; size *= 8 {
		memory, err := anonymous(size)
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; i < size; i += 4096 {
			memory[i] = 1
		}
		b.Run(fmt.Sprintf("%dKiB", size/1024), func(b *testing.B) {
			for range b.N {
				h, err := p.translate(memory, accessRead|accessWrite)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.untranslate(h); err != nil {
					b.Fatal(err)
				}
			}
		})
		unix.Munmap(memory)
	}
}

// What one NIC does beside process_vm_readv of the same bytes between the same memories.
func BenchmarkLongMessage(b *testing.B) {
	load(b, "nics=2")
	for nic, where := range []string{"one NIC", "two NICs"} {
		from, err := register(0, small("from"))
		if err != nil {
			b.Fatal(err)
		}
		to, err := register(nic, small("to"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(where, func(b *testing.B) { benchLong(b, from, to, 1<<20) })
		from.close()
		to.close()
	}
	b.Run("process_vm_readv", func(b *testing.B) {
		source, target := mustMap(b, 1<<20), mustMap(b, 1<<20)
		b.SetBytes(1 << 20)
		remote := []unix.RemoteIovec{{Base: addressOf(source), Len: len(source)}}
		for range b.N {
			if _, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &target[0], Len: uint64(len(target))}}, remote, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchLong(b *testing.B, from, to *process, size int) {
	source, target := mustMap(b, size), mustMap(b, size)
	out, err := from.translate(source, accessRead)
	if err != nil {
		b.Fatal(err)
	}
	in, err := to.translate(target, accessWrite)
	if err != nil {
		b.Fatal(err)
	}
	from.describe(false, 0, descriptor{Handle: out, Len: uint32(size)})
	to.describe(true, 0, descriptor{Handle: in, Len: uint32(size)})
	b.SetBytes(int64(size))
	b.ResetTimer()
	for range b.N {
		message := sendContext{Process: from.reg.Name, Flags: flagDoorbell, Len: uint32(size), Descriptors: 1}
		if err := to.transfer(cmdReceive, 0, message); err != nil {
			b.Fatal(err)
		}
		message.Process = to.reg.Name
		if err := from.transfer(cmdSend, 0, message); err != nil {
			b.Fatal(err)
		}
		for _, end := range []struct {
			p       *process
			receive bool
		}{{from, false}, {to, true}} {
			if state, _, err := end.p.await(end.receive, 0); err != nil || state != stateDone {
				b.Fatalf("state %d, %v", state, err)
			}
		}
	}
}
