package drivertest

import (
	"bytes"
	"encoding/binary"

	"github.com/bywash/bywash/internal/lab/integrity"
)

// word is the nth eight bytes of a pattern.
func word(seed, n uint64) uint64 {
	x := seed*0x9e3779b97f4a7c15 + n + 1
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	return x * 0x94d049bb133111eb
}

// fill writes the pattern of seed.
func fill(b []byte, seed uint64) {
	n := uint64(0)
	for ; len(b) >= 8; b, n = b[8:], n+1 {
		binary.LittleEndian.PutUint64(b, word(seed, n))
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], word(seed, n))
	copy(b, last[:])
}

// verify compares every byte with the pattern of seed.
func verify(b []byte, seed uint64) error {
	n, all := uint64(0), b
	for ; len(b) >= 8; b, n = b[8:], n+1 {
		if binary.LittleEndian.Uint64(b) != word(seed, n) {
			break
		}
	}
	var w [8]byte
	for k := range b {
		if k&7 == 0 {
			binary.LittleEndian.PutUint64(w[:], word(seed, n))
			n++
		}
		if b[k] != w[k&7] {
			return integrity.Errorf("byte %d of %d is %#02x, want %#02x", len(all)-len(b)+k, len(all), b[k], w[k&7])
		}
	}
	return nil
}

// canary fills memory that must not be written.
const canary = 0xC5

var canaries = bytes.Repeat([]byte{canary}, 64<<10)

// Memory is written and compared in pieces: the runtime cannot stop a goroutine within one copy, so that a collection
// would stop all others, a driver's keep-alive goroutine among them, until fresh memory of many megabytes has been
// faulted in. On a busy machine that took a second.

func setCanary(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, canaries):]
	}
}

// disturbed returns the first byte that is no canary, or -1.
func disturbed(b []byte) int {
	for at := 0; at < len(b); at += len(canaries) {
		piece := b[at:min(at+len(canaries), len(b))]
		if bytes.Equal(piece, canaries[:len(piece)]) {
			continue
		}
		for k, x := range piece {
			if x != canary {
				return at + k
			}
		}
	}
	return -1
}
