//go:build linux

package carrier

import (
	"encoding/binary"
	"net/netip"
)

// Verify is how Parse checks a UDP checksum.
type Verify uint8

const (
	// VerifyFull computes the checksum. It accepts zero, "not computed", over IPv4 alone.
	VerifyFull Verify = iota
	// VerifyPartial also accepts the sum of the pseudo-header alone. The kernel of a peer on the same machine (veth)
	// leaves that for a device to complete, but the frame passes no device.
	VerifyPartial
)

// Filter describes the frames to accept. The zero value of a field accepts any; Kinds must be set. Parse only reads a
// Filter, so any number of goroutines may share one.
type Filter struct {
	Kinds [Ether + 1]bool // kinds to accept, as in Kinds: [...]bool{carrier.UDP4: true}

	MAC    MAC    // destination; a device in promiscuous mode shows frames for others
	Port   uint16 // destination
	Verify Verify // of UDP
}

// Arrived is an accepted frame.
type Arrived struct {
	Payload []byte // aliases the frame (its first piece), without padding; its capacity ends with the frame's
	Src     netip.AddrPort
	Dst     netip.AddrPort // kind Ether has ports, and no addresses
	SrcMAC  MAC
	Kind    Kind
}

// Parse finds the payload of a frame, which begins with its Ethernet header and has no frame check sequence. Any bytes
// may be passed: Parse checks all values of headers before it uses them. The frame must not change during the call.
//
// An 802.1Q tag may have a priority, but no number of a VLAN. An IPv4 header may have options, which are ignored.
// Fragments and IPv6 extension headers are refused. Bytes behind the UDP datagram or the IP packet are cut off.
//
// The result is only valid with code [OK].
func Parse(frame []byte, want *Filter) (a Arrived, code Code) { return parse(frame, nil, want) }

// ParsePieces is Parse for a frame that continues in further pieces, none of them empty. The headers, and the begin of
// the payload, lie in the first piece; the rest of the payload is all of rest. Such a frame has no padding: its lengths
// must match its size exactly.
func ParsePieces(first []byte, rest [][]byte, want *Filter) (a Arrived, code Code) {
	return parse(first, rest, want)
}

// size returns the number of bytes in pieces.
func size(rest [][]byte) (n int) {
	for _, r := range rest {
		n += len(r)
	}
	return n
}

func parse(frame []byte, rest [][]byte, want *Filter) (a Arrived, code Code) {
	if len(frame) < etherLen {
		return a, BadLength
	}
	if want.MAC != (MAC{}) && MAC(frame) != want.MAC {
		return a, OtherMAC
	}
	a.SrcMAC = MAC(frame[6:])
	t, b := binary.BigEndian.Uint16(frame[12:]), frame[etherLen:]
	if t == typeVLAN {
		if len(b) < vlanLen {
			return a, BadLength
		}
		if binary.BigEndian.Uint16(b)&0xfff != 0 {
			return a, OtherVLAN
		}
		t, b = binary.BigEndian.Uint16(b[2:]), b[vlanLen:]
	}
	switch {
	case t == typeIP4 && want.Kinds[UDP4]:
		code = a.parseIP4(b, rest, want)
	case t == typeIP6 && want.Kinds[UDP6]:
		code = a.parseIP6(b, rest, want)
	case t == EtherType && want.Kinds[Ether]:
		code = a.parseOwn(b, rest, want)
	default:
		return a, OtherType
	}
	if code == OK && !a.SrcMAC.unicast() {
		code = BadSource
	}
	return a, code
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (a *Arrived) parseIP4(b []byte, rest [][]byte, want *Filter) Code {
	if len(b) < ip4Len {
		return BadLength
	}
	n, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0]>>4 != 4:
		return BadVersion
	case n < ip4Len || n > total || n > len(b) || !whole(total, len(b), rest):
		return BadLength
	case b[9] != protoUDP:
		return OtherProtocol
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		return BadFragment
	}
	if sum(b[:n]) != 0xffff {
		return BadHeaderSum
	}
	// 0/8 is "this network", 127/8 the host itself, 224/4 groups (RFC 1122, section 3.2.1.3).
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if b[12] == 0 || b[12] == 127 || b[12]>>4 == 14 || src == broadcast4 {
		return BadSource
	}
	a.Kind = UDP4
	return a.parseUDP(b[n:min(total, len(b))], rest, b[12:20], src, dst, want)
}

const (
	nextHopByHop = 0
	nextFragment = 44
)

func (a *Arrived) parseIP6(b []byte, rest [][]byte, want *Filter) Code {
	if len(b) < ip6Len {
		return BadLength
	}
	length, next := int(binary.BigEndian.Uint16(b[4:])), b[6]
	switch {
	case b[0]>>4 != 6:
		return BadVersion
	case length == 0 && next != nextHopByHop || !whole(length, len(b)-ip6Len, rest): // 0 is a jumbogram's
		return BadLength
	case next == nextFragment:
		return BadFragment
	case next != protoUDP:
		return OtherProtocol
	}
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	// An IPv4-mapped address represents an IPv4 one inside a host (RFC 4291, section 2.5.5.2); the
	// kernel drops packets from one, too.
	if src.IsMulticast() || src.IsLoopback() || src.IsUnspecified() || src.Is4In6() {
		return BadSource
	}
	a.Kind = UDP6
	return a.parseUDP(b[ip6Len:min(ip6Len+length, len(b))], rest, b[8:40], src, dst, want)
}

// whole reports whether length bytes lie in n bytes or, for a frame in pieces, are exactly its n bytes and rest.
func whole(length, n int, rest [][]byte) bool {
	return length <= n && rest == nil || rest != nil && length == n+size(rest)
}

// parseUDP parses the payload of an IP packet.
func (a *Arrived) parseUDP(b []byte, rest [][]byte, addrs []byte, src, dst netip.Addr, want *Filter) Code {
	if len(b) < udpLen {
		return BadLength
	}
	from, to := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if want.Port != 0 && to != want.Port {
		return OtherPort
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length < udpLen || !whole(length, len(b), rest) {
		return BadLength
	}
	if from == 0 || to == 0 {
		return BadSource
	}
	length = min(length, len(b))
	b = b[:length]
	if code := checkUDP(b, rest, addrs, want, a.Kind); code != OK {
		return code
	}
	a.Src, a.Dst, a.Payload = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to), b[udpLen:]
	return OK
}

func checkUDP(b []byte, rest [][]byte, addrs []byte, want *Filter, kind Kind) Code {
	given := binary.BigEndian.Uint16(b[checksumOffset:])
	if given == 0 {
		if kind == UDP6 {
			return BadNoSum
		}
		return OK
	}
	over := pseudo(addrs, protoUDP) + uint64(len(b)+size(rest))
	switch {
	case fold(over+sumPieces(b, rest)) == 0xffff:
		return OK
	case want.Verify == VerifyPartial && given == fold(over):
		return OK
	}
	return BadSum
}

func (a *Arrived) parseOwn(b []byte, rest [][]byte, want *Filter) Code {
	if len(b) < ownLen {
		return BadLength
	}
	to, from := binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[4:])
	length := int(binary.BigEndian.Uint16(b[6:]))
	switch {
	case b[0] != ownSubtype:
		return OtherProtocol
	case b[1] != ownVersion:
		return BadVersion
	case want.Port != 0 && to != want.Port:
		return OtherPort
	case !whole(length, len(b)-ownLen, rest):
		return BadLength
	case from == 0 || to == 0:
		return BadSource
	}
	a.Kind = Ether
	a.Src, a.Dst = netip.AddrPortFrom(netip.Addr{}, from), netip.AddrPortFrom(netip.Addr{}, to)
	length = min(length, len(b)-ownLen)
	a.Payload = b[ownLen : ownLen+length]
	return OK
}
