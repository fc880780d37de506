//go:build linux

package nic

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Absent reports whether an error of Open means that no NIC serves the path, or that the one there is ending.
func Absent(err error) bool {
	for _, absent := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.ENXIO, unix.ENODEV, unix.ESHUTDOWN, ErrGone} {
		if errors.Is(err, absent) {
			return true
		}
	}
	return false
}

// openError adds the remedy to an error of Open.
func openError(path string, err error) error {
	device := strings.HasPrefix(path, "/dev/")
	remedy := ""
	switch {
	case errors.Is(err, unix.ENOENT) && device, errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		remedy = "load the module: modprobe qnix, or insmod kmod/qnix.ko; without it: bywash softnic"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		remedy = "no user-space NIC runs there; start one: bywash softnic"
	case errors.Is(err, unix.EACCES) && device, errors.Is(err, unix.EPERM) && device:
		remedy = "become a member of the device's group: usermod -a -G qnix USER, then log in again (without that group: docs/qnix.md)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		remedy = "it serves another user; start one for this user: bywash softnic, or allow this one: --allow-uids"
	case errors.Is(err, errForeign):
		remedy = "set XDG_RUNTIME_DIR, and start one for this user: bywash softnic"
	case errors.Is(err, unix.EMFILE):
		remedy = "raise the limit of open files: ulimit -n"
	case errors.Is(err, unix.EAGAIN):
		remedy = "the user-space NIC does not answer: is it stopped?"
	case errors.Is(err, unix.EUSERS):
		remedy = "this user has too many connections to the user-space NIC: close some, or raise its limit per user"
	case errors.Is(err, unix.EBUSY) && !device:
		remedy = "descriptors that this user's processes have passed to the NIC block in close: end these processes"
	}
	return withRemedy("open "+path, err, remedy)
}

// hostError adds the remedy to an error of the NIC.
func hostError(op string, err error) error {
	remedy := ""
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		remedy = "a process has that name already; names are unique in the cluster"
	case errors.Is(err, unix.EUSERS):
		remedy = "too many processes of this user; end some, or raise the NIC's limit"
	case errors.Is(err, unix.EDQUOT):
		remedy = "this user holds his share of the NIC's tables; end some of his processes, or raise its limits of names and groups"
	case errors.Is(err, unix.EAGAIN):
		remedy = "the NIC has no free process entry"
	case errors.Is(err, unix.ETIMEDOUT):
		remedy = "not all other NICs, or members of the group, answered in time"
	case errors.Is(err, unix.ENOTCONN):
		remedy = "not registered"
	case errors.Is(err, unix.EISCONN):
		remedy = "one registration a handle: open the NIC again for another"
	case errors.Is(err, unix.ENOMEM):
		remedy = "too much memory is locked: ulimit -l; or the NIC has none"
	case errors.Is(err, unix.ENOSPC):
		remedy = "the process has too many translations, or a table of a NIC is full: fewer long messages and regions at a time, or raise the NIC's limits"
	case errors.Is(err, unix.EACCES):
		remedy = "a registration belongs to the process that made it"
	case errors.Is(err, unix.EPERM):
		remedy = "the NIC may not reach this process's memory (ptrace, another user): use memory of a memfd"
	case errors.Is(err, unix.ENOTTY):
		remedy = "this NIC does not know the request: is it older than this program?"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		remedy = "raise the limit of open files: ulimit -n"
	}
	return withRemedy(op, err, remedy)
}

func withRemedy(op string, err error, remedy string) error {
	if remedy == "" {
		return fmt.Errorf("qnix: %s: %w", op, err)
	}
	return fmt.Errorf("qnix: %s: %w (%s)", op, err, remedy)
}
