//go:build linux

package carrier

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// Kind is a way to carry packets in frames; doc.go has the layout of each.
type Kind uint8

// The kinds.
const (
	UDP4  Kind = iota + 1 // UDP over IPv4
	UDP6                  // UDP over IPv6
	Ether                 // an EtherType of its own, on one L2 segment
)

// String returns "udp4", "udp6" or "ether".
func (k Kind) String() string {
	switch k {
	case UDP4:
		return "udp4"
	case UDP6:
		return "udp6"
	case Ether:
		return "ether"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Lengths of headers, in bytes.
const (
	etherLen = 14
	vlanLen  = 4
	ip4Len   = 20
	ip6Len   = 40
	udpLen   = 8
	ownLen   = 8

	// MaxHeader is the most bytes of headers in front of a payload, of any kind.
	MaxHeader = etherLen + vlanLen + ip6Len + udpLen
)

// HeaderLen returns the number of bytes in front of the payload of a frame that a Path writes, or 0 for an unknown
// kind. It depends on nothing else, so that payloads can be laid out before the peer's path is known.
func (k Kind) HeaderLen(vlan bool) int {
	n := etherLen
	if vlan {
		n += vlanLen
	}
	switch k {
	case UDP4:
		return n + ip4Len + udpLen
	case UDP6:
		return n + ip6Len + udpLen
	case Ether:
		return n + ownLen
	}
	return 0
}

// Overhead returns the number of bytes of a device's MTU that headers of the kind take: a payload has at most the MTU
// less that.
func (k Kind) Overhead() int { return max(0, k.HeaderLen(false)-etherLen) }

// maxPayload returns the largest payload in bytes that the kind's length fields allow. The MTU is nearly always less.
func (k Kind) maxPayload() int {
	switch k {
	case UDP4:
		return 65535 - ip4Len - udpLen
	case UDP6:
		return 65535 - udpLen
	case Ether:
		return 65535
	}
	return 0
}

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the usual form, 02:00:00:00:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// unicast reports whether m is the address of one station.
func (m MAC) unicast() bool { return m[0]&1 == 0 && m != MAC{} }

const (
	typeIP4  = 0x0800
	typeIP6  = 0x86dd
	typeVLAN = 0x8100

	protoUDP = 17

	// EtherType is the default of kind Ether: the first of the two "local experimental" EtherTypes of IEEE Std 802
	// (clause 9.2). Any owner of a segment may use it there, if a protocol subtype and a version follow, as in the
	// header of this package.
	EtherType = 0x88b5

	ownSubtype = 0x42
	ownVersion = 1

	defaultHopLimit = 64
)

// Checksum is the content of the checksum field of UDP.
type Checksum uint8

const (
	// ChecksumFull is the checksum of headers and payload, computed by Put.
	ChecksumFull Checksum = iota
	// ChecksumPartial is the sum of the pseudo-header alone, not inverted. The device completes it, for which its
	// transmit metadata needs Path.checksumStart and checksumOffset (xdp_metadata in the kernel's documentation of
	// AF_XDP).
	ChecksumPartial
	// ChecksumNone is zero, "not computed". Over IPv6 a receiver accepts it only if it is configured to (RFC 6935).
	ChecksumNone
)

// checksumOffset is the offset of the checksum in the UDP header.
const checksumOffset = 6

// Config describes the way to one peer.
type Config struct {
	Kind   Kind
	SrcMAC MAC // this side's
	DstMAC MAC // the next hop's

	// VLAN is the number in an 802.1Q tag, 1 to 4094; 0 sends untagged.
	VLAN uint16

	// Src and Dst are addresses and ports. Kind Ether uses only the ports. Zones are
	// ignored: the device is the zone.
	Src, Dst netip.AddrPort

	hopLimit uint8    // time to live; 0 means 64
	dscp     uint8    // differentiated services code point, 0 to 63
	ecn      uint8    // the two bits of RFC 3168: 0 not capable, 1 ECT(1), 2 ECT(0)
	Checksum Checksum // of UDP

	// etherType is for kind Ether; 0 means [EtherType].
	etherType uint16
}

// Path writes the headers in front of payloads to one peer. It is immutable: any number of goroutines may use one, and
// a new next hop needs a new Path. The zero Path writes nothing.
//
// IPv4 frames always have "don't fragment" set, because only the kernel reassembles fragments, and an AF_XDP socket
// would never get the whole packet. Their identification therefore has no meaning (RFC 6864, section 4.1) and is zero,
// as in the kernel's packets.
type Path struct {
	head   [MaxHeader]byte
	n      uint8
	udp    uint8 // offset of the UDP header
	kind   Kind
	check  Checksum
	max    int
	ipSum  uint64 // of the IPv4 header, without its length
	udpSum uint64 // of the pseudo-header and, with ChecksumFull, the ports, without lengths
}

// NewPath checks c and prepares its headers. It returns an error if an address, port or number is missing or does not
// fit the kind.
func NewPath(c Config) (Path, error) {
	if err := c.check(); err != nil {
		return Path{}, fmt.Errorf("carrier: path to %v by %v: %w", c.Dst, c.Kind, err)
	}
	p := Path{kind: c.Kind, check: c.Checksum, max: c.Kind.maxPayload()}
	b := append(p.head[:0], c.DstMAC[:]...)
	b = append(b, c.SrcMAC[:]...)
	if c.VLAN != 0 {
		b = be16(b, typeVLAN, c.VLAN)
	}
	switch c.Kind {
	case UDP4:
		b = p.appendIP4(be16(b, typeIP4), &c)
	case UDP6:
		b = p.appendIP6(be16(b, typeIP6), &c)
	case Ether:
		t := c.etherType
		if t == 0 {
			t = EtherType
		}
		b = be16(b, t, ownSubtype<<8|ownVersion, c.Dst.Port(), c.Src.Port(), 0)
	}
	p.n = uint8(len(b))
	return p, nil
}

func be16(b []byte, vs ...uint16) []byte {
	for _, v := range vs {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

func (p *Path) appendIP4(b []byte, c *Config) []byte {
	at := len(b)
	src, dst := c.Src.Addr().Unmap().As4(), c.Dst.Addr().Unmap().As4()
	b = append(b, 0x45, c.dscp<<2|c.ecn, 0, 0, 0, 0, 0x40, 0, c.hops(), protoUDP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	p.ipSum = uint64(sum(b[at:]))
	return p.appendUDP(b, b[at+12:], c)
}

func (p *Path) appendIP6(b []byte, c *Config) []byte {
	at := len(b)
	src, dst := c.Src.Addr().As16(), c.Dst.Addr().As16()
	b = append(b, 0x60|c.dscp>>2, c.dscp<<6|c.ecn<<4, 0, 0, 0, 0, protoUDP, c.hops())
	b = append(append(b, src[:]...), dst[:]...)
	// Routers may spread flows by the label instead of the ports (RFC 6437): it is a hash of the addresses and ports.
	flow := flowLabel(sum(b[at+8:]), c.Src.Port(), c.Dst.Port())
	b[at+1] |= uint8(flow >> 16)
	binary.BigEndian.PutUint16(b[at+2:], uint16(flow))
	return p.appendUDP(b, b[at+8:], c)
}

func (p *Path) appendUDP(b, addrs []byte, c *Config) []byte {
	p.udp = uint8(len(b))
	p.udpSum = pseudo(addrs, protoUDP)
	if c.Checksum == ChecksumFull {
		p.udpSum += uint64(c.Src.Port()) + uint64(c.Dst.Port())
	}
	return be16(b, c.Src.Port(), c.Dst.Port(), 0, 0)
}

func (c *Config) hops() uint8 {
	if c.hopLimit == 0 {
		return defaultHopLimit
	}
	return c.hopLimit
}

func (c *Config) check() error {
	src, dst := c.Src.Addr().Unmap(), c.Dst.Addr().Unmap()
	switch c.Kind {
	case UDP4:
		if !src.Is4() || !dst.Is4() {
			return fmt.Errorf("from %v: both must be IPv4 addresses", src)
		}
	case UDP6:
		if !src.Is6() || !dst.Is6() {
			return fmt.Errorf("from %v: both must be IPv6 addresses", src)
		}
	case Ether:
	default:
		return fmt.Errorf("unknown carrier type")
	}
	switch {
	case !c.SrcMAC.unicast() || !c.DstMAC.unicast():
		return fmt.Errorf("MAC %v to %v: both must name one station", c.SrcMAC, c.DstMAC)
	case c.Src.Port() == 0 || c.Dst.Port() == 0:
		return fmt.Errorf("ports %d to %d: neither may be 0", c.Src.Port(), c.Dst.Port())
	case c.VLAN > 4094:
		return fmt.Errorf("VLAN %d: the highest is 4094", c.VLAN)
	case c.dscp > 63:
		return fmt.Errorf("DSCP %d: the highest is 63", c.dscp)
	case c.ecn > 3:
		return fmt.Errorf("ECN %d: the highest is 3", c.ecn)
	case c.Checksum > ChecksumNone:
		return fmt.Errorf("checksum mode %d: there is no such mode", c.Checksum)
	case !ownType(c.etherType):
		return fmt.Errorf("EtherType %#04x: it belongs to another protocol", c.etherType)
	}
	return nil
}

// ownType reports whether kind Ether may use t: a type below 0x600 would be a length, and Parse takes the excluded ones
// for other protocols.
func ownType(t uint16) bool {
	return t == 0 || t >= 0x600 && t != typeIP4 && t != typeIP6 && t != typeVLAN
}

// HeaderLen returns the offset of the payload in a frame, in bytes.
func (p *Path) HeaderLen() int { return int(p.n) }

// checksumStart returns the offset of the UDP header in bytes, where the sum of a device that completes checksums
// begins. It is 0 for kind Ether.
func (p *Path) checksumStart() int { return int(p.udp) }

// Put writes the headers of a frame whose payload is already in frame[HeaderLen():HeaderLen()+payload], and returns the
// length of the frame. It writes nothing and returns 0 if the payload exceeds the frame, is negative, or is above
// Kind.maxPayload. It does not check the MTU and does not pad: devices and drivers pad short frames.
func (p *Path) Put(frame []byte, payload int) int {
	n := int(p.n)
	if uint(payload) > uint(p.max) || payload > len(frame)-n || n == 0 {
		return 0
	}
	frame = frame[:n+payload]
	copy(frame, p.head[:n])
	if p.kind == Ether {
		binary.BigEndian.PutUint16(frame[n-2:], uint16(payload))
		return len(frame)
	}
	length := uint64(payload + udpLen)
	udp := frame[p.udp:]
	ip := frame[p.udp-ip4Len:]
	if p.kind == UDP4 {
		total := length + ip4Len
		binary.BigEndian.PutUint16(ip[2:], uint16(total))
		binary.BigEndian.PutUint16(ip[10:], ^fold(p.ipSum+total))
	} else {
		ip = frame[p.udp-ip6Len:]
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	switch p.check {
	case ChecksumFull:
		c := ^fold(p.udpSum + 2*length + uint64(sum(udp[udpLen:])))
		if c == 0 {
			c = 0xffff // zero would mean "not computed"; both are zero in ones' complement (RFC 768)
		}
		binary.BigEndian.PutUint16(udp[checksumOffset:], c)
	case ChecksumPartial:
		binary.BigEndian.PutUint16(udp[checksumOffset:], fold(p.udpSum+length))
	}
	return len(frame)
}

func flowLabel(addrs, src, dst uint16) uint32 {
	return uint32(mix(uint64(addrs)<<32|uint64(src)<<16|uint64(dst)) >> 44)
}

// mix spreads the bits of x over all of the result: the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
