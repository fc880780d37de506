//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"math/bits"
	"os"

	"github.com/bywash/bywash/driver"
)

// LockedMemory returns how many bytes of memory a connection locks for its buffers and queues on both tracks, with
// default options. The kernel counts them against RLIMIT_MEMLOCK, together with the memory of messages on the large
// track and regions. The queues are those of the provider mlx5, whose requests are the largest; Soft-RoCE locks none.
func LockedMemory() (n int) {
	for _, t := range []driver.Track{driver.Small, driver.Large} {
		n += lockedBy(t, optionTable.Defaults) + queuesOf(t, optionTable.Defaults)
	}
	return n + pages(2*transferDepth*bounceSize) + pages(opDepth*opBounce)
}

// queuesOf returns how many bytes mlx5 locks for the queues of a connection on a track, with its share of a completion
// queue: see calc_sq_size, calc_rq_size and mlx5_create_cq in rdma-core's providers/mlx5. A send request begins with 208
// bytes (that which binds a window is the longest), and is rounded up to 64; a receive has 16 and a completion 64.
func queuesOf(t driver.Track, o options) int {
	queue := func(requests, bytes int) int { return pages(1 << bits.Len(uint(requests*bytes-1))) }
	sends := func(n, inline int) int { return queue(n, (208+(4+inline+15)&^15+63)&^63) }
	if t == driver.Small {
		recvs := o.window + controlReceives
		return sends(smallSends, inlineSize) + queue(recvs, 16) + (smallSends+recvs)*64
	}
	entries := largeSends + windowSends + largeReceives
	return sends(largeSends, inlineSize) + sends(windowSends, wordSize) + queue(1, 16) + queue(largeReceives, 16) + entries*64
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
