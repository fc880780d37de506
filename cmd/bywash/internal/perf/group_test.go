package perf

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

func TestGroupsRunOnQNIXAndSockets(t *testing.T) {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "nic.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := softnic.EnsureConfig(ctx, softnic.Config{Sockets: []string{path}, Idle: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nic.EnvPath, path)
	waits := []string{"block", "poll"}
	if testing.Short() { // eight processes that spin are slow on two processors
		waits = waits[:1]
	}
	for _, name := range []string{"qnix", "sock-unix"} {
		for _, wait := range waits {
			c := config(name, Barrier, Bcast)
			c.Wait, c.Validate, c.Sizes = wait, true, []int{1, 5000, 100_000}
			var got collector
			if err := Run(ctx, c, &got); err != nil || len(got.missing) > 0 || len(got.results) != 1+3 {
				t.Errorf("%s, wait %s: %v, %d results, want 4; missing: %v", name, wait, err, len(got.results), got.missing)
			}
		}
	}
}
