//go:build linux

package hostile

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session"
)

// target is a peer that is to be killed.
type target struct {
	p       *attack.Program
	g       *session.Gate
	w       *workload
	done    chan error
	cancel  context.CancelFunc
	stopped bool
}

// killer kills and stops peers at random moments, and counts how often it has.
type killer struct {
	v      *victim
	rails  []session.Rail
	peers  []*target
	kills  int
	pauses int
}

func (s *killer) join(rng *rand.Rand) *target {
	k := task{Rails: s.rails, Card: s.v.s.Card(), Seed: rng.Uint64(), Mine: 1}
	m := &target{p: attack.Start(s.v.tb, "peer", k), done: make(chan error, 1)}
	m.g = s.v.connect(m.p)
	var err error
	if m.w, err = newWorkload(m.g, task{Seed: k.Seed}); err != nil {
		s.v.tb.Fatal(err)
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	go func() { m.done <- m.w.run(ctx, 0) }()
	return m
}

// populate starts the peers.
func (s *killer) populate(rng *rand.Rand) {
	s.peers = nil
	for range 3 {
		m := s.join(rng)
		s.peers = append(s.peers, m)
		attack.Await(s.v.tb, "a peer has exchanged messages", func() bool { return m.w.n.Load() > 0 })
	}
}

// kill kills a peer and checks that everything under way with it ends with ErrBroken.
func (s *killer) kill(m *target) {
	t := s.v.tb
	m.p.Kill()
	select {
	case err := <-m.done:
		if !errors.Is(err, session.ErrBroken) {
			t.Errorf("what was under way with a peer that was killed ended with %v, want broken", err)
		}
	case <-time.After(attack.MaxWait):
		t.Fatalf("the death of a peer was not noticed within %v", attack.MaxWait)
	}
	m.cancel()
	if err := m.g.Forget(); err != nil {
		t.Errorf("forget: %v", err)
	}
}

// step kills, stops or continues one peer.
func (s *killer) step(rng *rand.Rand) {
	k := rng.IntN(len(s.peers))
	m := s.peers[k]
	signal := func(sig syscall.Signal) { _ = m.p.Cmd.Process.Signal(sig) }
	switch {
	case m.stopped && rng.IntN(2) == 0:
		signal(syscall.SIGCONT)
		m.stopped = false
	case rng.IntN(2) == 0:
		signal(syscall.SIGSTOP)
		m.stopped = true
		s.pauses++
	default: // also while it is stopped
		s.kills++
		s.kill(m)
		s.peers[k] = s.join(rng)
	}
}

// Peers that are killed and stopped at random moments of validated transfers, again and again: each death is noticed,
// ends what was under way as broken, and leaves nothing; those who were only stopped go on; so do all others.
func TestKills(t *testing.T) {
	for _, way := range []struct {
		name  string
		kept  int // descriptors that a driver keeps for its next peers, however many have died
		rails func(t *testing.T) []session.Rail
	}{
		{"shm", 0, func(t *testing.T) []session.Rail {
			return []session.Rail{{Driver: "shm", Options: map[string]string{"dir": t.TempDir()}}}
		}},
		{"softnic", 12, softnicRails},
		{"tcp", 0, func(*testing.T) []session.Rail { return []session.Rail{{Driver: "tcp", Options: onLoopback}} }},
		{"two rails", 0, func(t *testing.T) []session.Rail {
			dir := t.TempDir()
			return []session.Rail{
				{Driver: "shm", Options: map[string]string{"dir": dir}}, {Driver: "shm", Options: map[string]string{"dir": dir, "path": "cma"}},
			}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			rng := attack.Seed(t)
			files := filesLeft(t, "/dev/shm")
			rails := way.rails(t)
			s := &killer{v: newVictim(t, rails, rng, nil), rails: rails}
			s.populate(rng)
			for _, m := range s.peers {
				s.kill(m)
			}
			s.v.mark()
			s.v.before.FDs += way.kept
			s.v.before.Maps += 4 * way.kept
			s.populate(rng)
			for end := time.Now().Add(attack.Duration(t)); time.Now().Before(end) && !t.Failed(); {
				time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
				s.step(rng)
				s.v.goesOn("among peers that are killed")
			}
			s.finish()
			t.Logf("%d kills, %d stops", s.kills, s.pauses)
			s.v.close()
			if now := filesLeft(t, "/dev/shm"); len(now) > len(files) {
				t.Errorf("files in /dev/shm: %v, before %v", now, files)
			}
		})
	}
}

// finish continues the peers that were stopped, checks that they go on, and kills them.
func (s *killer) finish() {
	for _, m := range s.peers {
		_ = m.p.Cmd.Process.Signal(syscall.SIGCONT)
	}
	for _, m := range s.peers {
		n := m.w.n.Load()
		attack.Await(s.v.tb, "a peer goes on after the others were killed", func() bool {
			select {
			case err := <-m.done:
				s.v.tb.Fatalf("transfers with a peer that was not killed ended: %v", err)
			default:
			}
			return m.w.n.Load() > n
		})
	}
	for _, m := range s.peers {
		s.kill(m)
	}
}

// filesLeft are the files in a directory that processes of this test could have left.
func filesLeft(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.Contains(f.Name(), "bywash") {
			names = append(names, f.Name())
		}
	}
	return names
}

// softnicRails are for a NIC in user space that is a process of its own.
func softnicRails(t *testing.T) []session.Rail {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "q.sock")
	s, err := softnic.Start(softnic.Config{Sockets: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return []session.Rail{{Driver: "qnix", Device: path}}
}
