//go:build linux

package workload

import "testing"

func TestTouchingDoesNotAllocate(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { touchWrite(b, 1); _ = touchRead(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
