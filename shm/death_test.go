//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// offerRole registers private memory, and waits to be killed.
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
	var end any
	_ = in.Decode(&end)
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
	t.Run("pid", func(t *testing.T) {
		c, p := aProcess(t)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		now := time.Since(started)
		p.alive.Store(int64(now + time.Hour))
		if p.replaced() {
			t.Error("the kernel is asked about a process that it found alive a moment ago")
		}
		p.alive.Store(int64(now - sure))
		if !p.replaced() {
			t.Error("the pid of a process that has ended is taken for its own")
		}
	})
	t.Run("put", func(t *testing.T) {
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
		n.attaches = false
		put := func(want error) {
			t.Helper()
			op := driver.Op{Local: make([]byte, 8), Remote: remote}
			if err := n.access(&op, op.Local, nil, false, 0); !errors.Is(err, want) {
				t.Errorf("put to a process that cannot be attached to: got %v, want %v", err, want)
			}
		}
		put(driver.ErrUnsupported)
		n.ctx.Mu.Lock() // while it is held, the monitor cannot handle the end of the socket
		defer n.ctx.Mu.Unlock()
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "the peer ends", n.peerGone)
		put(driver.ErrBroken)
	})
}
