//go:build linux

// Package machines runs a test on two virtual machines of hack/vm at once, on a private link.
//
// The test runs on this machine. It starts itself in both machines, where Rank returns the side of a case to play.
//
// The peers of drivertest run in machine 1. In machine 0 drivertest starts a relay instead. The relay asks the agent in
// machine 1 for the process, and carries standard input, output, error and the exit status. It is the test's own
// program, too.
package machines

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Pair is a run of a test in two machines.
type Pair struct {
	VM, Test string        // hack/vm and the test's program
	Args     []string      // more arguments of hack/vm
	Netem    string        // netem's disturbance of packets between them
	Limit    time.Duration // of the whole run
	Run      string        // pattern of the tests to run in both
}

// envWhole set to 1 is the caller's wish for everything, which takes three times as long.
const envWhole = "BYWASH_MACHINES_WHOLE"

// Whole reports whether the caller wants every case and all repetitions.
func Whole() bool { return os.Getenv(envWhole) == "1" }

// OnTrack returns those of the checks that run on track number n, 0 or 1: every other one, or all if [Whole].
func OnTrack(checks []string, n int) (some []string) {
	for k, c := range checks {
		if Whole() || k%2 == n%2 {
			some = append(some, c)
		}
	}
	return some
}

// Play runs the pair and returns the output of the tests in both machines. It skips the test if no machine can run. The
// first call downloads a kernel.
func (p Pair) Play(t *testing.T) string {
	t.Helper()
	// With a processor each: emulated ones wait for each other whenever the kernel changes page tables, which takes three
	// times as long to start a process where more of them are emulated than there are real ones.
	args := append([]string{"-two", "-cpus", "1", "-timeout", p.Limit.String()}, p.Args...)
	if p.Netem != "" {
		args = append(args, "-netem", p.Netem)
	}
	args = append(args, "-env", envWhole+"="+os.Getenv(envWhole))
	inside := p.Limit - 20*time.Second // so that the test inside reports the reason
	args = append(args, "--", p.Test, "-test.run", p.Run, "-test.v", "-test.short", "-test.timeout", inside.String())
	ctx, cancel := context.WithTimeout(t.Context(), p.Limit+30*time.Second)
	defer cancel()
	start := time.Now()
	out, err := command(ctx, p.VM, args...)
	t.Logf("%v\n%s", time.Since(start).Round(time.Second), out)
	const notHad = 125
	if e, ok := err.(*exec.ExitError); ok && e.ExitCode() == notHad {
		t.Skipf("no virtual machine here: %s", out)
	}
	if err != nil {
		t.Errorf("vm %q: %v", args, err)
	}
	return out
}

// Passed checks that a test has passed in both machines.
func Passed(t *testing.T, out, name string) {
	t.Helper()
	for rank := range 2 {
		pass := fmt.Sprintf(`(?m)^\[%d\] +--- PASS: %s `, rank, regexp.QuoteMeta(strings.ReplaceAll(name, " ", "_")))
		if !regexp.MustCompile(pass).MatchString(out) {
			t.Errorf("machine %d does not say that %s passed", rank, name)
		}
	}
}

// command runs a program and returns its output. The program dies with this one.
func command(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread() // the parent-death signal depends on the thread
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	return out.String(), err
}

// Rank returns the number of this machine, 0 or 1.
func Rank() int {
	if os.Getenv("VM_RANK") == "0" {
		return 0
	}
	return 1
}

// Here and There return addresses of this machine and of the other.
func Here(port string) string  { return net.JoinHostPort(os.Getenv("VM_ADDR"), port) }
func There(port string) string { return net.JoinHostPort(os.Getenv("VM_PEER"), port) }
