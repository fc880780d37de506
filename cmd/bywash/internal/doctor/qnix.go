//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/softnic"
)

func qnixDevices() Finding {
	l, err := readLocking()
	return findQNIX(os.DirFS("/"), func(path string) error { return unix.Access(path, unix.R_OK|unix.W_OK) }, l, err == nil)
}

// findQNIX reports whether the kernel module's NICs can be used. Without them there is the one in user space.
func findQNIX(root fs.FS, access func(string) error, l locking, known bool) Finding {
	f := Finding{Name: "QNIX devices", Level: OK}
	found, _ := fs.Glob(root, "dev/qnix[0-9]*")
	if len(found) == 0 {
		f.Level, f.Found = Absent, "none: the kernel module qnix is not loaded"
		if softnic.Supported() == nil {
			f.Found += " (a NIC in user space is used)"
		}
		f.Remedy = "to use the module, as root: make -C kmod && insmod kmod/qnix.ko"
		if loadable(root, "qnix") {
			f.Remedy = "to use the module, as root: modprobe qnix"
		}
		return f
	}
	f.Found = names(found)
	var refused []string
	for _, p := range found {
		if access("/"+p) != nil {
			refused = append(refused, "/"+p)
		}
	}
	switch {
	case len(refused) > 0:
		f.Level, f.Found = Blocked, strings.Join(refused, ", ")+": this user may not open it"
		f.Remedy = "as root: usermod -a -G qnix USER, then log in again (without that group: docs/qnix.md, \"The group without the package\"); " +
			"or set BYWASH_QNIX to the socket of bywash softnic"
	case known && !l.free && l.limit < roomy:
		f.Level, f.Found = Slow, fmt.Sprintf("%s; %s bytes of memory may be locked for messages", f.Found, limit(l.limit))
		f.Remedy = "raise the limit by the size of the messages' memory: " + raiseIt
	}
	return f
}
