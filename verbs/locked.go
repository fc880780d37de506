//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"os"

	"github.com/bywash/bywash/driver"
)

// LockedMemory returns how many bytes of memory a connection locks for its own buffers on both tracks, with default
// options. The kernel counts them against RLIMIT_MEMLOCK, together with the memory of messages on the large track,
// regions and, on most devices, the queues.
func LockedMemory() int {
	return lockedBy(driver.Small, optionTable.Defaults) + lockedBy(driver.Large, optionTable.Defaults) + pages(2*transferDepth*bounceSize) +
		pages(opDepth*opBounce)
}

// lockedBy returns how many bytes newConn registers for a connection on a track.
func lockedBy(t driver.Track, o options) int {
	if t == driver.Small {
		return pages((o.window+controlReceives+o.window)*o.buffer + opDepth*8)
	}
	claims := pages(claimBytes) // registered once more, as the peer may access nothing else
	return pages(largeReceives*announcement+claimBytes+transferDepth*8+opDepth*8) + claims
}

func pages(n int) int {
	p := os.Getpagesize()
	return (n + p - 1) / p * p
}
