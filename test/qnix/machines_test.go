//go:build linux && !(386 || arm || mips || mipsle)

// Package qnix tests the qnix driver between two virtual machines: with the kernel module in one and a NIC in user space in
// the other, and with the module in both, over the same UDP wire.
//
// The test runs on this machine. It builds hack/vm, the module and itself, and starts itself in both machines, where
// TestTwoMachines plays one side of one case.
package qnix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/machines"
	"github.com/bywash/bywash/internal/lab/qnixko"
	_ "github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// envModule names the module for the kernel of a virtual machine to a test that runs there.
const envModule = "BYWASH_QNIX_KO"

const socket = "/run/qnix/nic.sock" // of the NIC in user space

// limit is the time for any step: the processors are emulated and shared.
const limit = 60 * time.Second

var key = softnic.Key{0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}

// A pair is a case: the NIC of machine 1; machine 0 has the module. One pair of machines plays all cases, one after the other.
type pair struct {
	name string
	nic  func(t *testing.T) // loads or starts it
	path string
}

// pairs returns the cases. In package qnixmod, too, a module meets another one, so that only the first case runs unless
// all are wanted.
func pairs() []pair {
	all := []pair{
		{name: "module and softnic", nic: startSoftnic, path: socket},
		{name: "module and module", nic: func(t *testing.T) { loadModule(t, 5) }, path: "/dev/qnix0"},
	}
	if machines.Whole() {
		return all
	}
	return all[:1]
}

// checks are those of drivertest that the way between the ends can change and that move few bytes: connections, order, credits,
// what goes on under way, and death. Each runs on one of the tracks.
var checks = []string{
	"ConnectInAnyOrder", "ConnectRestartedPeer", "ConnectSecret", "Order", "Truncation", "CancelRace", "NoLostWakeup",
	"RdvDataDamaged", "DisconnectDelivers", "Death", "Stopped",
}

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	machines.RunIfRelay()
	drivertest.Main(m)
}

func TestTwoMachines(t *testing.T) {
	if os.Getenv("VM_RANK") != "" {
		for _, p := range pairs() {
			t.Run(p.name, []func(*testing.T){p.check, p.serve}[machines.Rank()])
		}
		return
	}
	vm, self, module := build(t, "6.1")
	out := machines.Pair{
		VM: vm, Test: self, Limit: 8 * time.Minute, Run: "^TestTwoMachines$",
		Args: []string{"-kernel", "6.1", "-env", envModule + "=" + module},
	}.Play(t)
	for _, p := range pairs() {
		t.Run(p.name, func(t *testing.T) { machines.Passed(t, out, "TestTwoMachines/"+p.name) })
	}
}

// check is machine 0: both NICs meet, then drivertest, whose peers run in machine 1.
func (p pair) check(t *testing.T) {
	loadModule(t, 1)
	os.Setenv(nic.EnvPath, "/dev/qnix0")
	meet(t, "/dev/qnix0")
	machines.Hold(t)
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			drivertest.Run(t, drivertest.Config{
				Driver: "qnix", Hints: driver.Hints{Track: track}, TimeScale: 4, Deaths: 4,
				Only:   machines.OnTrack(checks, int(track)),
				Launch: func(_ context.Context, cmd *exec.Cmd) { machines.Launch(cmd, nic.EnvPath+"="+p.path) },
				Signal: machines.Signal,
			})
		})
	}
}

// serve is machine 1.
func (p pair) serve(t *testing.T) {
	p.nic(t)
	os.Setenv(nic.EnvPath, p.path)
	meet(t, p.path)
	machines.Serve(t)
}

// meet returns when one process of each machine has joined a group and reached its barrier.
func meet(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	n, err := nic.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	awaitCluster(ctx, t, path)
	p, err := n.Register(ctx, nic.Config{Name: fmt.Sprintf("machine%d", machines.Rank()), Group: "both", GroupSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	both, err := nic.MakeName("both")
	if err == nil {
		err = errors.Join(p.Barrier(0, both, 2), p.Kick())
	}
	for err == nil {
		seen := p.RingTail()
		state, _ := p.SendDoorbell(0)
		if state == nic.Done {
			return
		}
		if state != nic.Pending {
			t.Fatalf("barrier of both machines: %v", state)
		}
		if err = p.Wait(seen, time.Second); err == nil {
			err = ctx.Err()
		}
	}
	t.Fatalf("barrier of both machines: %v", err)
}

// awaitCluster waits until both NICs know each other: a group whose members meet later is not missed, but a name is.
func awaitCluster(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	for {
		n, err := nic.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		known := n.Info().NICs
		_ = n.Close()
		if known == 2 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the cluster has %d NICs, want 2", known)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// loadModule loads the module for a test and unloads it afterwards, which proves that nothing of it is in use any more.
func loadModule(t *testing.T, coordinates int) {
	t.Helper()
	params := fmt.Sprintf("coordinates=%d key=%x peers=%s", coordinates, key[:], os.Getenv("VM_PEER"))
	if err := qnixko.Load(os.Getenv(envModule), params); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := qnixko.Unload(); err != nil {
			t.Error(err)
		}
	})
}

func startSoftnic(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := softnic.EnsureConfig(ctx, softnic.Config{
		Sockets: []string{socket}, First: 5, Listen: machines.Here("24911"), Peers: []string{os.Getenv("VM_PEER")}, Key: &key,
		Idle: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// build builds the runner, the module and this test, or skips where there can be no machine.
func build(t *testing.T, kernel string) (vm, self, module string) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("boots virtual machines: not with -short")
	case runtime.GOARCH != "amd64" || runtime.GOOS != "linux":
		t.Skip("needs Linux on amd64: the guest runs its programs")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(top, "hack/kmod"), kernel)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if bytes.Contains(stderr.Bytes(), []byte("no Debian archive")) || bytes.Contains(stderr.Bytes(), []byte("apt-get install")) {
			t.Skipf("no headers here: %s", stderr.String())
		}
		t.Fatalf("hack/kmod %s: %v\n%s", kernel, err, stderr.String())
	}
	vm = filepath.Join(top, "bin/vm") // hack/kmod has built it
	return vm, self, strings.TrimSpace(string(out))
}
