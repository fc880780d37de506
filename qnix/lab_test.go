//go:build linux && !(386 || arm || mips || mipsle)

package qnix_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bywash/bywash/driver/drivertest"
	"github.com/bywash/bywash/internal/lab/qnixko"
	"github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// The NICs that the tests run on are those that nic.EnvPath and envOther name; or two of the module that envModule
// names, which is loaded for the tests, as in the virtual machines of "make test"; or two of a softnic of their own.
const (
	envOther  = "BYWASH_QNIX_OTHER"
	envModule = "BYWASH_QNIX_KO"
)

var lab struct {
	nic, other string
	why        error // there is none
}

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	lab.nic, lab.other = os.Getenv(nic.EnvPath), os.Getenv(envOther)
	switch module := os.Getenv(envModule); {
	case lab.nic != "": // peers come by here, too
		drivertest.Main(m)
	case module != "":
		os.Exit(onModule(m, module))
	default:
		onSoftnic(m)
	}
}

// useNICs sets the NICs for the driver and for processes that are started.
func useNICs(one, other string) {
	lab.nic, lab.other = one, other
	os.Setenv(nic.EnvPath, one)
	os.Setenv(envOther, other)
}

func onSoftnic(m *testing.M) {
	dir, err := os.MkdirTemp("", "qnix-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	useNICs(filepath.Join(dir, "nic.sock"), filepath.Join(dir, "other.sock"))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	lab.why = softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{lab.nic, lab.other}, Idle: time.Minute})
	cancel()
	if lab.why != nil {
		os.Setenv(qnix.EnvWhy, lab.why.Error())
	}
	drivertest.Main(m)
}

// onModule runs the tests with the module loaded. That it can be unloaded afterwards proves that nothing of it is in
// use any more.
func onModule(m *testing.M, file string) int {
	if err := qnixko.Load(file, "nics=2"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	useNICs("/dev/qnix0", "/dev/qnix1")
	status := m.Run()
	if err := qnixko.Unload(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}
