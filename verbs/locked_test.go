//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/bywash/bywash/driver"
)

// pinned is what the kernel counts for this process, in bytes.
func pinned(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := bytes.Cut(b, []byte("VmPin:"))
	if _, err := fmt.Sscan(string(line), &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

func TestLockedMemoryIsWhatTheKernelCounts(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		// The other manager has buffers of its own, in place of a socket.
		opts := map[string]string{"managers": "oob"}
		before := pinned(t)
		a, _ := pair(t, track, opts)
		got, want := pinned(t)-before, 2*lockedBy(track, optionTable.Defaults)
		if got < want || a.ctx.dev.Query().SoftRoCE() && got != want {
			t.Errorf("two ends of the %s track lock %d bytes, want %d", track, got, want)
		}
	}
	if low, high := lockedBy(driver.Small, optionTable.Defaults), 2*lockedBy(driver.Small, optionTable.Defaults); LockedMemory() <= low || LockedMemory() > high {
		t.Errorf("LockedMemory is %d, want more than the small track's %d, less than %d", LockedMemory(), low, high)
	}
}
