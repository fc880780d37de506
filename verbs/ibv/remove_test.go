package ibv_test

import (
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

// A device that goes away is an event; calls fail, nothing hangs, and everything can be closed.
func TestDeviceRemovedWhileInUse(t *testing.T) {
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

	c := ok[*ibv.Context](t)(ibv.Open("rxegone"))
	o := withDefaults(pairOptions{})
	pd := ok[*ibv.PD](t)(c.AllocPD())
	ch := ok[*ibv.CompChannel](t)(c.CreateCompChannel())
	cq := ok[*ibv.CQ](t)(c.CreateCQ(64, ch, 0))
	mem := make([]byte, 64)
	mr := ok[*ibv.MR](t)(pd.RegMR(mem, allAccess))
	qp := ok[*ibv.QP](t)(pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}))
	e := &end{t: t, c: c, pd: pd, cq: cq, qp: qp, mr: mr, mem: mem, init: ibv.InitAttr{Port: 1, Access: allAccess}}
	connect(t, e, e, o)

	removed := make(chan error, 1)
	go func() { removed <- exec.Command("rdma", "link", "del", "rxegone").Run() }()
	for {
		ev, err := c.GetAsyncEvent(soon(t))
		must(t, err)
		t.Logf("event: %v", ev.Type)
		if ev.Type == ibv.EventDeviceFatal {
			break
		}
	}
	deadline := time.Now().Add(patience)
	for _, f := range []func() error{
		func() error { _, err := c.QueryPort(1); return err },
		func() error { _, err := qp.Query(); return err },
		func() error { _, err := pd.RegMR(mem, 0); return err },
		func() error { _, err := c.CreateCQ(8, nil, 0); return err },
	} {
		err := f()
		t.Logf("after removal: %v", err)
		var e *ibv.Error
		for !errors.As(err, &e) { // until the kernel has taken it away
			if time.Now().After(deadline) {
				t.Fatal("calls on a removed device still succeed")
			}
			time.Sleep(time.Millisecond)
			err = f()
		}
	}
	for _, o := range []interface{ Close() error }{qp, mr, cq, ch, pd, c} {
		must(t, o.Close())
	}
	select {
	case err := <-removed:
		must(t, err)
	case <-time.After(patience):
		t.Error("rdma link del hangs")
	}
}
