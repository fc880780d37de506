package pmix

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// headers finds the folder of pmix.h.
func headers(t *testing.T) string {
	t.Helper()
	places, _ := filepath.Glob("/usr/lib/*/pmix*/include")
	for _, dir := range append(places, "/usr/include", "/usr/local/include") {
		if _, err := os.Stat(filepath.Join(dir, "pmix.h")); err == nil {
			return dir
		}
	}
	t.Skip("needs pmix.h (Debian: libpmix-dev)")
	return ""
}

func compiler(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler (Debian: gcc)")
	}
	return cc
}

func TestDeclarationsAreThoseOfTheHeaders(t *testing.T) {
	cc, dir := compiler(t), headers(t)
	out, err := exec.Command(cc, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-isystem", dir, "testdata/check.c").CombinedOutput()
	if err != nil {
		t.Errorf("abi.h and pmix.h differ: %v\n%s", err, out)
	}
}

func TestWithoutAServerInitFails(t *testing.T) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "PMIX_") {
			t.Skip("needs an environment without a PMIx server")
		}
	}
	// In a process of its own: the library keeps what it finds.
	if os.Getenv("BYWASH_TEST_INIT") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestWithoutAServerInitFails$")
		cmd.Env = append(os.Environ(), "BYWASH_TEST_INIT=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	rank, size, _, err := Init()
	if err == nil {
		t.Fatalf("rank %d of %d, want an error", rank, size)
	}
	t.Log(err)
}
