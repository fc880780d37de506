//go:build linux && !(386 || arm || mips || mipsle)

package ibv_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bywash/bywash/verbs/ibv"
)

// run runs a command and fails the test, with its output, unless it succeeds.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// spareDevice makes a Soft-RoCE device of its own, rxegone on bwgone.
func spareDevice(t *testing.T) *ibv.Context {
	deviceName(t)
	if os.Getenv("VM_ADDR") == "" {
		t.Skip("adds and removes a Soft-RoCE device: only in a virtual machine")
	}
	if out, err := exec.Command("ip", "link", "add", "bwgone", "type", "dummy").CombinedOutput(); err != nil {
		t.Skipf("needs the kernel module dummy: %s", out)
	}
	t.Cleanup(func() { run(t, "ip", "link", "del", "bwgone") })
	run(t, "ip", "addr", "add", "198.51.100.1/24", "dev", "bwgone")
	run(t, "ip", "link", "set", "bwgone", "up")
	run(t, "rdma", "link", "add", "rxegone", "type", "rxe", "netdev", "bwgone")
	return closing[*ibv.Context](t)(ibv.Open("rxegone"))
}

// event waits for one of the types and returns which; ok is false when there was none for a while.
func event(t *testing.T, c *ibv.Context, maxWait time.Duration, types ...ibv.EventType) (got ibv.EventType, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	for {
		ev, err := c.GetAsyncEvent(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, false
		}
		must(t, err)
		t.Logf("event: %v, port %d", ev.Type, ev.Port)
		for _, typ := range types {
			if ev.Type == typ {
				return typ, true
			}
		}
	}
}

// Devices that the kernel can take away from their users report it and fail; of the others, Soft-RoCE among them, the
// removal waits until they are closed. Either way nothing hangs, and everything can be closed.
func TestDeviceRemovedWhileInUse(t *testing.T) {
	c := spareDevice(t)
	o := withDefaults(pairOptions{})
	e := newEnd(t, c, o)
	connect(t, e, e, o)

	removed := make(chan error, 1)
	t.Cleanup(func() { // after everything was closed
		select {
		case err := <-removed:
			must(t, err)
		case <-time.After(maxWait):
			t.Error("rdma link del hangs")
		}
	})
	t.Cleanup(func() {
		for _, o := range []interface{ Close() error }{e.qp, e.mr, e.cq, e.pd, c} {
			must(t, o.Close())
		}
	})
	go func() { removed <- exec.Command("rdma", "link", "del", "rxegone").Run() }()

	if _, fatal := event(t, c, time.Second, ibv.EventDeviceFatal); !fatal {
		e.next(1, 0, 8).Write(e.mr.Addr()+64, e.mr.RKey())
		e.post()
		e.done(1, ibv.WCWrite)
		return
	}
	for name, f := range map[string]func() error{
		"QueryPort": func() error { _, err := c.QueryPort(1); return err },
		"Query":     func() error { _, err := e.qp.Query(); return err },
		"RegMR":     func() error { _, err := e.pd.RegMR(e.mem, 0); return err },
		"CreateCQ":  func() error { _, err := c.CreateCQ(8, nil, 0); return err },
	} {
		var err *ibv.Error
		if got := f(); !errors.As(got, &err) || err.Device != "rxegone" {
			t.Errorf("%s on a removed device: %v", name, got)
		}
	}
}

func TestLinkDownAndUpAreEvents(t *testing.T) {
	c := spareDevice(t)
	if p := ok[ibv.PortAttr](t)(c.QueryPort(1)); p.State != ibv.PortActive {
		t.Fatalf("port is %v", p.State)
	}
	run(t, "ip", "link", "set", "bwgone", "down")
	if _, got := event(t, c, maxWait, ibv.EventPortErr); !got {
		t.Error("no event for a link that went down")
	}
	if p := ok[ibv.PortAttr](t)(c.QueryPort(1)); p.State == ibv.PortActive {
		t.Error("the port is still active")
	}
	run(t, "ip", "link", "set", "bwgone", "up")
	if _, got := event(t, c, maxWait, ibv.EventPortActive); !got {
		t.Error("no event for a link that came up")
	}
}
