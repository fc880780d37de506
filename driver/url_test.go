package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"pgregory.net/rapid"
)

func TestURLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := driver.URL{
			Driver:      rapid.StringMatching(`[a-z0-9]{1,12}`).Draw(t, "driver"),
			Version:     rapid.IntRange(0, 65535).Draw(t, "version"),
			Incarnation: rapid.Uint64().Draw(t, "incarnation"),
			Rest:        rapid.StringMatching(`[!-~]{0,100}`).Draw(t, "rest"),
		}
		got, err := driver.ParseURL(u.String(), driver.MaxURL)
		if err != nil || got != u {
			t.Fatalf("%q parses as %+v, %v; want %+v", u, got, err, u)
		}
		if _, err := driver.ParseURL(u.String(), len(u.String())-1); !errors.Is(err, driver.ErrInvalid) {
			t.Fatalf("a url one byte too long: got %v, want %v", err, driver.ErrInvalid)
		}
	})
}

func TestMalformedURLs(t *testing.T) {
	const inc = "0123456789abcdef"
	for _, s := range []string{
		"", ":", ":::", "shm", "shm:1", "shm:1:" + inc, ":1:" + inc + ":", "Shm:1:" + inc + ":", "s-m:1:" + inc + ":", "shm::" + inc + ":",
		"shm:-1:" + inc + ":", "shm:+1:" + inc + ":", "shm:65536:" + inc + ":", "shm:x:" + inc + ":", "shm:1:0:", "shm:1:" + inc[1:] + ":",
		"shm:1:0" + inc + ":", "shm:1:" + inc[:15] + "g:", "shm:1:" + inc + ": ", "shm:1:" + inc + ":\n", "shm:1:" + inc + ":\x7f", "shm:1:" + inc + ":é",
	} {
		if u, err := driver.ParseURL(s, driver.MaxURL); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: got %+v, %v; want %v", s, u, err, driver.ErrInvalid)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("shm:1:0123456789abcdef:/run/bywash/1")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := driver.ParseURL(s, driver.MaxURL)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%q: error %v, want %v", s, err, driver.ErrInvalid)
			}
			return
		}
		// Upper-case digits and leading zeros are read; what is written is one form.
		again, err := driver.ParseURL(u.String(), 2*driver.MaxURL)
		if err != nil || again != u {
			t.Errorf("%q parses as %+v, and that as %+v, %v", s, u, again, err)
		}
		if len(s) > driver.MaxURL || strings.ContainsAny(s, " \n\x00") {
			t.Errorf("%q is accepted", s)
		}
	})
}
