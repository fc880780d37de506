//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rankInside is what run starts. Rank 1 makes itself a container without privileges, with the mounts of the first
// argument; the program stays open, as a mount may hide its file.
const rankInside = `exec 3</tmp/job; [ "$BYWASH_RANK" = 0 ] && exec /proc/self/fd/3
exec unshare -Urm sh -c "$1 && exec /proc/self/fd/3"`

// notHere runs a job apart from the interfaces and the /tmp of the machine. The arguments are what is to be /tmp, and
// the mounts of rank 1.
const notHere = `ip link set lo up && mount --bind "$1" /tmp &&
exec /tmp/bin/bywash run -n 2 --explain sh -c "$3" sh "$2"`

// One rank of a job runs in a mount namespace of its own, on the same kernel. If its /tmp is another one, the ranks open
// the drivers that shared memory would spare, take the next one, and say why. If not, they keep shared memory.
func TestARankInAContainerIsReached(t *testing.T) {
	for _, tool := range []string{"unshare", "mount", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian: util-linux, mount, iproute2)", tool)
		}
	}
	if out, err := exec.Command("unshare", "-mn", "unshare", "-Urm", "true").CombinedOutput(); err != nil {
		t.Skipf("needs root, and user namespaces: %v: %s", err, out)
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "job"), "../../examples/job").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The tool is not beside the program, which would start a softnic.
	self, err := os.Executable()
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "bin"), 0o700)
	}
	if err == nil {
		err = os.Symlink("/proc/self/fd/3", filepath.Join(dir, "bin", "bywash"))
	}
	if err != nil {
		t.Fatal(err)
	}
	bywash, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer bywash.Close()
	for _, tt := range []struct{ name, mounts, by, why string }{
		{"another /tmp", "mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm", "tcp:",
			"shm:host left out: peer is not reachable by this driver: the peer, in another container, has its socket in a /tmp/bywash-0 that is not the one here"},
		{"the same /tmp", "mount -t tmpfs tmpfs /dev/shm", "shm:", "shm:host taken: highest exclusivity that reaches the peer (48)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, "unshare", "-mn", "sh", "-c", notHere, "sh", dir, tt.mounts, rankInside)
			c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "BYWASH_TEST_MAIN=1"}
			c.ExtraFiles = []*os.File{bywash}
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for r := range 2 {
				for _, want := range []string{
					fmt.Sprintf("rank %d: hello from rank %d of 2, by %s", r, 1-r, tt.by),
					fmt.Sprintf("bywash: rank %d to rank %d: %s", r, 1-r, tt.why),
				} {
					if !strings.Contains(string(out), want) {
						t.Errorf("%q was not said:\n%s", want, out)
					}
				}
				spared := strings.Contains(string(out), fmt.Sprintf("rank %d: tcp left out: not needed: all ranks reach each other by shm", r))
				if spared != (tt.by == "shm:") {
					t.Errorf("rank %d has left tcp closed: %v\n%s", r, spared, out)
				}
			}
		})
	}
}
