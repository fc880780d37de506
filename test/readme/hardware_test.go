//go:build linux

package readme

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestHardwareTargetNamesTheDevice is a dry run of "make test-hw".
func TestHardwareTargetNamesTheDevice(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for _, dry := range []struct {
		args, want []string
	}{
		{[]string{"make", "-n", "test-hw", "DEV=mlx5_0"}, []string{"hack/test hw"}},
		{[]string{"env", "DEV=mlx5_0", "hack/test", "show", "hw"}, []string{"BYWASH_RDMA_DEV=mlx5_0", "./verbs/..."}},
	} {
		cmd := exec.Command(dry.args[0], dry.args[1:]...)
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", dry.args, err, out)
		}
		for _, want := range dry.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%q does not say %s:\n%s", dry.args, want, out)
			}
		}
	}
	bare := exec.Command("make", "-s", "test-hw", "DEV=")
	bare.Dir = "../.."
	out, err := bare.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), "which device") {
		t.Errorf("make test-hw without a device: %v\n%s", err, out)
	}
}
