package userdir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestPath(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	temporary := fmt.Sprintf("%s/bywash-%d", dir, os.Geteuid())
	for _, tt := range []struct{ run, want string }{
		{"", temporary},
		{dir, dir + "/bywash"},
		{dir + "/gone", temporary},
		{file, temporary},
	} {
		t.Setenv("XDG_RUNTIME_DIR", tt.run)
		if got := Path(); got != tt.want {
			t.Errorf("XDG_RUNTIME_DIR=%q: %s, want %s", tt.run, got, tt.want)
		}
	}
}
