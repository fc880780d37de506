package stat_test

import (
	"os"
	"testing"

	public "github.com/bywash/bywash/driver/stat"
	"github.com/bywash/bywash/internal/stat"
)

// A process is found while a value that Serve has returned is open, and not afterwards.
func TestServeMakesThisProcessVisible(t *testing.T) {
	visible := func() bool {
		t.Helper()
		all, err := stat.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.PID == os.Getpid() {
				return true
			}
		}
		return false
	}
	s, err := public.Serve()
	if err != nil {
		t.Fatal(err)
	}
	if !visible() {
		t.Error("a process that serves is not found")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if visible() {
		t.Error("a process that serves no more is found")
	}
}
