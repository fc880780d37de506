//go:build linux

package workload

import (
	"unsafe"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// touchWrite stores a word in each cache line, like a program that makes its message in place. Otherwise no cache line
// would have to move between CPUs.
func touchWrite(b []byte, seq uint64) {
	for len(b) >= bench.Line {
		*(*uint64)(unsafe.Pointer(&b[0])) = seq
		b = b[bench.Line:]
	}
	if len(b) >= 8 {
		*(*uint64)(unsafe.Pointer(&b[0])) = seq
	} else if len(b) > 0 {
		b[0] = byte(seq)
	}
}

// touchRead loads a word of each cache line.
func touchRead(b []byte) uint64 {
	var sum uint64
	for len(b) >= bench.Line {
		sum += *(*uint64)(unsafe.Pointer(&b[0]))
		b = b[bench.Line:]
	}
	if len(b) >= 8 {
		sum += *(*uint64)(unsafe.Pointer(&b[0]))
	} else if len(b) > 0 {
		sum += uint64(b[0])
	}
	return sum
}
