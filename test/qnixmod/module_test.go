//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bywash/bywash/internal/lab/qnixko"
)

// moduleFile names the module for the kernel that runs here: hack/kmod builds it, and a machine of hack/vm runs us.
const moduleFile = "BYWASH_QNIX_KO"

// roles are what a test's other processes do: this program, with the role's name in the environment.
var roles = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv("BYWASH_QNIX_ROLE"); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is another process of a test.
func child(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "BYWASH_QNIX_ROLE="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

func insmod(params string) error { return qnixko.Load(os.Getenv(moduleFile), params) }

func needModule(t testing.TB) {
	t.Helper()
	if os.Getenv(moduleFile) == "" {
		t.Skipf("no kernel module (%s is not set): run by \"make test-vm\" in a virtual machine", moduleFile)
	}
	if os.Geteuid() != 0 {
		t.Skip("loading a module needs root")
	}
}

// load loads the module for one test and unloads it afterwards, which proves that nothing of it is in use any more.
func load(t testing.TB, params string) {
	t.Helper()
	needModule(t)
	if err := insmod(params); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unload(t) })
}

func unload(t testing.TB) {
	t.Helper()
	if err := qnixko.Unload(); err != nil {
		t.Fatalf("%v: %s", err, processes())
	}
}

// processes tells who is registered.
func processes() string {
	var all strings.Builder
	for nic := range 64 {
		text, err := readFile(fmt.Sprintf("/sys/kernel/debug/qnix/qnix%d/processes", nic))
		if err != nil {
			break
		}
		all.WriteString(text)
	}
	return all.String()
}

func mustRegister(t testing.TB, nic int, r registerArg) *process {
	t.Helper()
	p, err := register(nic, r)
	if err != nil {
		t.Fatalf("%s: %v", r.Name[:], err)
	}
	t.Cleanup(p.close)
	return p
}
