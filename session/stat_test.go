//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bywash/bywash/internal/stat"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// bywash stat sees every process that has joined a session, by the name of its program, unless the environment
// disables that.
func TestSessionsAnswerStat(t *testing.T) {
	ofThis := func() (found []*stat.Process) {
		ends, err := stat.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ends {
			if e.PID != os.Getpid() {
				continue
			}
			p, err := stat.Read(e)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, p)
		}
		return found
	}
	for _, tt := range []struct {
		env  string
		want int
	}{{"", 1}, {"off", 0}} {
		t.Setenv(stat.Env, tt.env)
		var all []*session.Session
		for range 2 {
			s, err := session.Join(deadline(t), session.Config{Job: launch.Alone()})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		found := ofThis()
		if len(found) != tt.want {
			t.Fatalf("%s=%s: listed %d times, want %d", stat.Env, tt.env, len(found), tt.want)
		}
		for _, p := range found {
			if p.Command != filepath.Base(program) || len(p.Contexts) != 4 { // two tracks each
				t.Errorf("%q with %d contexts, want %q with 4", p.Command, len(p.Contexts), filepath.Base(program))
			}
		}
		for _, s := range all {
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
		}
		if found := ofThis(); len(found) != 0 {
			t.Errorf("%d are listed after Close", len(found))
		}
	}
}
