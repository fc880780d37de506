//go:build linux

package descriptors

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Free is what the kernel allows: fewer by those that are opened, and none at the limit.
func TestFreeIsWhatTheKernelAllows(t *testing.T) {
	before, limit := counted()
	const n = 10
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	if got, _ := counted(); got != before-n {
		t.Errorf("%d files can be opened after %d were, %d before", got, n, before)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if uint64(limit) > old.Cur {
		t.Errorf("the limit is %d, and the kernel's %d", limit, old.Cur)
	}
	next, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(next.Fd())
	next.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lowest, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	if got, limit := counted(); got != 0 || uint64(limit) != lowest {
		t.Errorf("%d files can be opened of %d, where the kernel allows none of %d", got, limit, lowest)
	}
}

// counted is Free without an earlier count.
func counted() (free, limit int) {
	last.until = last.until.AddDate(-1, 0, 0)
	return Free()
}

// The remedy for a lack of descriptors is named once, and none for another error.
func TestRemedy(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("open: %w", syscall.EMFILE), " (raise the limit of open files: ulimit -n)"},
		{fmt.Errorf("open: %w", syscall.ENFILE), " (raise the system's limit of open files: fs.file-max)"},
		{fmt.Errorf("open: %w (raise it: ulimit -n)", syscall.EMFILE), ""},
		{errors.New("ulimit"), ""},
		{nil, ""},
	} {
		if got := Remedy(tt.err); got != tt.want {
			t.Errorf("Remedy(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}
