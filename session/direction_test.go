//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"slices"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/header"
)

// A message has arrived and another waits to leave: ProgressDir handles the chosen direction first.
func TestProgressDirOrder(t *testing.T) {
	for _, tt := range []struct {
		name string
		dir  session.Direction
		want []string
	}{
		{"in", session.InFirst, []string{"in", "out"}},
		{"out", session.OutFirst, []string{"out", "in"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, f := faultPair(t, nil, func(c *session.Config) { c.Progress = session.Explicit })
			var order []string
			s[0].Handle(1, func(*session.Gate, *session.Active) { order = append(order, "in") })
			f[0].refuse(driver.ErrBusy)
			if _, err := s[0].Gate(1).Isend(1, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			if err := s[1].Gate(0).AMNow(1, nil, nil); err != nil {
				t.Fatal(err)
			}
			sent := func(header.Kind) error { order = append(order, "out"); return nil }
			f[0].small.Store(&sent)
			if !s[0].ProgressDir(tt.dir) || !slices.Equal(order, tt.want) {
				t.Errorf("went %q, want %q", order, tt.want)
			}
		})
	}
}
