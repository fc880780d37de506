//go:build linux

// Package qnixko loads the qnix module for a test, and unloads it. It needs root, and should run in a virtual machine
// only.
package qnixko

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxWait is for the files of processes that were killed: the kernel closes them after the processes are reaped.
const maxWait = time.Minute

// Load inserts the module in file, with parameters as for insmod. The error is the kernel's: EINVAL for a parameter,
// EEXIST when it is loaded.
func Load(file, params string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil {
		return fmt.Errorf("insmod %s %s: %w", file, params, err)
	}
	return nil
}

// TryUnload removes the module, unless something of it is in use: then the error is EAGAIN.
func TryUnload() error {
	if err := unix.DeleteModule("qnix", unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("rmmod qnix: %w", err)
	}
	return nil
}

// Unload removes the module, which proves that nothing of it is in use any more. It waits for up to a minute.
func Unload() error {
	for end := time.Now().Add(maxWait); ; time.Sleep(10 * time.Millisecond) {
		err := TryUnload()
		if err == nil || !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			return err
		}
	}
}
