//go:build linux

package carrier

import (
	"encoding/binary"
	"math/bits"
)

// sum returns the ones-complement sum of b as big-endian 16-bit words, an odd last byte padded with zero (RFC 1071),
// folded to 16 bits. The sum does not depend on the order of bytes (RFC 1071, section 2): it is computed from
// little-endian words of eight bytes, and the result is swapped.
func sum(b []byte) uint16 {
	var s, c uint64
	for len(b) >= 64 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[56:]), c)
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		b = b[8:]
	}
	var tail uint64
	for k := len(b) - 1; k >= 0; k-- {
		tail = tail<<8 | uint64(b[k])
	}
	s, c = bits.Add64(s, tail, c)
	// A tail is below 1<<56, so the addition of a carry cannot wrap again.
	return bits.ReverseBytes16(fold(s + c))
}

// fold folds a sum of 16-bit words to 16 bits, with end-around carry.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// pseudo returns the sum of the pseudo-header without the length: both addresses, given in sequence, and the protocol
// (RFC 768; RFC 8200, section 8.1).
func pseudo(addrs []byte, protocol uint8) uint64 { return uint64(sum(addrs)) + uint64(protocol) }

// sumPieces returns the sum of bytes in pieces. The bytes of a piece at an odd offset are swapped within the words.
func sumPieces(b []byte, rest [][]byte) uint64 {
	total, odd := uint64(sum(b)), len(b)%2 != 0
	for _, r := range rest {
		s := sum(r)
		if odd {
			s = bits.ReverseBytes16(s)
		}
		total += uint64(s)
		odd = odd != (len(r)%2 != 0)
	}
	return total
}
