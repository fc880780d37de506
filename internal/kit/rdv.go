package kit

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/bywash/bywash/driver"
)

// RdvBytes is the size of rdv data that name a posted receive by a token and a tag.
const RdvBytes = 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// PutRdv writes rdv data, little-endian: crc32c u32 of what follows, 0 u32, token u64 of the receiver's end of the
// connection, tag u64, length u64 of the memory. The lowest byte of the tag is the receive's slot.
func PutRdv(b *[RdvBytes]byte, token, tag uint64, length int) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], 0)
	le.PutUint64(b[8:], token)
	le.PutUint64(b[16:], tag)
	le.PutUint64(b[24:], uint64(length))
	le.PutUint32(b[:], crc32.Checksum(b[4:], castagnoli))
}

// ParseRdv reads rdv data, which come from a peer. ErrInvalid unless PutRdv wrote them, with this token, the slot of a
// receive, and at most limit bytes of memory.
func ParseRdv(b []byte, token, limit uint64) (tag uint64, length int, err error) {
	le := binary.LittleEndian
	if len(b) != RdvBytes || le.Uint32(b) != crc32.Checksum(b[4:], castagnoli) || le.Uint32(b[4:]) != 0 ||
		le.Uint64(b[8:]) != token || le.Uint64(b[16:])&0xff >= LargeDepth || le.Uint64(b[24:]) > limit {
		return 0, 0, fmt.Errorf("%w: rdv data is damaged, or of another connection", driver.ErrInvalid)
	}
	return le.Uint64(b[16:]), int(le.Uint64(b[24:])), nil
}
