//go:build linux && !(386 || arm || mips || mipsle)

package stat

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process lists the sockets of the network namespace of the calling thread, in which it also connects, whatever the
// namespace of its main thread.
func TestListFollowsTheThreadsNamespace(t *testing.T) {
	runtime.LockOSThread() // and not unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("needs root: makes a network namespace")
	} else if err != nil {
		t.Fatal(err)
	}
	s, err := Serve()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := timesListed(t); n != 1 {
		t.Errorf("in another namespace than the main thread's, this process is listed %d times, want once", n)
	}
}

func TestAProcessFindsItself(t *testing.T) {
	s, err := Serve()
	if err != nil {
		t.Fatal(err)
	}
	ends, err := List()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range ends {
		if e.PID != os.Getpid() {
			continue
		}
		found = true
		p, err := Read(e)
		if err != nil || p.PID != os.Getpid() || p.Contexts == nil {
			t.Errorf("Read(%v) = %+v, %v", e, p, err)
		}
		// A name that contains another process's ID is refused.
		if _, err := Read(Endpoint{PID: 1, name: e.name}); err == nil {
			t.Error("an endpoint of another process was believed")
		}
	}
	if !found {
		t.Error("this process is not listed")
	}
	second, err := Serve()
	if err != nil {
		t.Fatal(err)
	}
	if n := timesListed(t); n != 1 {
		t.Errorf("listed %d times when two serve, want once", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err == nil {
		t.Error("a second Close of one share is taken")
	}
	if n := timesListed(t); n != 1 {
		t.Errorf("listed %d times after one of two has closed, want once", n)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if n := timesListed(t); n != 0 {
		t.Errorf("listed %d times after Close", n)
	}
}

// timesListed is how often this process is listed.
func timesListed(t *testing.T) (n int) {
	t.Helper()
	ends, err := List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ends {
		if e.PID == os.Getpid() {
			n++
		}
	}
	return n
}

func TestNamesInProcNetUnixAreChecked(t *testing.T) {
	const row = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 %s\n"
	for _, c := range []struct {
		name string
		want int
	}{
		{"@bywash-stat-42-0123456789abcdef", 42}, {"@bywash-stat-42", 0}, {"@bywash-stat-042-0123456789abcdef", 0}, {"@bywash-stat--1-0123456789abcdef", 0},
		{"@bywash-stat-42-xyz", 0}, {"/tmp/bywash-stat-42-0123456789abcdef", 0}, {"@bywash-stat-99999999999-0123456789abcdef", 0}, {"@other", 0}, {"", 0},
	} {
		got := parseUnix(fmt.Appendf(nil, row, c.name), prefix)
		if c.want == 0 && len(got) != 0 || c.want != 0 && (len(got) != 1 || got[0].PID != c.want) {
			t.Errorf("%q: %v, want process %d", c.name, got, c.want)
		}
	}
}

func FuzzProcNetUnix(f *testing.F) {
	f.Add([]byte("0: 2 0 10000 1 1 1 @bywash-stat-42-0123456789abcdef\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range parseUnix(b, prefix) {
			if e.PID <= 0 || !strings.HasPrefix(e.name, fmt.Sprintf("%s%d-", prefix, e.PID)) {
				t.Fatalf("%+v", e)
			}
		}
	})
}

// Names in an answer that is accepted have no control characters.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"pid":1,"command":"x","contexts":[{"driver":"shm","counters":{"puts":1}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		for _, c := range p.Contexts {
			if strings.ContainsAny(c.Driver+c.Device+c.Track+c.URL+p.Command, "\x1b\n\r\x00") {
				t.Fatalf("control characters in %+v", c)
			}
		}
	})
}
