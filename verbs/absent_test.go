//go:build linux && !(386 || arm || mips || mipsle)

package verbs

// The name of this file makes its test the first one, before any that uses
// librdmacm.

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// TestDeviceRemoved takes the device away in the middle of traffic. Soft-RoCE
// waits for its users with that, among them librdmacm, which lets go of devices
// only when the process ends; devices that do not wait break the connections. It
// runs in virtual machines only, where the device is ours.
func TestDeviceRemoved(t *testing.T) {
	inMachine(t)
	if maps, _ := os.ReadFile("/proc/self/maps"); bytes.Contains(maps, []byte("librdmacm")) {
		t.Skip("librdmacm, which another test has used, holds the device until this process ends")
	}
	a, b := pair(t, driver.Small, map[string]string{"managers": "oob"})
	out := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	run := func(args ...string) {
		if output, err := exec.Command("rdma", args...).CombinedOutput(); err != nil {
			t.Errorf("rdma %s: %v: %s", strings.Join(args, " "), err, output)
		}
	}
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		run("link", "del", "rxe0")
	}()
	in := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		err := b.api.RecvPost(&in)
		if err == nil {
			err = a.api.SendPost(&out)
		}
		for sent, done := false, false; err == nil && !(sent && done); {
			if !sent {
				sent, err = a.api.SendPoll(&out)
			}
			if err == nil && !done {
				done, err = b.api.RecvPoll(&in)
			}
		}
		if err != nil {
			if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "rxe0") {
				t.Errorf("got %v, want %v that names the device", err, driver.ErrBroken)
			}
			break
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = a.ctx.Self().Close()
		_ = b.ctx.Self().Close()
	}()
	for what, c := range map[string]chan struct{}{"contexts close": closed, "the device goes": removed} {
		within(t, what, func() bool {
			select {
			case <-c:
				return true
			default:
				return false
			}
		})
	}
	run("link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
	a, b = pair(t, driver.Small, map[string]string{"managers": "oob"})
	in = driver.Packet{IOV: in.IOV}
	if err := b.api.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	out = driver.Packet{IOV: out.IOV}
	if err := a.api.SendPost(&out); err != nil {
		t.Fatal(err)
	}
	finished(t, b.api.RecvPoll, &in)
}
