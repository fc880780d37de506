package abi

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// A header names a magic in the macros that compose numbers, or in a definition.
	magicUsed    = regexp.MustCompile(`\b_IO[WR]{0,2}\s*\(\s*(0x[0-9a-fA-F]{2}|'.')\s*,`)
	magicDefined = regexp.MustCompile(`#define\s+\w*(?:MAGIC|IOC_TYPE|IOCTL_BASE|IOC_BASE)\w*\s+(0x[0-9a-fA-F]{2}|'.')\s`)
)

// TestIoctlMagicIsUnused searches for the magic in the headers of this machine's kernel.
func TestIoctlMagicIsUnused(t *testing.T) {
	found := 0
	for _, dir := range []string{"linux", "misc", "rdma", "sound", "drm", "mtd", "video", "xen", "scsi"} {
		err := filepath.WalkDir(filepath.Join("/usr/include", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // not installed
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range append(magicUsed.FindAllSubmatch(text, -1), magicDefined.FindAllSubmatch(text, -1)...) {
				found++
				if magicOf(t, string(m[1])) == iocMagic>>8 {
					t.Errorf("%s has %s: choose a magic that Documentation/userspace-api/ioctl/ioctl-number.rst does not list", path, m[0])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Skipf("needs the kernel's headers (linux-libc-dev): %d ioctls found in /usr/include", found)
	}
}

func magicOf(t *testing.T, s string) int {
	t.Helper()
	if c, ok := strings.CutPrefix(s, "'"); ok {
		return int(c[0])
	}
	n, err := strconv.ParseUint(s, 0, 8)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}
