//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestQNIXDevicesNameTheRemedy(t *testing.T) {
	device := fstest.MapFS{"dev/qnix0": {}, "dev/qnix1": {}}
	yes, no := func(string) error { return nil }, func(string) error { return errors.New("permission denied") }
	for name, x := range map[string]struct {
		root   fstest.MapFS
		access func(string) error
		l      locking
		level  Level
		remedy string
	}{
		"no module":     {fstest.MapFS{}, yes, locking{free: true}, Absent, "insmod kmod/qnix.ko"},
		"not loaded":    {fstest.MapFS{"sys/module/qnix": {}}, yes, locking{free: true}, Absent, "modprobe qnix"},
		"no permission": {device, no, locking{free: true}, Blocked, "usermod -a -G qnix"},
		"little memory": {device, yes, locking{limit: 8 << 20}, Slow, "ulimit -l"},
		"much memory":   {device, yes, locking{limit: 1 << 40}, OK, ""},
		"privileged":    {device, yes, locking{free: true}, OK, ""},
	} {
		f := findQNIX(x.root, x.access, x.l, true)
		if f.Level != x.level || !strings.Contains(f.Remedy, x.remedy) || x.remedy == "" && f.Remedy != "" {
			t.Errorf("%s: got %v, want level %s and remedy %q", name, f, x.level, x.remedy)
		}
	}
}
