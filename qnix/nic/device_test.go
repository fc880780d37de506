//go:build linux

package nic

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The module knows the tail that one sleeper has seen. A sleeper that has seen another one looks again, because the
// module would not wake it for the doorbells between.
func TestSleepersOfOtherTailsLookAgain(t *testing.T) {
	d := &device{fd: -1}
	var asleep [3]*sleeper
	for k, seen := range []uint32{5, 6, 6} {
		s, err := d.enter(seen)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(s.fd)
		asleep[k] = s
	}
	for k, want := range []bool{true, false, false} {
		fds := []unix.PollFd{{Fd: int32(asleep[k].fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil || n > 0 != want {
			t.Errorf("sleeper %d: woken %v, error %v, want woken %v", k, n > 0, err, want)
		}
	}
}
