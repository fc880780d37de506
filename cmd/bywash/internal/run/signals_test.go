//go:build linux

package run

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestImpatient(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		since  time.Duration
		want   bool
	}{
		{syscall.SIGTERM, 0, false}, // of timeout(1), which sends it twice
		{syscall.SIGINT, sameCause - 1, false},
		{syscall.SIGINT, sameCause, true},
		{syscall.SIGTERM, time.Minute, true},
		{syscall.SIGQUIT, time.Minute, true},
		{syscall.SIGHUP, 0, false}, // of a terminal that closes: by the shell and the kernel
		{syscall.SIGHUP, time.Minute, false},
	} {
		if got := Impatient(c.signal, c.since); got != c.want {
			t.Errorf("%v after %v: %v, want %v", c.signal, c.since, got, c.want)
		}
	}
}
