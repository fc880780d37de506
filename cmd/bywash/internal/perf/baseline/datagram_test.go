//go:build linux && !(386 || arm || mips || mipsle)

package baseline

import (
	"errors"
	"testing"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// A lost datagram ends the wait in time, whether each look at the socket is short or a sleep.
func TestLostDatagramEndsTheWait(t *testing.T) {
	for wait, misses := range map[string]int{"block": 2, "poll": 2 * 4096} {
		k := &socket{c: bench.Case{Wait: wait}}
		d := k.lossDeadline()
		d.limit = time.Nanosecond
		for n := 1; ; n++ {
			err := d.miss()
			if err == nil && n < misses {
				time.Sleep(time.Nanosecond)
				continue
			}
			if !errors.Is(err, errLost) || n != misses {
				t.Errorf("wait %s: miss %d: %v, want %v at miss %d", wait, n, err, errLost, misses)
			}
			break
		}
	}
}
