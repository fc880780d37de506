// Package carrier carries the packets of a link protocol in Ethernet frames. A [Path] writes the headers in front of a
// payload. [Parse] checks and removes them, and trusts none of their values. A [Resolver] finds the way to a peer and
// watches it. The package does not depend on AF_XDP or on the contents of payloads.
//
// # On the wire
//
// All integers are big-endian. A frame has no frame check sequence: the device
// adds and removes it.
//
//	kind   bytes  what
//	all    6      MAC of the next hop
//	       6      MAC of the sender
//	       0, 4   when parsing, a tag without the number of a VLAN: 0x8100, priority (4 bits), 0 (12 bits)
//	       2      EtherType: udp4 0x0800, udp6 0x86dd, ether 0x88b5
//
//	udp4   1      0x45: version, 5 words of header; when parsing, options are skipped
//	       1      DSCP and ECN: 0
//	       2      length of the IP packet: 28 + payload
//	       2      identification: 0
//	       2      0x4000: don't fragment; when parsing, fragments are refused
//	       1      time to live: 64
//	       1      17: UDP
//	       2      checksum of this header, always checked
//	       4, 4   source, destination
//
//	udp6   4      version 6 (4 bits), DSCP and ECN 0 (8 bits), flow label (20 bits): a hash of
//	              addresses and ports
//	       2      length behind this header: 8 + payload
//	       1      17: UDP; when parsing, extension headers are refused
//	       1      hop limit: 64
//	       16, 16 source, destination
//
//	udp4,  2, 2   source port, destination port
//	udp6   2      8 + payload
//	       2      checksum, or over IPv4 0 with ChecksumNone
//
//	ether  1      0x42, the protocol under the shared EtherType
//	       1      1, the version
//	       2, 2   destination port, source port
//	       2      length of the payload: Ethernet fills short frames up to 60 bytes
//
//	all    n      payload
//
// The payload begins at a fixed offset: 42 bytes (udp4), 62 (udp6), 22 (ether), and
// 4 more with a tag. Of the MTU, 28, 48 or 8 bytes are not payload.
//
// # Next hops
//
// A [Resolver] asks the kernel, by netlink, for the data of a Path: the source address, the router if there is one, the
// next hop's MAC, and the MTU. It makes the kernel ask for unknown MACs and confirm known ones, because the kernel does
// not see AF_XDP's traffic. It subscribes to changes of routes, neighbours, addresses and device settings, and to
// devices that go down, come up or are deleted. After such an event it asks again, and calls its user. Only a change
// makes a new Path.
//
// # Integrity
//
// The UDP checksum covers payload, ports and addresses, and is 16 bits weak; kind ether and ChecksumNone have only
// Ethernet's own checksum, which each switch computes anew. Payloads that must not be damaged or forged need
// authentication of their own.
//
// # Limits
//
// IPv4 options and IPv6 extension headers are never sent, and neither are 802.1Q tags. At most one is accepted. Put writes into one piece
// of memory; only [ParsePieces] accepts several.
package carrier
