package kit

import (
	"testing"

	"github.com/bywash/bywash/driver"
)

func TestStagingIsUsedAgainAndFreed(t *testing.T) {
	var s Staging
	a, err := s.Get(5000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Get(8192)
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != 5000 || len(b) != 8192 || &a[0] == &b[0] {
		t.Fatalf("got %d and %d bytes, the same: %v", len(a), len(b), &a[0] == &b[0])
	}
	if s.Used() < 5000+8192 {
		t.Errorf("%d bytes are in use, want at least the %d that were got", s.Used(), 5000+8192)
	}
	first := &a[0]
	s.Put(a)
	s.Put(nil)
	if a, err = s.Get(6000); err != nil || &a[0] != first {
		t.Errorf("memory that was put back is not used again (%v)", err)
	}
	s.Put(a)
	s.Put(b)
	if s.Used() != 0 {
		t.Errorf("%d bytes are in use after all were put back", s.Used())
	}
	arena, _, _ := driver.ArenaOf(b)
	s.Close()
	if arena.Hold() {
		t.Error("an arena is left after Close")
	}
}
