package qnixmod

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	unix := newUnixPing(b)
	for nic, where := range []string{"one NIC", "two NICs"} {
		b.Run(where, func(b *testing.B) {
			ping := newPing(b, nic)
			before := threadRuns(b)
			beside(b, "unix", ping.halves, unix.halves)
			// Of the NICs, which processes that ring run themselves.
			b.ReportMetric(float64(threadRuns(b)-before)/rounds, "thread-runs/round")
		})
	}
}

// threadRuns is how often both NICs' threads have run.
func threadRuns(b *testing.B) (sum int) {
	b.Helper()
	for _, line := range strings.Split(runs(b), "\n") {
		if n, ok := strings.CutPrefix(line, "thread "); ok {
			n, _ := strconv.Atoi(n)
			sum += n
		}
	}
	return sum
}

// Two processes, with many idle ones registered and without.
func BenchmarkIdleProcesses(b *testing.B) {
	load(b, "nics=1")
	const idle = 1000
	ping := newPing(b, 0)
	var few, many []float64
	for range rounds {
		few = append(few, ping.halves(b))
		all := make([]*process, idle)
		for i := range all {
			p, err := register(0, small(fmt.Sprintf("idle%d", i)))
			if err != nil {
				b.Fatal(err)
			}
			all[i] = p
		}
		many = append(many, ping.halves(b))
		for _, p := range all {
			p.close()
		}
	}
	report(b, "two", many, few)
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

// ping is this end of a ping-pong with role "echo".
type ping struct {
	p    *process
	echo *exec.Cmd
	i    int
}

func newPing(b *testing.B, nic int) *ping {
	p := mustRegister(b, 0, small("ping"))
	cmd := startReady(b, "echo", nil, strconv.Itoa(nic))
	b.Cleanup(func() { end(cmd) })
	if err := expect(p, toEcho, 0); err != nil {
		b.Fatal(err)
	}
	if err := p.transfer(cmdSendShort, 0, toEcho); err != nil {
		b.Fatal(err)
	}
	return &ping{p: p, echo: cmd}
}

// halves returns half a round trip in ns.
func (x *ping) halves(b *testing.B) float64 {
	const n = 3000
	start := time.Now()
	for range n {
		if err := x.p.spin(false, 0); err != nil {
			b.Fatal(err)
		}
		if err := x.p.pingPong(toEcho, x.i); err != nil {
			b.Fatal(err)
		}
		x.i++
	}
	return float64(time.Since(start).Nanoseconds()) / (2 * n)
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

type unixPing int

func newUnixPing(b *testing.B) unixPing {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	peer := os.NewFile(uintptr(fds[1]), "peer")
	cmd := startReady(b, "unix echo", peer)
	peer.Close()
	b.Cleanup(func() { end(cmd); unix.Close(fds[0]) })
	return unixPing(fds[0])
}

func (fd unixPing) halves(b *testing.B) float64 {
	const n = 3000
	buffer := make([]byte, 8)
	start := time.Now()
	for range n {
		if _, err := unix.Write(int(fd), buffer); err != nil {
			b.Fatal(err)
		}
		if _, err := unix.Read(int(fd), buffer); err != nil {
			b.Fatal(err)
		}
	}
	return float64(time.Since(start).Nanoseconds()) / (2 * n)
}
