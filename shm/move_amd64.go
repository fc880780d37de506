//go:build linux && !(386 || arm || mips || mipsle) && !race

package shm

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// copyMin is the size from which move512 is faster than the runtime's copy, which
// uses REP MOVSB from 2 KiB on: that starts slowly and keeps fewer cache misses
// in flight (4 KiB half round trip: 12 % less without it), and at 1 MiB a time it
// bypasses the cache (put: 41 instead of 60 GB/s).
const copyMin = 512

var hasAVX512 = cpu.X86.HasAVX512F

//go:noescape
func move512(dst, src unsafe.Pointer, n uintptr)

// own asks for the cache lines of the next n bytes for writing, without
// waiting for them. PREFETCHW is a hint: it never faults, and CPUs without it
// take it for a no-op.
//
//go:noescape
func own(p unsafe.Pointer, n uintptr)

// move is copy, for memory whose lines lie in the other core's cache.
func move(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < copyMin || !hasAVX512 {
		return copy(dst, src)
	}
	k := n &^ 255
	move512(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), uintptr(k))
	copy(dst[k:n], src[k:n])
	return n
}

// streamMin is the length of a whole transfer from which REP MOVSB is better
// again: lines that leave the caches anyway are not read before they are
// overwritten (16 MiB: 37 instead of 31 GB/s).
const streamMin = 4 << 20

// movePiece is copy for a piece of a transfer of total bytes.
func movePiece(dst, src []byte, total int) {
	if total >= streamMin {
		copy(dst, src)
	} else {
		move(dst, src)
	}
}
