//go:build linux

package xsk_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// The benchmarks run this package beside a program in C (hack/xskpeer) that
// does the same on the same veth, in turns: two processes, each spinning on a
// core of its own with real-time priority, 64-byte frames. They report both and
// their ratio.

const (
	benchEnv   = "BYWASH_TEST_XSK_BENCH" // role device mode cpu seconds, as the C program's
	benchTurns = 15
	benchTime  = 0.15
	benchFrame = 64
	benchBatch = 64
)

func BenchmarkRoundTripBesideC(b *testing.B) { besideC(b, "ping", "pong", "ns/round-trip") }
func BenchmarkRateBesideC(b *testing.B)      { besideC(b, "recv", "send", "frames/s") }

func besideC(b *testing.B, measure, serve, unit string) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs two cores")
	}
	needLab(b)
	if _, err := exec.LookPath("cc"); err != nil {
		b.Skip("needs a C compiler: ", err)
	}
	c := filepath.Join(b.TempDir(), "xskpeer")
	build := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", c, "../../hack/xskpeer/xskpeer.c")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the program in C: %v\n%s", err, out)
	}
	for _, mode := range modes {
		b.Run(mode.name, func(b *testing.B) {
			p := lab(b, veth.Config{})
			var figures [2][]float64
			for b.Loop() {
				for range benchTurns {
					for i, program := range []string{"/proc/self/exe", c} {
						figures[i] = append(figures[i], turn(b, p, program, measure, serve, mode.name))
					}
				}
			}
			ours, theirs := median(figures[0]), median(figures[1])
			b.ReportMetric(ours, unit)
			b.ReportMetric(theirs, "c-"+unit)
			b.ReportMetric(ours/theirs, "ratio")
			// Where others use the cores too, the best turns say more.
			best := func(v []float64) float64 { return v[bestOf(unit, len(v))] }
			b.ReportMetric(best(figures[0])/best(figures[1]), "best-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bestOf is the index of the best of n figures in rising order.
func bestOf(unit string, n int) int {
	if strings.HasPrefix(unit, "ns") {
		return 0
	}
	return n - 1
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// turn runs a program once at both ends and returns its figure.
func turn(b *testing.B, p *veth.Pair, program, measure, serve, mode string) float64 {
	b.Helper()
	var cmds [2]*exec.Cmd
	var in [2]io.WriteCloser
	var out [2]*bufio.Reader
	for i, role := range []string{measure, serve} {
		args := []string{role, p.Ends[i].Device, mode, strconv.Itoa(i), fmt.Sprint(benchTime)}
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), benchEnv+"="+strings.Join(args, " "))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Ends[i].Start(cmd); err != nil {
			b.Fatal(err)
		}
		defer func() { cmd.Process.Kill(); cmd.Wait() }()
		cmds[i], in[i], out[i] = cmd, stdin, bufio.NewReader(stdout)
	}
	for i := range cmds {
		if line, err := out[i].ReadString('\n'); err != nil || line != "ready\n" {
			b.Fatalf("%s: got %q, %v, want ready", cmds[i].Args, line, err)
		}
	}
	for i := range cmds {
		fmt.Fprintln(in[1-i], "go") // the one that serves first
	}
	line, err := out[0].ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	figure, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
	if err != nil {
		b.Fatal(err)
	}
	return figure
}

// benchChild is one end of a benchmark, as the program in C.
func benchChild(arg string) {
	args := strings.Fields(arg)
	cpu, _ := strconv.Atoi(args[3])
	seconds, _ := strconv.ParseFloat(args[4], 64)
	attach := xsk.AttachGeneric
	if args[2] == "native" {
		attach = xsk.AttachNative
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	err := unix.SchedSetaffinity(0, &set)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}
	var d *xsk.Device
	if err == nil {
		d, err = xsk.Open(xsk.Config{Device: args[1], Match: xsk.Match{EtherType: etherType}, Attach: attach})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	e := benchEnd{s: d.Sockets[0], free: make([]uint64, 0, 4096)}
	for c := range d.UMEM.Chunks() {
		if c < d.UMEM.Chunks()/2 {
			e.s.Fill([]uint64{d.UMEM.Addr(c)})
			continue
		}
		frame := d.UMEM.Frame(d.UMEM.Addr(c))
		copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x00\x88\xb5")
		e.free = append(e.free, d.UMEM.Addr(c))
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadByte(); err != nil {
		os.Exit(1)
	}
	map[string]func(time.Duration){"ping": e.ping, "pong": e.pong, "send": e.send, "recv": e.receive}[args[0]](
		time.Duration(seconds * float64(time.Second)))
}

type benchEnd struct {
	s     *xsk.Socket
	free  []uint64
	descs [benchBatch]xsk.Desc
	addrs [benchBatch]uint64
}

func (e *benchEnd) take() bool {
	if e.s.Receive(e.descs[:1]) == 0 {
		return false
	}
	e.addrs[0] = e.descs[0].Addr
	e.s.Fill(e.addrs[:1])
	return true
}

func (e *benchEnd) put() {
	e.descs[0] = xsk.Desc{Addr: e.free[0], Len: benchFrame}
	e.s.Transmit(e.descs[:1])
	e.kick()
	for e.s.Complete(e.addrs[:1]) == 0 {
	}
}

func (e *benchEnd) kick() {
	if err := e.s.Kick(); err != nil && err != xsk.ErrAgain {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (e *benchEnd) ping(d time.Duration) {
	start, rounds := time.Now(), 0
	for ; rounds%256 != 0 || time.Since(start) < d; rounds++ {
		e.put()
		for !e.take() {
		}
	}
	fmt.Printf("%.1f\n", float64(time.Since(start))/float64(rounds))
}

func (e *benchEnd) pong(d time.Duration) {
	end := time.Now().Add(d + 500*time.Millisecond)
	for spins := 1; spins%4096 != 0 || time.Now().Before(end); spins++ {
		if e.take() {
			e.put()
		}
	}
}

func (e *benchEnd) send(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		n := min(len(e.free), benchBatch, e.s.TxFree())
		for i, addr := range e.free[len(e.free)-n:] {
			e.descs[i] = xsk.Desc{Addr: addr, Len: benchFrame}
		}
		e.free = e.free[:len(e.free)-n]
		e.s.Transmit(e.descs[:n])
		e.kick()
		e.free = append(e.free, e.addrs[:e.s.Complete(e.addrs[:])]...)
	}
}

func (e *benchEnd) receive(d time.Duration) {
	var start, now time.Time
	count := 0
	for start.IsZero() || now.Sub(start) < d {
		n := e.s.Receive(e.descs[:])
		if n == 0 {
			now = time.Now()
			continue
		}
		if start.IsZero() {
			start = time.Now()
		}
		for i, desc := range e.descs[:n] {
			e.addrs[i] = desc.Addr
		}
		e.s.Fill(e.addrs[:n])
		count += n
		now = time.Now()
	}
	fmt.Printf("%.0f\n", float64(count)/now.Sub(start).Seconds())
}
