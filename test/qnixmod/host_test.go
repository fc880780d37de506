//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build makes the module for a kernel of hack/vm; -short leaves that out, as it fetches the kernel's headers.
func build(t *testing.T, kernel string) (top, module string) {
	t.Helper()
	if os.Getenv(moduleFile) != "" {
		t.Skip("in a virtual machine: this test starts some")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(top, "hack/kmod"), kernel)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if bytes.Contains(stderr.Bytes(), []byte("no Debian archive")) || bytes.Contains(stderr.Bytes(), []byte("apt-get install")) {
			t.Skipf("no headers here: %s", stderr.String())
		}
		t.Fatalf("hack/kmod %s: %v\n%s", kernel, err, stderr.String())
	}
	return top, strings.TrimSpace(string(out))
}

func TestTwoMachinesOnALossyLink(t *testing.T) {
	for _, kernel := range []string{"6.1", "6.12"} {
		t.Run(kernel, func(t *testing.T) {
			top, module := build(t, kernel)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(filepath.Join(top, "bin/vm"), "-two", "-cpus", "1", "-kernel", kernel, "-timeout", "6m",
				"-netem", "delay 1ms loss 3% reorder 10%", "-env", moduleFile+"="+module, "--",
				self, "-test.run", "^TestBetweenMachines$", "-test.v", "-test.timeout", "5m")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			for rank := range 2 {
				if want := fmt.Sprintf("[%d] --- PASS: TestBetweenMachines", rank); !bytes.Contains(out, []byte(want)) {
					t.Errorf("machine %d does not say that it passed:\n%s", rank, out)
				}
			}
		})
	}
}

// The module refuses to be built for kernels of 32 bits, or without MMU notifiers.
func TestModuleBuildsOnlyForItsKernels(t *testing.T) {
	if os.Getenv(moduleFile) != "" {
		t.Skip("in a virtual machine: this test needs a compiler")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("needs gcc: %v", err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"32 bits", []string{"gcc", "-E", "-nostdinc", "../../kmod/host.h"}, "needs a kernel of 64 bits"},
		{"DKMS", []string{"sh", "-c", ". ../../kmod/dkms.conf; echo $BUILD_EXCLUSIVE_CONFIG"}, "CONFIG_64BIT"},
		{"DKMS", []string{"sh", "-c", ". ../../kmod/dkms.conf; echo $BUILD_EXCLUSIVE_CONFIG"}, "CONFIG_MMU_NOTIFIER"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, _ := exec.Command(c.args[0], c.args[1:]...).CombinedOutput() // gcc's status is that of the #error
			if !bytes.Contains(out, []byte(c.want)) {
				t.Errorf("%v: got %q, want %q in it", c.args, out, c.want)
			}
		})
	}
}
