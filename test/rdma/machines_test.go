//go:build linux && !(386 || arm || mips || mipsle)

// Package rdma tests the verbs driver between two virtual machines on a private
// link: the contract, loss and reordering, the tool, and a machine that dies.
//
// The test runs on this machine. It builds hack/vm and itself, and starts itself
// in both machines, where TestTwoMachines plays one side of one case.
package rdma

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/machines"
	_ "github.com/bywash/bywash/verbs"
)

// envDir is set for the test in a virtual machine: a directory of this machine with what the cases need. envChecks is the
// caller's: names of checks of drivertest, with commas between them, to run instead of the distant ones; with "all" that
// takes long.
const (
	envDir    = "BYWASH_RDMA_DIR"
	envChecks = "BYWASH_RDMA_CHECKS"
)

// A pair is a case for two machines. Rank 0 is the machine that tests. One pair of machines plays all cases, one after
// the other: to boot them takes as long as a case.
type pair struct {
	name  string
	netem string // netem's disturbance of packets between them; empty: none
	sides [2]func(t *testing.T)
}

var pairs = []pair{
	{
		name:  "the contract holds between two machines",
		sides: [2]func(*testing.T){checkContract, machines.Serve},
	},
	{
		name: "2 % loss with reordering loses nothing", netem: "delay 1ms loss 2% reorder 5%",
		sides: [2]func(*testing.T){crossLossyLink, crossLossyLink},
	},
	{
		name:  "bywash perf measures between two machines",
		sides: [2]func(*testing.T){measure, listen},
	},
	{
		name: "a dead machine is noticed", netem: "limit 1000",
		sides: [2]func(*testing.T){noticeDeath, goDark},
	},
}

func TestMain(m *testing.M) {
	machines.RunIfRelay()
	drivertest.Main(m)
}

func TestTwoMachines(t *testing.T) {
	if os.Getenv(envDir) != "" {
		for _, p := range pairs {
			t.Run(p.name, p.play)
		}
		return
	}
	vm, self := build(t)
	dir := t.TempDir()
	buildTool(t, dir)
	out := machines.Pair{
		VM: vm, Test: self, Netem: "limit 1000", Limit: 20 * time.Minute, Run: "^TestTwoMachines$",
		Args: []string{"-kernel", "6.1", "-env", envDir + "=" + dir, "-out", t.TempDir()},
	}.Play(t)
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) { machines.Passed(t, out, "TestTwoMachines/"+p.name) })
	}
}

// play is a side of the case.
func (p *pair) play(t *testing.T) {
	link := []string{"tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo"}
	if p.netem != "" {
		link = append(link[:len(link)-1], append([]string{"netem"}, strings.Fields(p.netem)...)...)
	}
	run(t, link...)
	p.sides[machines.Rank()](t)
}

// build builds the runner and this test, or skips where there can be no machine.
func build(t *testing.T) (vm, self string) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("boots virtual machines: not with -short")
	case runtime.GOARCH != "amd64" || runtime.GOOS != "linux":
		t.Skip("needs Linux on amd64: the guest runs its programs")
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skipf("the verbs driver cannot be built: %v (make deps)", err)
	}
	dir := t.TempDir()
	vm, self = filepath.Join(dir, "vm"), filepath.Join(dir, "rdma.test")
	goBuild(t, "build", "-o", vm, "../../hack/vm")
	goBuild(t, "test", "-c", "-o", self, ".")
	return vm, self
}

func goBuild(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %q: %v\n%s", args, err, out)
	}
}
