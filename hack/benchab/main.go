//go:build linux

// Command benchab measures the cost of a driver's own code for hack/bench-ab, which alternates the builds of two
// commits. It uses only package driver, so that one source fits both.
//
// One goroutine, pinned to CPU 0, plays both ends. So it measures the path through the driver, without the time that a
// cache line or a wake-up takes between two CPUs, and a neighbour on the other CPU disturbs little. It prints
// nanoseconds: of a message of 8 bytes from SendPost to the receiver's RecvPoll, of one in a batch of sixteen, and of a
// RecvPoll that finds nothing. Each figure is the fastest twentieth of many short windows, as disturbances only add.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/driver/all"
	"github.com/bywash/bywash/qnix/softnic"
)

func main() {
	softnic.RunIfStarted()
	name := flag.String("d", "shm", "driver")
	devices := flag.String("devices", ",", "the two ends' devices, with a comma between them")
	window := flag.Duration("window", 200*time.Microsecond, "length of one measurement")
	windows := flag.Int("windows", 500, "measurements of each figure")
	flag.Parse()
	if err := run(*name, *devices, *window, *windows); err != nil {
		fmt.Fprintln(os.Stderr, "benchab:", err)
		os.Exit(1)
	}
}

func run(name, devices string, window time.Duration, windows int) error {
	ends := strings.Split(devices, ",")
	h := [2]driver.Hints{}
	switch name {
	case "afxdp":
		for k := range h {
			h[k].Device = ends[k]
			h[k].Options = map[string]string{"carrier": "ether"}
		}
	case "qnix":
		dir, err := os.MkdirTemp("", "benchab-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		socket := filepath.Join(dir, "nic.sock")
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{socket}, Idle: time.Second}); err != nil {
			return err
		}
		h[0].Device, h[1].Device = socket, socket
	}
	p, closeAll, err := connect(name, h)
	if err != nil {
		return err
	}
	defer closeAll()
	runtime.LockOSThread()
	var cpu unix.CPUSet
	cpu.Set(0)
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		return err
	}
	for _, m := range []struct {
		what string
		do   func() error
		per  int
	}{{"latency", p.message, 2}, {"rate", p.batch, batchSize}, {"empty", p.emptyPolls, emptyPolls}} {
		ns, err := measure(m.do, m.per, window, windows)
		if err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
		fmt.Printf("%s %s %.3f\n", name, m.what, ns)
	}
	return nil
}

// measure returns the time of one operation; do performs many operations.
func measure(do func() error, many int, window time.Duration, windows int) (float64, error) {
	var all []float64
	for range windows {
		n := 0
		start := time.Now()
		for time.Since(start) < window {
			for range 16 {
				if err := do(); err != nil {
					return 0, err
				}
				n += many
			}
		}
		all = append(all, float64(time.Since(start).Nanoseconds())/float64(n))
	}
	slices.Sort(all)
	return all[len(all)/20], nil
}

// pair is a connection, of which this process has both ends.
type pair struct {
	a, b    driver.Instance
	out, in [batchSize]driver.Packet
	waiting driver.Packet
}

func connect(name string, h [2]driver.Hints) (*pair, func(), error) {
	d, err := driver.Lookup(name)
	if err != nil {
		return nil, nil, err
	}
	var c [2]driver.Context
	for k := range c {
		nic, err := d.Query(h[k])
		if err != nil {
			return nil, nil, err
		}
		if c[k], err = nic.Open(driver.Attributes{}); err != nil {
			return nil, nil, err
		}
	}
	p := &pair{}
	if p.a, err = c[0].Connect(c[1].URL()); err != nil {
		return nil, nil, err
	}
	if p.b, err = c[1].Connect(c[0].URL()); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, i := range []driver.Instance{p.a, p.b} {
		if err := i.ConnectWait(ctx); err != nil {
			return nil, nil, err
		}
	}
	for k := range p.out {
		p.out[k].IOV = [][]byte{make([]byte, 8)}
		p.in[k].IOV = [][]byte{make([]byte, 8)}
	}
	p.waiting.IOV = [][]byte{make([]byte, 8)}
	return p, func() { _, _ = c[0].Close(), c[1].Close() }, nil
}

// message sends one message in each direction.
func (p *pair) message() error {
	for _, x := range [][2]driver.Instance{{p.a, p.b}, {p.b, p.a}} {
		if err := move(x[0], x[1], p.out[:1], p.in[:1], nil); err != nil {
			return err
		}
	}
	return nil
}

const batchSize = 16

// batch sends without waiting for each message. The sender polls, too: a driver may send a batch no earlier.
func (p *pair) batch() error {
	if err := p.await(); err != nil {
		return err
	}
	return move(p.a, p.b, p.out[:], p.in[:], &p.waiting)
}

// await posts a receive at end a for a message that never comes.
func (p *pair) await() error {
	if p.waiting.Driver.Phase != driver.Idle {
		return nil
	}
	return p.a.RecvPost(&p.waiting)
}

func move(from, to driver.Instance, out, in []driver.Packet, waiting *driver.Packet) error {
	for k := range in {
		if err := to.RecvPost(&in[k]); err != nil {
			return err
		}
	}
	for k := range out {
		if err := from.SendPost(&out[k]); err != nil {
			return err
		}
	}
	for k := range in {
		for done, err := to.RecvPoll(&in[k]); !done || err != nil; done, err = to.RecvPoll(&in[k]) {
			if err != nil {
				return err
			}
			if waiting != nil {
				_, _ = from.RecvPoll(waiting)
			}
		}
	}
	for k := range out {
		for done, err := from.SendPoll(&out[k]); !done || err != nil; done, err = from.SendPoll(&out[k]) {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

const emptyPolls = 64

// emptyPolls polls for a message that does not come.
func (p *pair) emptyPolls() error {
	if err := p.await(); err != nil {
		return err
	}
	for range emptyPolls {
		if done, err := p.a.RecvPoll(&p.waiting); done {
			return fmt.Errorf("a message from nowhere: %w", err)
		}
	}
	return nil
}
