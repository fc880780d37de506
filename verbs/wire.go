//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/bywash/bywash/driver"
)

// The immediate of every message has a code of 4 bits and an argument of 28 bits.
const (
	codeData      = 1  // small: a message; the argument is the limit for the peer
	codeCredit    = 2  // small: the limit alone
	codeClose     = 3  // the sender disconnects in order
	codeDone      = 4  // large: the message is complete with this RDMA write
	codeDoneLong  = 5  // large: the message is complete; its length is in the payload
	codeWithdrawn = 6  // large: the sender saw that the receive was cancelled
	immBits       = 28 // below the code
	immMask       = 1<<immBits - 1

	// limitMask covers the bits of a limit that fit. Limits are absolute counts, so that a repeated one has no effect.
	limitMask = immMask
)

func immediate(code uint8, rest uint32) uint32 { return uint32(code)<<immBits | rest&immMask }

// expand returns the count nearest to near whose low bits are low.
func expand(low, near uint32) uint32 {
	return near + (uint32(int32((low-near)<<(32-immBits)) >> (32 - immBits)))
}

// A transfer's name is its slot and its generation: how often the slot was used before.
const (
	slotBits = 8
	genMask  = immMask >> slotBits
)

func transferName(slot int, gen uint32) uint32 { return gen&genMask<<slotBits | uint32(slot) }

// hello is the data that both ends exchange while they connect; the connection manager authenticates it.
type hello struct {
	large  bool
	buffer uint32 // small: bytes of a receive buffer
	limit  uint32 // small: how many messages the peer may send at first
	tag    uint64 // large: names this end of the connection in rdv data
	addr   uint64 // large: address of the claim table
	rkey   uint32
	depth  uint32 // large: entries of the claim table
}

const (
	helloMagic   = 0x42795756 // "BWyV"
	helloVersion = 1
	helloBytes   = 48
)

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	le := binary.LittleEndian
	le.PutUint32(b, helloMagic)
	b[4] = helloVersion
	if h.large {
		b[5] = 1
	}
	le.PutUint32(b[8:], h.buffer)
	le.PutUint32(b[12:], h.limit)
	le.PutUint64(b[16:], h.tag)
	le.PutUint64(b[24:], h.addr)
	le.PutUint32(b[32:], h.rkey)
	le.PutUint32(b[36:], h.depth)
	return b
}

// parseHello parses the peer's hello. It returns driver.ErrVersion if the version is another one, and driver.ErrInvalid
// for any other error.
func parseHello(b []byte) (h hello, err error) {
	le := binary.LittleEndian
	if len(b) < 8 || le.Uint32(b) != helloMagic {
		return h, fmt.Errorf("%w: the peer is not a bywash verbs context (wrong port?)", driver.ErrInvalid)
	}
	if b[4] != helloVersion {
		return h, fmt.Errorf("%w: the peer speaks version %d, this program %d: use the same release on both sides", driver.ErrVersion, b[4], helloVersion)
	}
	if len(b) != helloBytes || b[5] > 1 || le.Uint16(b[6:]) != 0 || le.Uint64(b[40:]) != 0 {
		return h, fmt.Errorf("%w: damaged set-up data", driver.ErrInvalid)
	}
	h = hello{
		large: b[5] == 1, buffer: le.Uint32(b[8:]), limit: le.Uint32(b[12:]),
		tag: le.Uint64(b[16:]), addr: le.Uint64(b[24:]), rkey: le.Uint32(b[32:]), depth: le.Uint32(b[36:]),
	}
	switch {
	case !h.large && (h.buffer < minBuffer || h.buffer > maxBuffer || h.limit == 0 || h.limit > maxDepth):
		return h, fmt.Errorf("%w: set-up data with buffers of %d bytes and %d credits", driver.ErrInvalid, h.buffer, h.limit)
	case h.large && (h.depth == 0 || h.depth > maxTransfers || h.addr == 0):
		return h, fmt.Errorf("%w: set-up data with a table of %d entries", driver.ErrInvalid, h.depth)
	}
	return h, nil
}

// rdvData describes to a sender where a message goes. Updates for memory that was registered later have the same form.
type rdvData struct {
	tag    uint64 // of the receiving end
	slot   int
	gen    uint32
	length int // bytes of the receive's memory
	first  int // number of pieces in earlier rdv data
	n      int // pieces
	piece  [maxPieces]remotePiece
}

// remotePiece is memory of the peer.
type remotePiece struct {
	addr   uint64
	length int
	rkey   uint32
}

const (
	rdvMagic   = 0x5652 // "RV"
	rdvVersion = 1
	rdvHead    = 32
	rdvPiece   = 20
	rdvTail    = 4 // checksum
	// maxPieces is the most pieces of memory in a receive; a packet with more pieces goes through staging memory.
	maxPieces = 8
	rdvBytes  = rdvHead + maxPieces*rdvPiece + rdvTail

	// maxMessage is the largest message of the large track, put and get in bytes.
	maxMessage = 1 << 38
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes to b, which must have room for rdvBytes, and returns the part that it used.
func (r *rdvData) encode(b []byte) []byte {
	le := binary.LittleEndian
	le.PutUint16(b, rdvMagic)
	b[2], b[3] = rdvVersion, byte(r.n)
	le.PutUint32(b[4:], uint32(r.slot))
	le.PutUint32(b[8:], r.gen)
	le.PutUint32(b[12:], uint32(r.first))
	le.PutUint64(b[16:], r.tag)
	le.PutUint64(b[24:], uint64(r.length))
	for k, p := range r.piece[:r.n] {
		at := b[rdvHead+k*rdvPiece:]
		le.PutUint64(at, p.addr)
		le.PutUint64(at[8:], uint64(p.length))
		le.PutUint32(at[16:], p.rkey)
	}
	end := rdvHead + r.n*rdvPiece
	le.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
	return b[:end+rdvTail]
}

// Reasons for which rdv data is refused.
var (
	errRdvDamaged = fmt.Errorf("%w: damaged rdv data", driver.ErrInvalid)
	errRdvForeign = fmt.Errorf("%w: rdv data of another connection", driver.ErrInvalid)
)

// parse parses rdv data of the peer with this tag. It reads b, which is the caller's memory, once.
func (r *rdvData) parse(b []byte, tag uint64, depth int) error {
	le := binary.LittleEndian
	if len(b) < rdvHead+rdvTail || len(b) > rdvBytes || le.Uint16(b) != rdvMagic || b[2] != rdvVersion {
		return errRdvDamaged
	}
	r.n = int(b[3])
	end := rdvHead + r.n*rdvPiece
	if r.n > maxPieces || len(b) != end+rdvTail || le.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return errRdvDamaged
	}
	r.slot, r.gen, r.tag = int(le.Uint32(b[4:])), le.Uint32(b[8:]), le.Uint64(b[16:])
	if r.tag != tag {
		return errRdvForeign
	}
	length := le.Uint64(b[24:])
	first := le.Uint32(b[12:])
	if r.slot < 0 || r.slot >= depth || length > maxMessage || int64(first)+int64(r.n) > maxPieces {
		return errRdvDamaged
	}
	r.length, r.first = int(length), int(first)
	sum := 0
	for k := range r.n {
		at := b[rdvHead+k*rdvPiece:]
		n := le.Uint64(at[8:])
		if n > maxMessage {
			return errRdvDamaged
		}
		r.piece[k] = remotePiece{addr: le.Uint64(at), length: int(n), rkey: le.Uint32(at[16:])}
		sum += int(n)
	}
	if sum > r.length || r.n == 0 && r.length > 0 {
		return errRdvDamaged
	}
	return nil
}

// covered returns how many bytes of the message the pieces have room for.
func (r *rdvData) covered() (n int) {
	for k := range r.n {
		n += r.piece[k].length
	}
	return n
}

// extend adds the pieces of an update. It reports whether they fit.
func (r *rdvData) extend(more *rdvData) bool {
	switch {
	case more.slot != r.slot || more.gen != r.gen || more.length != r.length || more.first > r.n || more.first == 0:
		return false
	case more.first < r.n:
		return true // twice
	case r.covered()+more.covered() > r.length:
		return false
	}
	r.n += copy(r.piece[r.n:], more.piece[:more.n])
	return true
}

// regionKey is a remote key.
type regionKey struct {
	incarnation uint64
	addr        uint64
	length      uint64
	rkey        uint32
	access      driver.Access
}

const (
	keyMagic   = 0x4b52 // "RK"
	keyVersion = 1
	keyBytes   = 40
)

func (k *regionKey) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint16(b, keyMagic)
	b[2], b[3] = keyVersion, byte(k.access)
	le.PutUint32(b[4:], k.rkey)
	le.PutUint64(b[8:], k.incarnation)
	le.PutUint64(b[16:], k.addr)
	le.PutUint64(b[24:], k.length)
	le.PutUint32(b[32:], 0)
	le.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
}

func parseKey(b []byte, incarnation uint64) (k regionKey, err error) {
	le := binary.LittleEndian
	if len(b) != keyBytes || le.Uint16(b) != keyMagic || b[2] != keyVersion || le.Uint32(b[36:]) != crc32.Checksum(b[:36], castagnoli) {
		return k, fmt.Errorf("%w: damaged, or no key of this driver", driver.ErrRemoteKey)
	}
	k = regionKey{
		access: driver.Access(b[3]), rkey: le.Uint32(b[4:]), incarnation: le.Uint64(b[8:]),
		addr: le.Uint64(b[16:]), length: le.Uint64(b[24:]),
	}
	if k.incarnation != incarnation {
		return k, fmt.Errorf("%w: key of another context", driver.ErrRemoteKey)
	}
	if k.length > 1<<46 || k.addr+k.length < k.addr || k.access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return k, fmt.Errorf("%w: damaged key", driver.ErrRemoteKey)
	}
	return k, nil
}
