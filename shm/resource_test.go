//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An error for lack of something names what to raise or to free.
func TestResourceErrorsNameTheRemedy(t *testing.T) {
	for _, tt := range []struct {
		op     string
		err    error
		remedy string
	}{
		{opDirectory, unix.ENOSPC, "directory with room"}, {opListen, unix.ENOSPC, "directory with room"},
		{"memfd_create", unix.ENOSPC, "free memory"}, {"map shared memory", unix.ENOMEM, "free memory"},
		{opDirectory, unix.EACCES, "that can be written"}, {opListen, unix.EMFILE, "ulimit -n"}, {opListen, unix.ENFILE, "fs.file-max"},
	} {
		if err := resourceError(tt.op, tt.err); !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.remedy) {
			t.Errorf("%s: %v, want %q", tt.op, err, tt.remedy)
		}
	}
}
