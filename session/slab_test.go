//go:build linux && !(386 || arm || mips || mipsle)

package session

import "testing"

// The number of a thing that is gone means nothing, also when its place was used so often that generations begin again;
// and 0 is never a number.
func TestStaleIDsAreIgnored(t *testing.T) {
	var s slab[string]
	seen := make(map[uint64]bool)
	add := func(v string) uint64 {
		id := s.add(v)
		if got, ok := s.get(id); !ok || got != v || id == 0 || seen[id] {
			t.Fatalf("%q got the number %#x: %q, %v, seen before %v", v, id, got, ok, seen[id])
		}
		seen[id] = true
		return id
	}
	for range 3 {
		old := add("old")
		s.remove(old)
		add("new")
		if _, ok := s.get(old); ok {
			t.Errorf("%#x means something after it was given back", old)
		}
		s.remove(old)
		if n := len(s.items) - len(s.free); n != len(seen)/2 {
			t.Errorf("%d things are there, want %d", n, len(seen)/2)
		}
	}
	s.items[0].gen = ^uint32(0) - 1 // it has been used four thousand million times, and begins again
	clear(seen)
	for _, id := range []uint64{uint64(^uint32(0)-1) << 32, 0} {
		s.remove(id)
	}
	last := add("last")
	s.remove(last)
	first := add("first again")
	if _, ok := s.get(last); ok || first>>32 == 0 {
		t.Errorf("after %#x comes %#x; the one before means something: %v", last, first, ok)
	}
}
