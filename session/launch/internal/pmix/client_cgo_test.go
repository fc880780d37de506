//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package pmix

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestLossAfterInitIsNoticed(t *testing.T) {
	if os.Getenv("BYWASH_TEST_INIT") == "" {
		dir := t.TempDir()
		args := []string{"-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-o", filepath.Join(dir, "libpmix.so.2"), "testdata/fake.c"}
		if out, err := exec.Command(compiler(t), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLossAfterInitIsNoticed$")
		cmd.Env = append(os.Environ(), "BYWASH_TEST_INIT=1", "LD_LIBRARY_PATH="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if _, _, _, err := Init(); err != nil {
		t.Fatal(err)
	}
	if err := Fence(); err != nil { // the server is lost in it
		t.Fatal(err)
	}
	var e *Error
	if err := WaitLost(); !errors.As(err, &e) || !e.Lost() {
		t.Errorf("after the loss of the server: %v", err)
	}
}
