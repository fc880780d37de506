package driver_test

import (
	"errors"
	"slices"
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

func TestParseURLFor(t *testing.T) {
	const url = "shm:3:0123456789abcdef:x"
	for _, c := range []struct {
		name    string
		version int
		want    error
	}{{"shm", 3, nil}, {"verbs", 3, driver.ErrInvalid}, {"shm", 2, driver.ErrVersion}, {"shm", 4, driver.ErrVersion}} {
		if _, err := driver.ParseURLFor(c.name, c.version, url, driver.MaxURL); !errors.Is(err, c.want) {
			t.Errorf("%q for %s version %d: got %v, want %v", url, c.name, c.version, err, c.want)
		}
	}
}

func TestWideURLRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		urls := rapid.SliceOf(rapid.StringMatching(`[!-~]{0,40}`)).Draw(t, "urls")
		got, err := driver.UnpackURLs(driver.PackURLs(urls))
		if err != nil || !slices.Equal(got, urls) {
			t.Fatalf("%q comes back as %q, %v", urls, got, err)
		}
	})
	if got, err := driver.UnpackURLs("shm:1:x"); err != nil || !slices.Equal(got, []string{"shm:1:x"}) {
		t.Errorf("a url that is not wide: %q, %v", got, err)
	}
	for _, s := range []string{"*x", "*1", "*2,a", "*01,a", "*-1,a", "*,a", "*99999999999,a", "*1,aa"} {
		if got, err := driver.UnpackURLs(s); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: got %q, %v; want %v", s, got, err, driver.ErrInvalid)
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

func FuzzUnpackURLs(f *testing.F) {
	f.Add("*3,abc0,")
	f.Fuzz(func(t *testing.T, s string) {
		urls, err := driver.UnpackURLs(s)
		switch {
		case err != nil:
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%q: error %v, want %v", s, err, driver.ErrInvalid)
			}
		case !strings.HasPrefix(s, "*"):
			if len(urls) != 1 || urls[0] != s {
				t.Errorf("%q unpacks as %q", s, urls)
			}
		case driver.PackURLs(urls) != s:
			t.Errorf("%q unpacks as %q, which packs as %q", s, urls, driver.PackURLs(urls))
		}
	})
}

func TestIncarnationNamesTheRank(t *testing.T) {
	seen := make(map[uint64]bool)
	for _, rank := range []int{0, 1, 77777, 1<<20 - 1} {
		for range 100 {
			n := driver.NewIncarnation(driver.Attributes{SessionSize: 1 << 20, Rank: rank})
			if got := driver.RankOf(n); got != rank {
				t.Fatalf("rank of %#x is %d, want %d", n, got, rank)
			}
			if n == 0 || seen[n] {
				t.Fatalf("incarnation %#x is zero or was drawn twice", n)
			}
			seen[n] = true
		}
	}
}
