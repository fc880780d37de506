//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// canaryByte is the content of memory that must not be written.
const canaryByte = 0xc5

func fillCanary(b []byte) { fillWith(b, canaryByte) }

// fillWith and unlike are quick under the race detector, too.
func fillWith(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// unlike finds the first byte that is not v; -1 if there is none.
func unlike(b []byte, v byte) int {
	if bytes.Count(b, []byte{v}) == len(b) {
		return -1
	}
	for i, x := range b {
		if x != v {
			return i
		}
	}
	return -1
}

// written finds the first byte that is no canary; -1 if there is none.
func written(b []byte) int { return unlike(b, canaryByte) }

// offer is the url and key that a putter connects with.
type offer struct {
	URL string
	Key []byte
}

// putRole puts to each offered region, over a connection of its own, until a put fails.
func putRole(in *json.Decoder) error {
	c, err := new(task).open(in)
	if err != nil {
		return err
	}
	reply(report{URL: c.URL(), PID: os.Getpid()})
	for {
		var o offer
		if err := in.Decode(&o); err != nil {
			return c.Close()
		}
		if err := putUntilRefused(c, o); err != nil {
			return err
		}
	}
}

func putUntilRefused(c driver.Context, o offer) error {
	i, err := c.Connect(o.URL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := i.ConnectWait(ctx); err != nil {
		return err
	}
	one := i.(driver.OneSided)
	remote, err := one.Import(o.Key)
	if err != nil {
		return err
	}
	reply(report{})
	src := make([]byte, remote.Len())
	for err == nil {
		op := driver.Op{Local: src, Remote: remote}
		for err = one.PutPost(&op); err == nil; {
			var done bool
			if done, err = one.OpPoll(&op); done {
				break
			}
		}
	}
	reply(report{Err: err.Error()})
	return i.Disconnect()
}

// putSize is long enough for a stop to fall into the middle of a put.
const putSize = 2 << 20

// stop stops the child and waits until none of its threads runs.
func (c *child) stop() {
	c.t.Helper()
	pid := c.cmd.Process.Pid
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED, nil)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			c.t.Fatalf("wait until the child is stopped: %v", err)
		}
	}
}

func (c *child) resume() {
	c.t.Helper()
	if err := unix.Kill(c.cmd.Process.Pid, unix.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
}

// putter is a child that puts, and where.
type putter struct {
	*child
	url string
}

func startPutter(t *testing.T) putter {
	t.Helper()
	p := startChild(t, "put", nil)
	p.write(task{})
	var at report
	p.read(&at)
	return putter{p, at.URL}
}

// A peer is stopped at random moments of its puts, and this end is closed, broken or left as it is. Once Deregister has
// returned nil, nothing is written; it returns nil when the peer goes on, or dies.
func TestNothingIsWrittenAfterDeregister(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, size := range []struct {
		name string
		n    int // short puts to private memory are stopped before the kernel copies, never while it does
	}{{"arena", putSize}, {"heap", 512}} {
		for _, end := range []string{"up", "disconnect", "broken", "close", "killed"} {
			t.Run(size.name+"/"+end, func(t *testing.T) {
				if size.name == "heap" && !selfAttach() {
					t.Skip("needs process_vm_writev, which this sandbox refuses")
				}
				trials, busy := 10, 0
				if end == "killed" {
					trials = 3
				}
				p := startPutter(t)
				for k := range trials {
					if end == "killed" && k > 0 {
						p = startPutter(t)
					}
					v := newVictim(t, size.n, size.name == "arena")
					if v.stopInside(p, end, rnd) {
						busy++
					}
					if at := written(v.mem); at >= 0 {
						t.Fatalf("trial %d: byte %d was written after Deregister had returned nil", k, at)
					}
					v.free()
				}
				t.Logf("Deregister was busy in %d of %d trials", busy, trials)
			})
		}
	}
}

// victim is a context with memory that a peer puts to.
type victim struct {
	t    *testing.T
	c    driver.Context
	mem  []byte
	ar   *driver.Arena
	r    driver.Region
	inst driver.Instance
}

func newVictim(t *testing.T, n int, arena bool) *victim {
	t.Helper()
	v := &victim{t: t, c: open(t, driver.Small, nil), mem: make([]byte, n)}
	var err error
	if arena {
		if v.ar, err = driver.NewArena(n); err != nil {
			t.Fatal(err)
		}
		v.mem = v.ar.Bytes()
	}
	if v.r, err = v.c.(driver.Registrar).Register(v.mem, driver.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *victim) free() {
	_ = v.c.Close()
	if v.ar == nil {
		return
	}
	if err := v.ar.Close(); err != nil {
		v.t.Errorf("close of the arena: %v", err)
	}
}

// connectTo connects to a putter, which begins to put.
func (v *victim) connectTo(p putter) {
	v.t.Helper()
	inst, err := v.c.Connect(p.url)
	if err != nil {
		v.t.Fatal(err)
	}
	v.inst = inst
	p.write(offer{URL: v.c.URL(), Key: v.r.Key()})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := inst.ConnectWait(ctx); err != nil {
		v.t.Fatal(err)
	}
	p.read(new(report))
}

// deregistered reports whether the memory is free.
func (v *victim) deregistered() bool {
	v.t.Helper()
	err := v.r.Deregister()
	if err != nil && !errors.Is(err, driver.ErrBusy) && !errors.Is(err, driver.ErrClosed) {
		v.t.Fatal(err)
	}
	return !errors.Is(err, driver.ErrBusy)
}

// stopInside stops a peer at a random moment of its puts, ends the connection here, deregisters, fills the
// memory with canaries and lets the peer go on. It returns whether Deregister was busy.
func (v *victim) stopInside(p putter, end string, rnd *rand.Rand) (busy bool) {
	v.t.Helper()
	v.connectTo(p)
	for until := time.Now().Add(time.Duration(rnd.IntN(1_000_000))); time.Now().Before(until); {
	}
	p.stop()
	var err error
	switch end {
	case "disconnect", "killed":
		err = v.inst.Disconnect()
	case "broken":
		connOf(v.inst).breakWith(fmt.Errorf("%w: broken by the test", driver.ErrBroken))
	case "close":
		err = v.c.Close()
	}
	if err != nil {
		v.t.Fatal(err)
	}
	busy = !v.deregistered()
	if n := v.busyCount(); busy != (n > 0) {
		v.t.Errorf("counter of busy deregistrations is %d, busy was %v", n, busy)
	}
	if busy && v.ar != nil {
		if err := v.ar.Close(); !errors.Is(err, driver.ErrBusy) {
			v.t.Errorf("close of the arena that a peer is inside of: got %v, want ErrBusy", err)
		}
	}
	resume := p.resume
	if end == "killed" {
		resume = func() { _ = p.cmd.Process.Kill() }
	}
	if busy {
		resume()
		within(v.t, 10*time.Second, "deregister", v.deregistered)
	}
	fillCanary(v.mem)
	if !busy {
		resume()
	}
	if end == "killed" {
		_ = p.cmd.Wait()
		return busy
	}
	var result report
	p.read(&result)
	if !strings.Contains(result.Err, "put") {
		v.t.Errorf("put ended with %q", result.Err)
	}
	return busy
}

func (v *victim) busyCount() uint64 {
	var sum driver.Counters
	v.c.Counters(&sum)
	return sum.DeregisterBusy
}
