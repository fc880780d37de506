package session

import (
	"testing"
	"time"

	"github.com/bywash/bywash/session/internal/rdv"
)

// Messages take the mode that costs less, soon after it has become the cheaper one, and few the other.
func TestTheCheaperModeIsChosen(t *testing.T) {
	var c choice
	cost := map[rdv.Mode]time.Duration{rdv.Null: 3 * time.Microsecond, rdv.Cooperative: 5 * time.Microsecond}
	run := func(n int) (taken map[rdv.Mode]int) {
		taken = make(map[rdv.Mode]int)
		for k := range n {
			mode := c.next()
			taken[mode]++
			d := cost[mode]
			if k%50 == 49 {
				d = time.Millisecond // the process had no CPU
			}
			c.took(mode, d)
		}
		return taken
	}
	if got := run(100); got[rdv.Null] < 80 {
		t.Errorf("of 100 messages %d took the cheaper mode", got[rdv.Null])
	}
	cost[rdv.Null] = 40 * time.Microsecond
	run(100)
	if got := run(6400); got[rdv.Null] < 9 || got[rdv.Null] > 30 {
		t.Errorf("later %d of 6400 messages took a mode that costs eight times as much, want some 20", got[rdv.Null])
	}
	cost[rdv.Null] = time.Microsecond
	run(64 * 8 * 40)
	if got := run(640); got[rdv.Null] < 620 {
		t.Errorf("when it was the cheaper one again, %d of 640 messages took it", got[rdv.Null])
	}
	for n, want := range map[int]int{shortestChoice: 0, 2*shortestChoice - 1: 0, 2 * shortestChoice: 1, longestChoice - 1: choices - 1} {
		if got := classOf(n); got != want {
			t.Errorf("%d bytes are of class %d, want %d", n, got, want)
		}
	}
}
