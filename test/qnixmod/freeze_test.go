//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	roles["pair"] = func([]string) error { return rolePair() }
}

// rolePair registers with a group of two, and a second thread deregisters, which waits for that. A third one joins another
// group of two. It says so when all three sleep.
func rolePair() error {
	joiner, err := register(0, small("joiner"))
	if err != nil {
		return err
	}
	fd, err := openDevice(0)
	if err != nil {
		return err
	}
	arg := small("pair0")
	arg.Group, arg.GroupSize, arg.TimeoutMs = name("pair"), 2, 60000
	registered, registers := waiter(func() error { return ioctl(fd, iocRegister, unsafe.Pointer(&arg)) })
	if err := registers(); err != nil {
		return err
	}
	deregistered, deregisters := waiter(func() error { return ioctl(fd, iocDeregister, nil) })
	joined, joins := waiter(func() error {
		return ioctl(joiner.fd, iocJoin, unsafe.Pointer(&groupArg{Name: name("joined"), Size: 2, TimeoutMs: 60000}))
	})
	if err := errors.Join(deregisters(), joins()); err != nil {
		return err
	}
	fmt.Println("all wait")
	return errors.Join(<-registered, <-deregistered, <-joined)
}

// A process is frozen, as for suspend, while its threads wait in the module for the others of a group, and for each other;
// afterwards they wait on.
func TestProcessIsFrozenWhileItWaitsForAGroup(t *testing.T) {
	load(t, "nics=1")
	top := t.TempDir()
	if err := unix.Mount("none", top, "cgroup", 0, "freezer"); err != nil {
		t.Skipf("needs a kernel with CONFIG_CGROUP_FREEZER: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(top, unix.MNT_DETACH) })
	cgroup := filepath.Join(top, "qnixmod")
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(cgroup); err != nil {
			t.Error(err)
		}
	})
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(cgroup, file), []byte(value), 0); err != nil {
			t.Error(err)
		}
	}
	cmd, _ := started(t, "pair")
	set("cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	t.Cleanup(func() { set("freezer.state", "THAWED") }) // what is frozen does not die
	set("freezer.state", "FROZEN")
	for deadline, state := time.Now().Add(20*time.Second), ""; state != "FROZEN"; time.Sleep(time.Millisecond) {
		text, err := readFile(filepath.Join(cgroup, "freezer.state"))
		if err != nil {
			t.Fatal(err)
		}
		if state = strings.TrimSpace(text); time.Now().After(deadline) && state != "FROZEN" {
			t.Fatalf("the process is %s for 20 s, want FROZEN", state)
		}
	}
	set("freezer.state", "THAWED")
	arg := small("pair1")
	arg.Group, arg.GroupSize, arg.TimeoutMs = name("pair"), 2, 60000
	p := mustRegister(t, 0, arg)
	if err := ioctl(p.fd, iocJoin, unsafe.Pointer(&groupArg{Name: name("joined"), Size: 2, TimeoutMs: 60000})); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the frozen process: %v", err)
	}
}
