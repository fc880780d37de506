//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bywash/bywash/session"
)

func TestDriversAreNamedByTheEnvironment(t *testing.T) {
	for list, want := range map[string]string{
		"shm":            "shm|",
		"shm,afxdp:eth1": "shm| afxdp|eth1",
		"afxdp:a:b":      "afxdp|a:b",
		"afxdp:a+tcp":    "afxdp|a+tcp|",
		"afxdp+tcp:b":    "afxdp|+tcp|b",
		"afxdp+":         "",
		"+tcp":           "",
		"afxdp+tcp+shm":  "",
		"afxdp:a+tcp:":   "",
		"":               "",
		"shm,":           "",
		":eth0":          "",
		"shm:":           "",
		"shm, afxdp":     "",
	} {
		rails, err := session.ParseRails(list)
		var got []string
		for _, r := range rails {
			one := r.Driver + "|" + r.Device
			if r.Large != nil {
				one += "+" + r.Large.Driver + "|" + r.Large.Device
			}
			got = append(got, one)
		}
		if strings.Join(got, " ") != want || (err != nil) != (want == "") || err != nil && !errors.Is(err, session.ErrInvalid) {
			t.Errorf("%q: got %q, %v; want %q", list, got, err, want)
		}
	}
	t.Setenv("BYWASH_LAUNCHER", "alone")
	for list, works := range map[string]bool{"shm": true, "no-such-driver": false, "shm,,": false} {
		t.Setenv("BYWASH_DRIVERS", list)
		s, err := session.Join(t.Context(), session.Config{})
		if (err == nil) != works {
			t.Errorf("%q: got %v, want %v", list, err, works)
		}
		if err == nil {
			_ = s.Close(t.Context())
		}
	}
}

func FuzzRails(f *testing.F) {
	f.Add("shm,afxdp:eth1")
	f.Add(",:")
	f.Add("afxdp:eth1+tcp")
	f.Fuzz(func(t *testing.T, list string) {
		rails, err := session.ParseRails(list)
		if (err == nil) != (len(rails) > 0) {
			t.Fatalf("%q: %v, %v", list, rails, err)
		}
		for _, r := range rails {
			if r.Driver == "" || strings.ContainsAny(r.Driver+r.Device, ",+ \t\n") ||
				r.Large != nil && (r.Large.Driver == "" || r.Large.Large != nil || strings.ContainsAny(r.Large.Driver+r.Large.Device, ",+ \t\n")) {
				t.Fatalf("%q gives %+v", list, r)
			}
		}
	})
}
