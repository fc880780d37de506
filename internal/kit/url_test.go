package kit_test

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func TestParseURL(t *testing.T) {
	const url = "shm:3:0123456789abcdef:x"
	for _, c := range []struct {
		name    string
		version int
		want    error
	}{{"shm", 3, nil}, {"verbs", 3, driver.ErrInvalid}, {"shm", 2, driver.ErrVersion}, {"shm", 4, driver.ErrVersion}} {
		if _, err := kit.ParseURL(c.name, c.version, url, driver.MaxURL); !errors.Is(err, c.want) {
			t.Errorf("%q for %s version %d: got %v, want %v", url, c.name, c.version, err, c.want)
		}
	}
}

func TestIncarnationNamesTheRank(t *testing.T) {
	seen := make(map[uint64]bool)
	for _, rank := range []int{0, 1, 77777, 1<<20 - 1} {
		for range 100 {
			n := kit.NewIncarnation(driver.Attributes{SessionSize: 1 << 20, Rank: rank})
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
