package session_test

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// told collects what a session tells from several goroutines.
type told struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *told) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *told) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Split(strings.TrimSuffix(w.b.String(), "\n"), "\n")
}

// like tells whether there is one line for each pattern, with all the words of it, "*" between them. What is told of two
// connections may come in any order.
func like(lines, patterns []string) bool {
	lines = slices.Clone(lines)
	for _, p := range patterns {
		i := slices.IndexFunc(lines, func(line string) bool { return has(line, strings.Split(p, "*")) })
		if i < 0 {
			return false
		}
		lines = slices.Delete(lines, i, i+1)
	}
	return len(lines) == 0
}

func has(line string, words []string) bool {
	for _, word := range words {
		_, after, ok := strings.Cut(line, word)
		if !ok {
			return false
		}
		line = after
	}
	return true
}

func TestSessionTellsWhichRailsItTakesAndWhy(t *testing.T) {
	var says [2]told
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		c.Explain = &says[rank]
		if rank == 1 {
			c.Rails = append(c.Rails, session.Rail{Driver: "shm"})
		}
	})
	transfer(t, s[0], s[1], 100)
	transfer(t, s[0], s[0], 100)
	const taken = " taken: highest exclusivity that reaches the peer (48); carried by "
	for rank, want := range [2][]string{
		{
			"bywash: rank 0: shm:* opened, exclusivity 48",
			"bywash: rank 0 to rank 1: shm:*" + taken + "ring, long ",
			"bywash: rank 0 to rank 1: shm left out: this process has no such driver, or fewer of them",
			"bywash: rank 0 to itself: shm:*" + taken,
		},
		{
			"bywash: rank 1: shm:* opened, exclusivity 48",
			"bywash: rank 1: shm:* opened, exclusivity 48",
			"bywash: rank 1 to rank 0: shm:*" + taken + "ring, long ",
			"bywash: rank 1 to rank 0: shm:* left out: the peer has no such driver, or fewer of them",
		},
	} {
		eventually(t, "the choice is told", func() bool { return len(says[rank].lines()) >= len(want) })
		if got := says[rank].lines(); !like(got, want) {
			t.Errorf("rank %d told\n%s\nwant\n%s", rank, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// What is left out because it does not work here is named, with its reason.
func TestSessionTellsWhatDoesNotWorkHere(t *testing.T) {
	// Not on the interfaces of the machine: in a namespace of this thread, which ends with the test.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	t.Setenv(launch.EnvDrivers, "")
	var says told
	s, err := session.Join(deadline(t), session.Config{Job: launch.Alone(), Explain: &says})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(deadline(t)) }()
	for _, name := range driver.Names() {
		n := 0
		for _, l := range says.lines() {
			if strings.HasPrefix(l, "bywash: rank 0: "+name+":") || strings.HasPrefix(l, "bywash: rank 0: "+name+" left out: ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is mentioned %d times, want once: %q", name, n, says.lines())
		}
	}
}
