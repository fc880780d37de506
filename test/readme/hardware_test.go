package main

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
	dry := exec.Command("make", "-n", "test-hw", "DEV=mlx5_0")
	dry.Dir = "../.."
	out, err := dry.CombinedOutput()
	if err != nil {
		t.Fatalf("make -n test-hw DEV=mlx5_0: %v\n%s", err, out)
	}
	for _, want := range []string{"BYWASH_RDMA_DEV='mlx5_0'", "./verbs", "./verbs/ibv", "./verbs/internal/connect"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("make -n test-hw DEV=mlx5_0 does not say %s:\n%s", want, out)
		}
	}
	bare := exec.Command("make", "-s", "test-hw", "DEV=")
	bare.Dir = "../.."
	out, err = bare.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), "which device") {
		t.Errorf("make test-hw without a device: %v\n%s", err, out)
	}
}
