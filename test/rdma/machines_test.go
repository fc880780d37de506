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
	"testing"
	"time"

	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/machines"
	_ "github.com/bywash/bywash/verbs"
)

// envCase names the case to a test in a virtual machine, and envDir a directory
// of this machine with what the case needs. envChecks is the caller's: a regular
// expression of the checks of drivertest to run instead of the distant ones,
// which may take long: BYWASH_RDMA_CHECKS=. runs all.
const (
	envCase   = "BYWASH_RDMA_CASE"
	envDir    = "BYWASH_RDMA_DIR"
	envChecks = "BYWASH_RDMA_CHECKS"
)

// A pair is a case: what each of two machines does. Rank 0 is the one that tests.
type pair struct {
	name  string
	netem string        // what happens to the packets between them
	limit time.Duration // of the whole run; several times what it takes
	run   func() string // pattern of the subtests inside the sides' own; nil: all
	host  func(t *testing.T, dir string)
	sides [2]func(t *testing.T)
}

var pairs = []pair{
	{
		name: "the contract holds between two machines", limit: 20 * time.Minute, run: checks,
		sides: [2]func(*testing.T){checkContract, machines.Serve},
	},
	{
		name: "2 % loss with reordering loses nothing", netem: "delay 1ms loss 2% reorder 5%", limit: 4 * time.Minute,
		sides: [2]func(*testing.T){crossLossyLink, crossLossyLink},
	},
	{
		name: "bywash perf measures between two machines", limit: 4 * time.Minute, host: buildTool,
		sides: [2]func(*testing.T){measure, listen},
	},
	{
		name: "a dead machine is noticed", netem: "limit 1000", limit: 4 * time.Minute,
		sides: [2]func(*testing.T){noticeDeath, goDark},
	},
}

func TestMain(m *testing.M) {
	machines.RunIfRelay()
	drivertest.Main(m)
}

func TestTwoMachines(t *testing.T) {
	if name := os.Getenv(envCase); name != "" {
		for _, p := range pairs {
			if p.name == name {
				t.Run(name, p.sides[machines.Rank()])
			}
		}
		return
	}
	vm, self := build(t)
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) { p.play(t, vm, self) })
	}
}

// play runs the case in two machines and checks that both sides have played it.
func (p *pair) play(t *testing.T, vm, self string) {
	dir := t.TempDir()
	if p.host != nil {
		p.host(t, dir)
	}
	tests := "^TestTwoMachines$"
	if p.run != nil {
		tests += "/././" + p.run()
	}
	machines.Pair{
		VM: vm, Test: self, Netem: p.netem, Limit: p.limit, Run: tests, Pass: "TestTwoMachines/" + p.name,
		Args: []string{"-kernel", "6.1", "-env", envCase + "=" + p.name, "-env", envDir + "=" + dir, "-out", t.TempDir()},
	}.Play(t)
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
	machines.Need(t, vm, "6.1")
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
