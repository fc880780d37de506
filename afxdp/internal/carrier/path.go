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

	// MaxHeader is the most bytes of headers in front of a payload, of any kind, with a tag.
	MaxHeader = etherLen + vlanLen + ip6Len + udpLen
)

// HeaderLen returns the number of bytes in front of the payload of a frame that a Path writes or, if tagged, of one that
// Parse accepts with a tag; or 0 for an unknown kind. It depends on nothing else, so that payloads can be laid out before
// the peer's path is known.
func (k Kind) HeaderLen(tagged bool) int {
	n := etherLen
	if tagged {
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

	// EtherType is that of kind Ether: the first of the two "local experimental" EtherTypes of IEEE Std 802
	// (clause 9.2). Any owner of a segment may use it there, if a protocol subtype and a version follow, as in the
	// header of this package.
	EtherType = 0x88b5

	ownSubtype = 0x42
	ownVersion = 1

	hopLimit = 64 // time to live
)

// Checksum is the content of the checksum field of UDP.
type Checksum uint8

const (
	// ChecksumFull is the checksum of headers and payload, computed by Put.
	ChecksumFull Checksum = iota
	// ChecksumNone is zero, "not computed", over IPv4 alone.
	ChecksumNone
)

// checksumOffset is the offset of the checksum in the UDP header.
const checksumOffset = 6

// Config describes the way to one peer.
type Config struct {
	Kind   Kind
	SrcMAC MAC // this side's
	DstMAC MAC // the next hop's

	// Src and Dst are addresses and ports. Kind Ether uses only the ports. Zones are
	// ignored: the device is the zone.
	Src, Dst netip.AddrPort

	Checksum Checksum // of UDP
}

// Path writes the headers in front of payloads to one peer. It is immutable: any number of goroutines may use one, and
// a new next hop needs a new Path. The zero Path writes nothing.
//
// IPv4 frames always have "don't fragment" set, because only the kernel reassembles fragments, and an AF_XDP socket
// would never get the whole packet. Their identification therefore has no meaning (RFC 6864, section 4.1) and is zero,
// as in the kernel's packets.
type Path struct {
	head   [MaxHeader - vlanLen]byte
	n      uint8
	udp    uint8 // offset of the UDP header
	kind   Kind
	check  Checksum
	max    int
	ipSum  uint64 // of the IPv4 header, without its length
	udpSum uint64 // of the pseudo-header and the ports, without lengths
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
	switch c.Kind {
	case UDP4:
		b = p.appendIP4(be16(b, typeIP4), &c)
	case UDP6:
		b = p.appendIP6(be16(b, typeIP6), &c)
	case Ether:
		b = be16(b, EtherType, ownSubtype<<8|ownVersion, c.Dst.Port(), c.Src.Port(), 0)
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
	b = append(b, 0x45, 0, 0, 0, 0, 0, 0x40, 0, hopLimit, protoUDP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	p.ipSum = uint64(sum(b[at:]))
	return p.appendUDP(b, b[at+12:], c)
}

func (p *Path) appendIP6(b []byte, c *Config) []byte {
	at := len(b)
	src, dst := c.Src.Addr().As16(), c.Dst.Addr().As16()
	b = append(b, 0x60, 0, 0, 0, 0, 0, protoUDP, hopLimit)
	b = append(append(b, src[:]...), dst[:]...)
	// Routers may spread flows by the label instead of the ports (RFC 6437): it is a hash of the addresses and ports.
	flow := flowLabel(sum(b[at+8:]), c.Src.Port(), c.Dst.Port())
	b[at+1] |= uint8(flow >> 16)
	binary.BigEndian.PutUint16(b[at+2:], uint16(flow))
	return p.appendUDP(b, b[at+8:], c)
}

func (p *Path) appendUDP(b, addrs []byte, c *Config) []byte {
	p.udp = uint8(len(b))
	p.udpSum = pseudo(addrs, protoUDP) + uint64(c.Src.Port()) + uint64(c.Dst.Port())
	return be16(b, c.Src.Port(), c.Dst.Port(), 0, 0)
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
	case c.Checksum != ChecksumFull && c.Kind == UDP6:
		return fmt.Errorf("a receiver refuses UDP over IPv6 without a checksum")
	}
	return nil
}

// HeaderLen returns the offset of the payload in a frame, in bytes.
func (p *Path) HeaderLen() int { return int(p.n) }

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
	if p.check == ChecksumFull {
		c := ^fold(p.udpSum + 2*length + uint64(sum(udp[udpLen:])))
		if c == 0 {
			c = 0xffff // zero would mean "not computed"; both are zero in ones' complement (RFC 768)
		}
		binary.BigEndian.PutUint16(udp[checksumOffset:], c)
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
