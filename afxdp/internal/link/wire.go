package link

import (
	"encoding/binary"
	"hash/crc32"
)

// version is the version of the wire format. Endpoints of different versions do not connect.
const version = 3

// Sizes of packets, in bytes.
const (
	// HeaderSize is the offset of the payload in an ordered fragment.
	HeaderSize = 56
	// placedHeaderSize is the offset of the payload in a placed fragment.
	placedHeaderSize = 80
	// MinMTU is the least value of Config.MTU.
	MinMTU = 256
	// maxMTU is the largest value of Config.MTU: the size field has 16 bits.
	maxMTU = 65535
	// maxHello is the most bytes of hello that each side can send when connecting.
	maxHello = 63

	ackSize  = 48 // header of a packet without data
	tagSize  = 16 // of AES-GCM, at the end
	maxWords = 64 // words of the bitmap in an acknowledgement
)

// kind is the type of a packet.
type kind uint8

const (
	kindInit kind = iota + 1 // dialer: asks for a connection
	kindCookie
	kindAccept
	kindReject
	kindConnectRequest // listener: asks for an Init

	kindData // the kinds from here to kindClosed belong to a connection
	kindAck
	kindPing   // asks for an acknowledgement at once
	kindClose  // seq is the number of fragments sent before it
	kindClosed // answers a Close
	kindReset  // answers a packet of an unknown connection: ask the peer whether it is gone

	kindHere  // answers an Init or a connect request: the endpoint is there, and has not called yet
	kindQuery // asks whether the endpoint still has a connection
	kindGone  // answers a Query: the connection does not exist
)

// Flags of packets of a connection.
const (
	flagMore   = 1 << iota // another fragment of the message follows
	flagPlaced             // a placed fragment
	flagPhase              // the current of two keys
	flagSealed             // encrypted
	flagAbort              // of kindClose: not in order
	flagAsk                // of kindData: acknowledge at once
	flagPart               // of kindData: a part of a fragment
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the beginning of every packet of a connection.
type header struct {
	kind   kind
	flags  uint8
	conn   uint64
	pn     uint64
	cum    uint64 // all fragments below it have arrived
	credit uint32 // low half of the first unit that may not be sent
	stamp  uint32 // sending time, units of 1024 ns
	echo   uint32 // stamp of the newest packet that has arrived; 0: none
	delay  uint16 // time since its arrival, units of 1024 ns
	words  uint8  // words of the bitmap at the end, whose bit k is fragment cum+1+k
	dups   uint8  // fragments that arrived again, modulo 256
}

// Layout, in little-endian order:
//
//	 0 kind u8, flags u8, size u16, crc32c u32 (0 where sealed)
//	 8 conn u64, 16 pn u64, 24 cum u64
//	32 credit u32, stamp u32, echo u32, delay u16, words u8, dups u8
//	48 seq u64 (data, close)
//	56 length u16 of the fragment's payload, part u8, 5 zero bytes (part); what follows is 8 bytes farther
//	56 tag u64, offset u64, total u64 (placed)

func putHeader(b []byte, h *header) {
	_ = b[ackSize-1]
	b[0], b[1] = byte(h.kind), h.flags
	le.PutUint64(b[8:], h.conn)
	le.PutUint64(b[16:], h.pn)
	le.PutUint64(b[24:], h.cum)
	le.PutUint32(b[32:], h.credit)
	le.PutUint32(b[36:], h.stamp)
	le.PutUint32(b[40:], h.echo)
	le.PutUint16(b[44:], h.delay)
	b[46], b[47] = h.words, h.dups
}

// parseHeader reads the header of a packet whose size was checked.
func parseHeader(b []byte, h *header) {
	_ = b[ackSize-1]
	h.kind, h.flags = kind(b[0]), b[1]
	h.conn = le.Uint64(b[8:])
	h.pn = le.Uint64(b[16:])
	h.cum = le.Uint64(b[24:])
	h.credit = le.Uint32(b[32:])
	h.stamp = le.Uint32(b[36:])
	h.echo = le.Uint32(b[40:])
	h.delay = le.Uint16(b[44:])
	h.words, h.dups = b[46], b[47]
}

// sum returns the checksum of a packet, whose bytes may continue in rest. It covers all but the checksum field.
func sum(b []byte, rest ...[]byte) uint32 {
	s := crc32.Update(le.Uint32(b), castagnoli, b[8:])
	for _, r := range rest {
		s = crc32.Update(s, castagnoli, r)
	}
	return s
}

// finishPacket writes size and checksum.
func finishPacket(b []byte) {
	le.PutUint16(b[2:], uint16(len(b)))
	le.PutUint32(b[4:], sum(b))
}

// sized returns the packet without padding, or nil if its size field is impossible.
func sized(b []byte) []byte {
	if len(b) < 24 {
		return nil
	}
	n := int(le.Uint16(b[2:]))
	if n < 24 || n > len(b) {
		return nil
	}
	return b[:n:n]
}

// expand returns the 64-bit number nearest to base whose low half is low.
func expand(base uint64, low uint32) uint64 { return base + uint64(int64(int32(low-uint32(base)))) }

// parse reads the header of a placed fragment, of which more bytes may follow in further pieces, and reports whether it
// lies within its message.
func (p *Placement) parse(b []byte, more int) bool {
	if len(b) < placedHeaderSize {
		return false
	}
	p.Tag, p.Offset, p.Total, p.Data = le.Uint64(b[56:]), le.Uint64(b[64:]), le.Uint64(b[72:]), b[placedHeaderSize:]
	return p.Offset <= p.Total && uint64(len(p.Data)+more) <= p.Total-p.Offset
}

// units returns the credit that a packet of n bytes, without its bitmap, takes: one for each frame of unit bytes that
// it occupies.
func units(n, unit int) int {
	if n <= unit {
		return 1
	}
	return (n + unit - 1) / unit
}

// Offsets in greetings (Init and Accept). Both have the same size, so that no answer is longer than the packet that it
// answers:
//
//	  0 kind u8, version u8, size u16, crc32c u32
//	  8 to u64 (Init: endpoint; Accept: the dialer's connection), from u64 (endpoint)
//	 24 id u64 (connection), 32 nonce
//	 48 mtu u32, credit u32, options u32, longest u16, window u16
//	 64 length of hello u8, hello
//	128 cookie (Accept: zero), 152 sent u64 (Accept: zero), 160 mac
const (
	greetingSize = 176
	nonceSize    = 16
	cookieSize   = 24
	macSize      = 16

	atHello  = 64
	atCookie = 128
	atSent   = 152
	atMAC    = 160

	cookiePacketSize = 16 + cookieSize
	smallPacketSize  = 40 // Reject, Reset
	noteSize         = 56 // connect request, Here, Query, Gone
	atNoteMAC        = 40
)

// Bits of a greeting's options.
const (
	optEncrypt = 1 << iota // packets are to be encrypted
	optParts               // the sender of the greeting takes parts of fragments
)

// greeting is an Init or Accept.
type greeting struct {
	kind    kind
	version uint8
	to      uint64
	from    uint64
	id      uint64
	nonce   [nonceSize]byte
	mtu     uint32
	credit  uint32
	options uint32
	longest uint16 // bytes of the largest placed packet
	window  uint16 // fragments that may be under way
	sent    uint64 // of an Init: sending time by the sender's clock
	hello   []byte
}

// put writes all fields but cookie, MAC and checksum.
func (g *greeting) put(b []byte) {
	clear(b[:greetingSize])
	b[0], b[1] = byte(g.kind), g.version
	le.PutUint16(b[2:], greetingSize)
	le.PutUint64(b[8:], g.to)
	le.PutUint64(b[16:], g.from)
	le.PutUint64(b[24:], g.id)
	copy(b[32:48], g.nonce[:])
	le.PutUint32(b[48:], g.mtu)
	le.PutUint32(b[52:], g.credit)
	le.PutUint32(b[56:], g.options)
	le.PutUint16(b[60:], g.longest)
	le.PutUint16(b[62:], g.window)
	b[atHello] = byte(len(g.hello))
	copy(b[atHello+1:atCookie], g.hello)
	le.PutUint64(b[atSent:], g.sent)
}

// parse reads a greeting whose size was checked, and reports whether it is valid. hello aliases b.
func (g *greeting) parse(b []byte) bool {
	g.kind, g.version = kind(b[0]), b[1]
	g.to, g.from, g.id = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	copy(g.nonce[:], b[32:48])
	g.mtu, g.credit = le.Uint32(b[48:]), le.Uint32(b[52:])
	g.options, g.longest, g.window = le.Uint32(b[56:]), le.Uint16(b[60:]), le.Uint16(b[62:])
	g.sent = le.Uint64(b[atSent:])
	n := int(b[atHello])
	if n > maxHello || g.mtu < MinMTU || g.mtu > maxMTU || uint32(g.longest) < g.mtu || g.id == 0 || g.credit == 0 || g.window == 0 {
		return false
	}
	g.hello = b[atHello+1 : atHello+1+n]
	return true
}

// rejectCode is the reason for a Reject.
type rejectCode uint8

const (
	rejectAuth    rejectCode = iota + 1 // the MAC is wrong
	rejectVersion                       // the version is another one
	rejectGone                          // the Init is for another endpoint
)

// putSmall writes a Reject, whose to is the dialer's connection, or a Reset, whose to is the connection that the
// answered packet named.
func putSmall(b []byte, k kind, to, from uint64, code uint8) []byte {
	b = b[:smallPacketSize]
	clear(b)
	b[0], b[1] = byte(k), version
	le.PutUint64(b[8:], to)
	le.PutUint64(b[16:], from)
	b[32] = code
	finishPacket(b)
	return b
}

// note is a connect request, Here, Query or Gone: a short packet between endpoints, outside of connections, with a MAC.
// An answer repeats conn and sent of the packet that it answers, so that a replayed answer is recognised.
type note struct {
	kind kind
	to   uint64 // endpoint
	from uint64 // endpoint
	conn uint64 // Query, Gone: id at the endpoint that is asked; connect request, Here: the caller's id
	sent uint64 // sending time by the clock of the endpoint that asks
}

// put writes all fields but MAC and checksum.
func (n *note) put(b []byte) {
	b[0], b[1] = byte(n.kind), version
	le.PutUint16(b[2:], noteSize)
	le.PutUint64(b[8:], n.to)
	le.PutUint64(b[16:], n.from)
	le.PutUint64(b[24:], n.conn)
	le.PutUint64(b[32:], n.sent)
}

// parse reads a note whose size was checked.
func (n *note) parse(b []byte) {
	n.kind = kind(b[0])
	n.to, n.from, n.conn, n.sent = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
}
