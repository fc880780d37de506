//go:build linux

package bench

import (
	"encoding/binary"
	"fmt"
)

// patternWord returns a word of the pattern of message seq. Each byte depends on seq and its offset, so that a lost,
// stale, shifted or mixed message is found.
func patternWord(seq uint64, word int) uint64 {
	x := (seq+1)*0x9e3779b97f4a7c15 ^ uint64(word+1)*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// Fill writes message seq.
func Fill(b []byte, seq uint64) {
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

// Verify checks every byte of message seq.
func Verify(b []byte, seq uint64) error {
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
			return fmt.Errorf("validation failed: message %d of %d bytes: byte %d is %#02x, want %#02x",
				seq, len(b), i, b[i], want[i-from])
		}
	}
	return nil
}

// VerifyFlagged checks a message whose last byte is a flag.
func VerifyFlagged(b []byte, seq uint64, flag byte) error {
	n := len(b) - 1
	if b[n] != flag {
		return fmt.Errorf("validation failed: message %d: flag is %#02x, want %#02x", seq, b[n], flag)
	}
	full := n &^ 7
	if err := Verify(b[:full], seq); err != nil {
		return err
	}
	var want [8]byte
	binary.LittleEndian.PutUint64(want[:], patternWord(seq, full/8))
	for i := full; i < n; i++ {
		if b[i] != want[i-full] {
			return mismatch(b, seq, full)
		}
	}
	return nil
}

// Line is the unit in bytes that crosses between cores.
const Line = 64
