package perf

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// The pattern of message seq: byte i of it depends on both, so that a message
// that is lost, stale, shifted or mixed with another is found.
func patternWord(seq uint64, word int) uint64 {
	x := (seq+1)*0x9e3779b97f4a7c15 ^ uint64(word+1)*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

func fill(b []byte, seq uint64) {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], patternWord(seq, i/8))
	}
	if i < len(b) {
		var tail [8]byte
		binary.LittleEndian.PutUint64(tail[:], patternWord(seq, i/8))
		copy(b[i:], tail[:])
	}
}

// verify checks every byte of message seq.
func verify(b []byte, seq uint64) error {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != patternWord(seq, i/8) {
			return mismatch(b, seq, i)
		}
	}
	if i < len(b) {
		return mismatch(b, seq, i)
	}
	return nil
}

func mismatch(b []byte, seq uint64, from int) error {
	var want [8]byte
	binary.LittleEndian.PutUint64(want[:], patternWord(seq, from/8))
	for i := from; i < len(b); i++ {
		if b[i] != want[i-from] {
			return fmt.Errorf("validation failed: message %d of %d bytes: byte %d is %#02x, want %#02x", seq, len(b), i, b[i], want[i-from])
		}
	}
	return nil
}

// line is the unit that crosses between cores.
const line = 64

// touchWrite stores a word in each cache line, as a program does that makes
// its message in place: without that, no line would have to travel.
func touchWrite(b []byte, seq uint64) {
	for len(b) >= line {
		*(*uint64)(unsafe.Pointer(&b[0])) = seq
		b = b[line:]
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
	for len(b) >= line {
		sum += *(*uint64)(unsafe.Pointer(&b[0]))
		b = b[line:]
	}
	if len(b) >= 8 {
		sum += *(*uint64)(unsafe.Pointer(&b[0]))
	} else if len(b) > 0 {
		sum += uint64(b[0])
	}
	return sum
}
