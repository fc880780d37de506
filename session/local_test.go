//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"strings"
	"testing"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// A session knows its place on the host from the launcher, and that ranks outnumber the CPUs; receives work all the
// same.
func TestLocalRank(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		t.Setenv(launch.EnvLauncher, "alone")
		t.Setenv(launch.EnvLocalRank, "0")
		t.Setenv(launch.EnvLocalSize, "1")
		var output strings.Builder
		s, err := session.Join(t.Context(), session.Config{Explain: &output})
		if err != nil {
			t.Fatal(err)
		}
		if rank, size := s.LocalRank(); rank != 0 || size != 1 {
			t.Errorf("local rank %d of %d, want 0 of 1", rank, size)
		}
		if !strings.Contains(output.String(), "local rank 0 of 1 on this host, may run on ") {
			t.Errorf("explained: %q", output.String())
		}
		s.Oversubscribe(crowded)
		ctx, self, got := deadline(t), s.Gate(0), make([]byte, 8)
		for range 100 {
			if err := self.Send(ctx, 1, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := self.Recv(ctx, 1, got); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	// Other launchers do not provide it.
	s := joinAll(t, 2, nil)
	if rank, size := s[0].LocalRank(); rank != -1 || size != -1 {
		t.Errorf("without a launcher: local rank %d of %d", rank, size)
	}
}
