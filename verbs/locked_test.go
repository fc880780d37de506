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
}

// The sizes that providers/mlx5 of rdma-core computes for these queues: 448 bytes a request with 220 inline bytes, 256
// for one with 8, in powers of two.
func TestQueuesOfAConnection(t *testing.T) {
	small, large := queuesOf(driver.Small, optionTable.Defaults), queuesOf(driver.Large, optionTable.Defaults)
	if want := 64<<10 + 4<<10 + (128+68)*64; small != want {
		t.Errorf("small track: %d bytes, want %d", small, want)
	}
	if want := 64<<10 + 128<<10 + 2*4<<10 + (128+512+18)*64; large != want {
		t.Errorf("large track: %d bytes, want %d", large, want)
	}
	if got := LockedMemory(); got < 1000<<10 || got > 1300<<10 {
		t.Errorf("a connection locks %d KiB", got>>10)
	}
}
