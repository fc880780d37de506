package descriptors

import (
	"errors"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A count is used again for so long for each open file: counting takes some 0.3 µs for each.
const reuse = 5 * time.Microsecond

var last struct {
	mu    sync.Mutex
	until time.Time
	open  int
}

// Free returns how many more files this process can open, as counted a moment ago, and its limit. Without /proc it
// returns the limit twice.
func Free() (free, limit int) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return math.MaxInt32, math.MaxInt32
	}
	limit = int(min(r.Cur, math.MaxInt32))
	last.mu.Lock()
	defer last.mu.Unlock()
	if time.Now().After(last.until) {
		dir, err := os.Open("/proc/self/fd")
		switch {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			return 0, limit
		case err != nil:
			return limit, limit
		}
		names, _ := dir.Readdirnames(0)
		_ = dir.Close()
		last.open = len(names) - 1
		last.until = time.Now().Add(time.Duration(last.open) * reuse)
	}
	return max(limit-last.open, 0), limit
}
