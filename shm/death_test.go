//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// offerRole registers private memory, and waits to be killed, or to execute another program.
func offerRole(in *json.Decoder) error {
	c, err := new(task).open(in)
	if err != nil {
		return err
	}
	r, err := c.(driver.Registrar).Register(make([]byte, 4096), driver.RemoteWrite)
	if err != nil {
		return err
	}
	reply(offer{URL: c.URL(), Key: r.Key()})
	var url string
	if err := in.Decode(&url); err != nil {
		return err
	}
	if _, err := c.Connect(url); err != nil {
		return err
	}
	var execute bool
	if in.Decode(&execute) == nil && execute {
		os.Setenv(envRole, "leave")
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	return nil
}

// aProcess starts a process, which the caller kills, and returns it also as that of a peer.
func aProcess(t *testing.T) (*exec.Cmd, *process) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envRole+"=leave")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	switch {
	case err == unix.ENOSYS:
		t.Skip("needs pidfd_open (Linux 5.3)")
	case err != nil:
		t.Fatal(err)
	}
	p := &process{pid: c.Process.Pid, pidfd: fd}
	t.Cleanup(p.close)
	return c, p
}

// A process that cannot be attached to because it has died is a peer that is gone, not a capability that is missing.
func TestDeathIsNoMissingCapability(t *testing.T) {
	t.Run("attach", func(t *testing.T) {
		if !selfAttach() {
			t.Skip("needs process_vm_readv, which this sandbox refuses")
		}
		c, p := aProcess(t)
		nonce := new([nonceBytes]byte)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "the process ends", p.dead)
		if ok, err := p.attach(addressOf(nonce[:]), nonce); ok || !errors.Is(err, driver.ErrBroken) {
			t.Errorf("attach to a process that is not waited for: got %v, %v, want ErrBroken", ok, err)
		}
		_ = c.Wait()
		if ok, err := p.attach(addressOf(nonce[:]), nonce); ok || !errors.Is(err, driver.ErrBroken) {
			t.Errorf("attach to a process that is gone: got %v, %v, want ErrBroken", ok, err)
		}
	})
	t.Run("put", func(t *testing.T) {
		c, n, remote := offered(t)
		n.attaches = false
		if err := put(n, remote); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("put to a process that cannot be attached to: got %v, want ErrUnsupported", err)
		}
		n.ctx.Mu.Lock() // while it is held, the monitor cannot handle the end of the socket
		defer n.ctx.Mu.Unlock()
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "the peer ends", n.peerGone)
		if err := put(n, remote); !errors.Is(err, driver.ErrBroken) {
			t.Errorf("put to a process that has ended: got %v, want ErrBroken", err)
		}
	})
}

// offered connects to a process that offers a region.
func offered(t *testing.T) (*child, *conn, driver.RemoteRegion) {
	t.Helper()
	c := startChild(t, "offer", nil)
	c.write(task{})
	var o offer
	c.read(&o)
	ctx := open(t, driver.Small, nil)
	inst, err := ctx.Connect(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.write(ctx.URL())
	if err := inst.ConnectWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := connOf(inst)
	remote, err := n.Import(o.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c, n, remote
}

// put writes to the region as the owner does.
func put(n *conn, to driver.RemoteRegion) error {
	op := driver.Op{Local: make([]byte, 8), Remote: to}
	return n.access(&op, op.Local, nil, false, 0)
}

// A copy to or from another process's memory allocates nothing.
func TestCrossCopyDoesNotAllocate(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_writev, which this sandbox refuses")
	}
	_, n, remote := offered(t)
	for _, kind := range []kit.OpKind{kit.OpPut, kit.OpGet} {
		op := driver.Op{Local: make([]byte, 8), Remote: remote}
		op.Driver.Ticket = uint64(kind)
		var err error
		if a := testing.AllocsPerRun(100, func() { err = errors.Join(err, n.access(&op, op.Local, nil, false, 0)) }); a != 0 || err != nil {
			t.Errorf("a %v: %v allocations, %v; want none", kind, a, err)
		}
	}
}

// A process that executes another program keeps its pid, but no longer has the memory that its peers know.
func TestProcessThatExecutesAnotherProgramIsGone(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_writev, which this sandbox refuses")
	}
	c, n, remote := offered(t)
	if err := put(n, remote); err != nil {
		t.Fatal(err)
	}
	n.ctx.Mu.Lock() // while it is held, the monitor cannot handle the end of the socket
	defer n.ctx.Mu.Unlock()
	c.write(true)
	within(t, 10*time.Second, "the other program", n.presence.gone)
	if n.proc.dead() {
		t.Fatal("the process has ended")
	}
	n.presence.seen = time.Since(started) + time.Hour
	if n.presence.replaced() {
		t.Error("the kernel is asked about a peer that was there a moment ago")
	}
	n.presence.seen = time.Since(started) - sure
	if err := put(n, remote); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
}
