//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"regexp"
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

// told collects the explanations that a session writes from several goroutines.
type explanations struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *explanations) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *explanations) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Split(strings.TrimSuffix(w.b.String(), "\n"), "\n")
}

// like reports whether each pattern has one line with all its words, which "*" separates. Lines of two connections may
// come in any order.
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

func TestExplainNamesRails(t *testing.T) {
	var explained [2]explanations
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		c.Explain = &explained[rank]
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
		eventually(t, "the choice is reported", func() bool { return len(explained[rank].lines()) >= len(want) })
		if got := explained[rank].lines(); !like(got, want) {
			t.Errorf("rank %d reported\n%s\nwant\n%s", rank, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A driver that does not work here is reported, with the reason.
func TestExplainNamesDriversThatFail(t *testing.T) {
	_, explained := joinNamingNone(t, session.Config{AllDrivers: true})
	for _, name := range driver.Names() {
		n := 0
		for _, l := range explained.lines() {
			if strings.HasPrefix(l, "bywash: rank 0: "+name+":") || strings.HasPrefix(l, "bywash: rank 0: "+name+" left out: ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is mentioned %d times, want once: %q", name, n, explained.lines())
		}
	}
}

// joinNamingNone joins alone, with the drivers of the registry.
func joinNamingNone(t *testing.T, cfg session.Config) (*session.Session, *explanations) {
	t.Helper()
	// Not on the interfaces of the machine: in a namespace of this thread, which ends with the test.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	t.Setenv(launch.EnvDrivers, "")
	explained := new(explanations)
	cfg.Job, cfg.Explain = launch.Alone(), explained
	s, err := session.Join(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(deadline(t)) })
	return s, explained
}

// Connecting to another host fails with a remedy if the session has left the needed drivers closed.
func TestConnectToAnotherHostNamesTheDriversThatAreClosed(t *testing.T) {
	s, explained := joinNamingNone(t, session.Config{})
	for _, name := range []string{"verbs", "qnix", "tcp"} {
		want := "bywash: rank 0: " + name + " left out: not needed: all ranks reach each other by "
		if !slices.ContainsFunc(explained.lines(), func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("%s is not reported as left out: %q", name, explained.lines())
		}
	}
	reserved := "bywash: rank 0: afxdp left out: not named: "
	if !slices.ContainsFunc(explained.lines(), func(l string) bool { return strings.HasPrefix(l, reserved) }) {
		t.Errorf("afxdp is not reported as left out unless it is named: %q", explained.lines())
	}
	card := s.Card()
	card[16] ^= 2 // another incarnation
	// The digit of the host that follows.
	otherHost := regexp.MustCompile("shm:[0-9]+:[0-9a-f]{16}:[0-9a-f]{15}")
	for _, at := range otherHost.FindAllIndex(card, -1) {
		if digit := &card[at[1]]; *digit != '0' {
			*digit = '0'
		} else {
			*digit = '1'
		}
	}
	_, err := s.Connect(deadline(t), s.Reseal(card))
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "the peer is on another host") || !strings.Contains(err.Error(), "afxdp left out: not named") || !strings.Contains(err.Error(), "BYWASH_DRIVERS=afxdp:DEVICE or Config.Rails names it") {
		t.Errorf("connecting to another host: %v", err)
	}
}

// A driver that would have been chosen and works here, but cannot be opened, is reported even without BYWASH_EXPLAIN:
// otherwise the job would be slow without an explanation.
func TestSlowerDriverIsReported(t *testing.T) {
	t.Setenv(launch.EnvDrivers, "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", "/nonexistent")
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	s, err := session.Join(deadline(t), session.Config{Job: launch.Alone()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(deadline(t))
	if text := log.String(); !strings.Contains(text, "instead of a faster driver: shm: ") || !strings.Contains(text, "XDG_RUNTIME_DIR") {
		t.Errorf("reported %q, want the driver with the remedy", text)
	}
}
