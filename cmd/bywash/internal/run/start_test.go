//go:build linux

package run

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/bywash/bywash/internal/descriptors"
)

// The error of a start that this machine refuses keeps its cause, on which the remedy depends.
func TestStartErrorKeepsItsCause(t *testing.T) {
	err := startError("prog", &os.PathError{Op: "fork/exec", Path: "/bin/prog", Err: syscall.EMFILE})
	if !errors.Is(err, syscall.EMFILE) || descriptors.Remedy(err) == "" {
		t.Errorf("startError = %v, without its cause", err)
	}
}
