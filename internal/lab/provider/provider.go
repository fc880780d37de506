//go:build linux && !(386 || arm || mips || mipsle)

// Package provider runs tests on an RDMA device that behaves like other adapters: a library between the driver and
// libibverbs refuses what the adapters of a profile refuse.
package provider

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/verbs/ibv"
)

// Profiles are those of testdata/provider.c that have reliable connections. With -short, tests use the first.
var Profiles = []string{"least", "mlx5", "binds", "mlx4", "irdma", "bnxt_re", "hns", "erdma", "mana", "pvrdma"}

//go:embed testdata/provider.c
var source []byte

// Profile returns the profile that this process was started with, or "".
func Profile() string { return os.Getenv("BYWASH_PROVIDER") }

// Build returns the library that BYWASH_PROVIDER_LIB names (hack/test builds it: in an emulated machine the compiler takes six
// seconds, and more on a busy host), or builds it, once in a process. It skips without a device to stand behind the library.
func Build(t *testing.T) (lib string) {
	t.Helper()
	if err := ibv.Available(); err != nil {
		t.Skip(err)
	}
	d, err := driver.Lookup("verbs")
	if err != nil {
		t.Fatal(err)
	}
	var gone *driver.UnavailableError
	if _, err := d.Query(driver.Hints{Device: os.Getenv("BYWASH_RDMA_DEV")}); errors.As(err, &gone) {
		t.Skip(gone)
	}
	if lib := os.Getenv("BYWASH_PROVIDER_LIB"); lib != "" {
		return lib
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	if lib, err = built(); err != nil {
		t.Fatal(err)
	}
	return lib
}

// built builds the library as a file without a name, which ends with this process.
var built = sync.OnceValues(func() (lib string, err error) {
	fd, err := unix.MemfdCreate("provider", unix.MFD_CLOEXEC)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "provider")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	c, so := filepath.Join(dir, "provider.c"), filepath.Join(dir, "provider.so")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return "", err
	}
	build := exec.Command("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", so, c,
		"-Wl,--no-as-needed", "-libverbs")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build, err, out)
	}
	text, err := os.ReadFile(so)
	if err == nil {
		_, err = unix.Write(fd, text)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), err
})

// Run runs tests of this program again, on a device that behaves like the profile.
func Run(t *testing.T, lib, profile, tests string) {
	t.Helper()
	args := []string{"-test.run=" + tests, "-test.count=1", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "BYWASH_LIBIBVERBS="+lib, "BYWASH_PROVIDER="+profile)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as %s: %v\n%s", profile, err, out)
	}
	if !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("as %s: no test has run:\n%s", profile, out)
	}
}
