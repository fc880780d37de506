//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTooLittleLockedMemoryIsSaidWithTheRemedy(t *testing.T) {
	const need = 800 << 10
	for _, c := range []struct {
		name         string
		limit        uint64
		free         bool
		memory, verb Level
	}{
		{"nothing", 0, false, Blocked, Blocked},
		{"an old default", 64 << 10, false, Blocked, Blocked},
		{"a page too little", need - 4096, false, Blocked, Blocked},
		{"just enough", need, false, Slow, OK},
		{"today's default", 8 << 20, false, Slow, OK},
		{"plenty", 4 << 30, false, OK, OK},
		{"unlimited", unix.RLIM_INFINITY, false, OK, OK},
		{"CAP_IPC_LOCK", 64 << 10, true, OK, OK},
	} {
		l := locking{limit: c.limit, free: c.free, need: need}
		memory, verb := l.finding(true, nil), l.judge(Finding{Name: "driver verbs", Level: OK, Found: "can be opened"})
		if memory.Level != c.memory || verb.Level != c.verb {
			t.Errorf("%s: memory %v, driver %v; want %s and %s", c.name, memory, verb, c.memory, c.verb)
		}
		for _, f := range []Finding{memory, verb} {
			if (f.Level == OK) != (f.Remedy == "") {
				t.Errorf("%s: %v: remedy %q", c.name, f, f.Remedy)
			}
			for _, want := range []string{"800 KiB", "ulimit -l", "LimitMEMLOCK", "--ulimit memlock"} {
				if f.Level != OK && !strings.Contains(f.Remedy, want) {
					t.Errorf("%s: remedy %q, want one with %q", c.name, f.Remedy, want)
				}
			}
			if f.Level == Blocked && !strings.Contains(f.Found, "800 KiB") {
				t.Errorf("%s: %q does not say what is needed", c.name, f.Found)
			}
		}
	}
	l := locking{limit: 0, need: need}
	if f := l.finding(false, nil); f.Level != Absent {
		t.Errorf("without a device: %v", f)
	}
	if f := l.finding(true, errors.New("no")); f.Level != Slow {
		t.Errorf("limits that cannot be read: %v", f)
	}
	// The reason for which the driver cannot be opened comes first.
	if f := l.judge(Finding{Level: Absent, Found: "no device"}); f.Level != Absent || f.Found != "no device" {
		t.Errorf("a driver that cannot be opened: %v", f)
	}
}
