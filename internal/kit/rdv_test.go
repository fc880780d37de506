package kit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/bywash/bywash/driver"
)

// FuzzRdv: rdv data that is accepted is what PutRdv makes of its fields.
func FuzzRdv(f *testing.F) {
	const token, limit = 0x1122334455667788, 1 << 30
	var b [RdvBytes]byte
	PutRdv(&b, token, 7<<8|3, 100)
	f.Add(bytes.Clone(b[:]))
	PutRdv(&b, token+1, 0, 0) // of another connection
	f.Add(bytes.Clone(b[:]))
	PutRdv(&b, token, LargeDepth, limit) // no such slot
	f.Add(bytes.Clone(b[:]))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, sum := range []bool{false, true} {
			if sum && len(in) == RdvBytes { // past the checksum, too
				in = bytes.Clone(in)
				binary.LittleEndian.PutUint32(in, crc32.Checksum(in[4:], castagnoli))
			}
			tag, n, err := ParseRdv(in, token, limit)
			if err != nil {
				if !errors.Is(err, driver.ErrInvalid) {
					t.Fatalf("% x: %v", in, err)
				}
				continue
			}
			var again [RdvBytes]byte
			PutRdv(&again, token, tag, n)
			if !bytes.Equal(again[:], in) || n < 0 || n > limit {
				t.Errorf("% x is read as tag %#x of %d bytes", in, tag, n)
			}
		}
	})
}
