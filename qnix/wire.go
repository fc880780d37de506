//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// This file defines the contents of this driver's messages. All numbers are little-endian.
//
// Two processes exchange control messages with context tag 0. A control message has 8 bytes of head: magic u32, version
// u16, kind u8, 0 u8. The rest has a fixed layout for each kind. Connections are named by the numbers that each side
// gave to its call of Connect.
//
//	call        from u64, to u64, call u32, tags u16, receives u16, sends u16, track u8, 0 u8, buffer u32, token u64, nonce [16]
//	join        mine u32, yours u32, MAC [32]
//	welcome     mine u32, yours u32, MAC [32]
//	refuse      mine u32, yours u32, reason u32
//	withdraw    mine u32
//	leave       mine u32, yours u32, messages u64, credits u32
//	over        mine u32, yours u32
//	revoke      mine u32, yours u32, slot u32, generation u32
//	revoked     mine u32, yours u32, slot u32, generation u32, sent u32
const (
	controlMagic = 0x786e5142 // "BQnx"
	controlHead  = 8
	controlMax   = 72
	controlTag   = 0
	nonceBytes   = 16
	macBytes     = kit.ProofSize
)

type kind uint8

const (
	kindCall kind = iota + 1
	kindJoin
	kindWelcome
	kindRefuse
	kindWithdraw
	kindLeave
	kindOver
	kindRevoke
	kindRevoked
)

var controlBytes = [...]int{
	kindCall: 8 + 8 + 4 + 2 + 2 + 2 + 2 + 4 + 8 + nonceBytes, kindJoin: 8 + macBytes, kindWelcome: 8 + macBytes, kindRefuse: 12,
	kindWithdraw: 4, kindLeave: 20, kindOver: 8, kindRevoke: 16, kindRevoked: 20,
}

// reason is the reason for which a call is refused.
type reason uint32

const (
	refusedSecret reason = iota + 1
	refusedTrack
	refusedStale
)

// call describes one side of a connection.
type call struct {
	from, to uint64 // incarnations
	number   uint32
	tags     uint16 // the first tag of this side's receives
	receives uint16 // receives, and tags, that messages use in turn
	sends    uint16 // the most messages that this side can have under way
	track    driver.Track
	buffer   uint32 // bytes of the longest message
	token    uint64 // identifies this side in rdv data
	nonce    [nonceBytes]byte
}

// control is a control message of any kind.
type control struct {
	kind        kind
	call        call   // kindCall
	mine, yours uint32 // numbers of the sender's and the receiver's call
	mac         [macBytes]byte
	reason      reason
	messages    uint64
	credits     uint32
	slot, gen   uint32
	sent        bool
}

var errMalformed = errors.New("malformed control message")

// append encodes m.
func (m *control) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, controlMagic)
	b = le.AppendUint16(b, controlVersion)
	b = append(b, byte(m.kind), 0)
	if m.kind == kindCall {
		return m.call.append(b)
	}
	b = le.AppendUint32(b, m.mine)
	if m.kind == kindWithdraw {
		return b
	}
	b = le.AppendUint32(b, m.yours)
	switch m.kind {
	case kindJoin, kindWelcome:
		b = append(b, m.mac[:]...)
	case kindRefuse:
		b = le.AppendUint32(b, uint32(m.reason))
	case kindLeave:
		b = le.AppendUint64(b, m.messages)
		b = le.AppendUint32(b, m.credits)
	case kindRevoke, kindRevoked:
		b = le.AppendUint32(b, m.slot)
		b = le.AppendUint32(b, m.gen)
		if m.kind == kindRevoked {
			b = le.AppendUint32(b, map[bool]uint32{true: 1}[m.sent])
		}
	}
	return b
}

func (c *call) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, c.from)
	b = le.AppendUint64(b, c.to)
	b = le.AppendUint32(b, c.number)
	b = le.AppendUint16(b, c.tags)
	b = le.AppendUint16(b, c.receives)
	b = le.AppendUint16(b, c.sends)
	b = append(b, byte(c.track), 0)
	b = le.AppendUint32(b, c.buffer)
	b = le.AppendUint64(b, c.token)
	return append(b, c.nonce[:]...)
}

// parse decodes a control message. It returns ErrVersion for another version, and errMalformed unless b is exactly one
// message.
func (m *control) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < controlHead || le.Uint32(b) != controlMagic {
		return fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	if v := le.Uint16(b[4:]); v != controlVersion {
		return fmt.Errorf("%w: control messages of version %d, this program has %d: use the same release on both sides", driver.ErrVersion, v, controlVersion)
	}
	k := kind(b[6])
	if b[7] != 0 || k == 0 || int(k) >= len(controlBytes) || len(b) != controlHead+controlBytes[k] {
		return fmt.Errorf("%w: kind %d, %d bytes", errMalformed, k, len(b))
	}
	*m = control{kind: k}
	if b = b[controlHead:]; k == kindCall {
		return m.call.parse(b)
	}
	m.mine = le.Uint32(b)
	if k == kindWithdraw {
		return nil
	}
	m.yours, b = le.Uint32(b[4:]), b[8:]
	switch k {
	case kindJoin, kindWelcome:
		copy(m.mac[:], b)
	case kindRefuse:
		m.reason = reason(le.Uint32(b))
	case kindLeave:
		m.messages, m.credits = le.Uint64(b), le.Uint32(b[8:])
	case kindRevoke, kindRevoked:
		m.slot, m.gen = le.Uint32(b), le.Uint32(b[4:])
		if m.slot >= transferDepth || k == kindRevoked && le.Uint32(b[8:]) > 1 {
			return fmt.Errorf("%w: slot %d", errMalformed, m.slot)
		}
		m.sent = k == kindRevoked && le.Uint32(b[8:]) == 1
	}
	return nil
}

func (c *call) parse(b []byte) error {
	le := binary.LittleEndian
	c.from, c.to, c.number = le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:])
	c.tags, c.receives, c.sends = le.Uint16(b[20:]), le.Uint16(b[22:]), le.Uint16(b[24:])
	c.track, c.buffer, c.token = driver.Track(b[26]), le.Uint32(b[28:]), le.Uint64(b[32:])
	copy(c.nonce[:], b[40:])
	if b[27] != 0 || c.track > driver.Large || c.receives == 0 || c.receives > maxWindow || c.sends == 0 || c.sends > maxWindow ||
		c.tags == controlTag || int(c.tags)+tagsOf(c.track, int(c.receives)) > maxTags {
		return fmt.Errorf("%w: a call with %d receives from tag %d on", errMalformed, c.receives, c.tags)
	}
	return nil
}

// Labels of proofs: a proof fits neither the other role nor another connection.
const (
	dialerProof   = "bywash qnix dialer"
	listenerProof = "bywash qnix listener"
)

// proven returns the fields of both calls that the proofs of the secret cover.
func proven(dialer, listener *call) [][]byte {
	return [][]byte{dialer.append(nil), listener.append(nil)}
}

// A message of the small track has 8 bytes of head in its Context Region: limit u32, number u32. Messages of a
// connection are numbered from 0. The peer may send messages with numbers below the limit, for each of which a receive
// is posted. A credit is a limit alone.
const (
	dataHead    = 8
	creditBytes = 4
)

func putHead(b []byte, limit, number uint32) {
	binary.LittleEndian.PutUint32(b, limit)
	binary.LittleEndian.PutUint32(b[4:], number)
}

func putLimit(b []byte, limit uint32) { binary.LittleEndian.PutUint32(b, limit) }

func headLimit(b []byte) uint32  { return binary.LittleEndian.Uint32(b) }
func headNumber(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:]) }

// Rdv data: CRC-32C u32 of what follows, generation u32, token u64, length u64, slot u16, tag u16, 0 u32.
const rdvBytes = 32

type rdvData struct {
	token  uint64
	length int
	gen    uint32
	slot   int
	tag    uint16
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errRdv = fmt.Errorf("%w: rdv data is damaged, or of another connection", driver.ErrInvalid)

func (r *rdvData) encode(b *[rdvBytes]byte) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], r.gen)
	le.PutUint64(b[8:], r.token)
	le.PutUint64(b[16:], uint64(r.length))
	le.PutUint16(b[24:], uint16(r.slot))
	le.PutUint16(b[26:], r.tag)
	le.PutUint32(b[28:], 0)
	le.PutUint32(b[:], crc32.Checksum(b[4:], castagnoli))
}

// parse decodes rdv data of the peer with that call.
func (r *rdvData) parse(b []byte, theirs *call) error {
	le := binary.LittleEndian
	if len(b) != rdvBytes || le.Uint32(b) != crc32.Checksum(b[4:], castagnoli) || le.Uint64(b[8:]) != theirs.token ||
		le.Uint64(b[16:]) > maxMessage || le.Uint16(b[24:]) >= min(transferDepth, theirs.receives) || le.Uint32(b[28:]) != 0 {
		return errRdv
	}
	*r = rdvData{token: theirs.token, length: int(le.Uint64(b[16:])), gen: le.Uint32(b[4:]), slot: int(le.Uint16(b[24:])), tag: le.Uint16(b[26:])}
	if r.tag != transferTag(theirs.tags, r.slot, r.gen) {
		return errRdv
	}
	return nil
}
