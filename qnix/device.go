//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// startTime is how long a softnic may take to start.
const startTime = 10 * time.Second

// Devices implements driver.Driver. It starts nothing.
func (qnixDriver) Devices() (list []driver.Device) {
	paths, _ := filepath.Glob("/dev/qnix*")
	if len(paths) == 0 {
		paths = []string{"/dev/qnix0"}
	}
	soft, _ := filepath.Glob(filepath.Join(filepath.Dir(nic.SocketPath(0)), "qnix*.sock"))
	if len(soft) == 0 {
		soft = []string{nic.SocketPath(0)}
	}
	paths = append(paths, soft...)
	if p := os.Getenv(nic.EnvPath); p != "" && !slices.Contains(paths, p) {
		paths = append([]string{p}, paths...)
	}
	for _, path := range paths {
		list = append(list, describe(path))
	}
	return list
}

// describe describes a NIC for people.
func describe(path string) driver.Device {
	d := driver.Device{Name: path, Description: "QNIX network interface of the kernel module"}
	soft := !strings.HasPrefix(path, "/dev/")
	if soft {
		d.Description = "QNIX network interface in user space"
	}
	n, err := nic.Open(path)
	switch {
	case err == nil:
		d.Details = details(n.Info())
		_ = n.Close()
	case soft && nic.Absent(err):
		d.Details = []driver.Detail{{Name: "state", Value: "not running; started when it is opened, or by bywash softnic"}}
	default:
		d.Err = openError(path, err)
	}
	return d
}

func openError(path string, err error) error {
	u := &driver.UnavailableError{Driver: Name, Device: path, Reason: "it cannot be opened", Err: err} // has the remedy
	if nic.Absent(err) {
		u.Reason, u.Err = "no softnic answers there", nil
		u.Remedy = "start one: bywash softnic"
		if strings.HasPrefix(path, "/dev/") {
			u.Reason = "the kernel module qnix is not loaded"
			u.Remedy = "modprobe qnix, or make -C kmod && insmod kmod/qnix.ko; bywash softnic gives one in user space"
			u.Absent = true
		}
	}
	return u
}

func details(i nic.Info) (list []driver.Detail) {
	add := func(name, format string, args ...any) {
		list = append(list, driver.Detail{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	add("coordinates", "%d, of %d in the cluster", i.NIC, i.NICs)
	add("packet", "%d bytes", i.PacketSize)
	add("local memory", "%d bytes", i.LocalMemory)
	add("processes", "%d, %d of one user", i.MaxProcesses, i.MaxPerUser)
	add("contexts", "%d of each kind, with %d bytes at most", i.MaxContexts, i.MaxRegion)
	add("translations", "%d of one process", i.MaxTranslations)
	add("longest message", "%d bytes", i.MaxMessage)
	return list
}

// openNIC opens a NIC. It first starts this user's softnic if the path is that of the softnic and none runs.
func openNIC(path string, o options) (*nic.NIC, error) {
	n, err := nic.Open(path)
	if err == nil {
		return n, nil
	}
	if !o.start || path != nic.SocketPath(0) || !nic.Absent(err) {
		return nil, openError(path, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err = softnic.Ensure(ctx, path); err == nil {
		if n, err = nic.Open(path); err == nil {
			return n, nil
		}
	}
	_, dev := os.Stat("/dev/qnix0")
	reason := "a NIC in user space cannot be started"
	if dev != nil {
		reason = "the kernel module qnix is not loaded, and " + reason
	}
	none := dev != nil && softnic.Supported() != nil // in a build without cgo
	return nil, &driver.UnavailableError{Driver: Name, Device: path, Reason: reason, Absent: none, Err: err}
}
