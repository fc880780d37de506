//go:build linux

package main

import "time"

func rdtsc() uint64

// tscKHz measures the time stamp counter, which an emulated processor shares with its host. A guest that measures it
// itself on a busy machine can be wrong by a factor, and then so are all its clocks.
func tscKHz() int {
	before, ticks := readBoth()
	time.Sleep(50 * time.Millisecond)
	after, more := readBoth()
	return int(float64(more-ticks) / float64(after.Sub(before)) * 1e6)
}

// readBoth reads clock and counter at the same moment, as nearly as that is to be had.
func readBoth() (now time.Time, ticks uint64) {
	const close, tries = 4000, 100 // ticks: a microsecond or two
	for range tries {
		start := rdtsc()
		now = time.Now()
		if ticks = rdtsc(); ticks-start < close {
			break
		}
	}
	return now, ticks
}
