//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"testing"

	"github.com/bywash/bywash/driver"
)

// Arenas come and go in the life of a connection, more than it can map at a
// time.
func TestArenasComeAndGo(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	for k := range 2 * maxArenas {
		ar, err := driver.NewArena(2 << 16)
		if err != nil {
			t.Fatal(err)
		}
		transferLarge(t, a, b, ar.Alloc(1<<16), ar.Alloc(1<<16))
		if got := a.Path(); got != "arena-both" && got != "arena-put" && got != "arena-get" {
			t.Fatalf("arena %d: path is %s, want one through the arena", k, got)
		}
		if err := ar.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []driver.Instance{a, b} {
		if err := i.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}
