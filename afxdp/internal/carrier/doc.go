// Package carrier is how frames of a link protocol travel on Ethernet: a [Path]
// writes the headers in front of a payload, [Parse] takes them off and believes
// nothing, and a [Resolver] finds the way to a peer and watches it. It knows
// nothing of AF_XDP, nor of what the payloads mean.
//
// # On the wire
//
// All integers are big-endian. A frame has no frame check sequence: the device
// adds and removes it.
//
//	kind   bytes  what
//	all    6      MAC of the next hop
//	       6      MAC of the sender
//	       0, 4   with a VLAN: 0x8100, then priority 0 and the number (16 bits)
//	       2      EtherType: udp4 0x0800, udp6 0x86dd, ether 0x88b5 unless configured
//
//	udp4   1      0x45: version, 5 words of header; when parsing, options are skipped
//	       1      DSCP (6 bits), ECN (2 bits)
//	       2      length of the IP packet: 28 + payload
//	       2      identification: 0
//	       2      0x4000: don't fragment; when parsing, fragments are refused
//	       1      time to live, 64 unless configured
//	       1      17: UDP
//	       2      checksum of this header, always checked
//	       4, 4   source, destination
//
//	udp6   4      version 6 (4 bits), DSCP (6 bits), ECN (2 bits), flow label (20 bits): a hash of
//	              addresses and ports
//	       2      length behind this header: 8 + payload
//	       1      17: UDP; when parsing, extension headers are refused
//	       1      hop limit, 64 unless configured
//	       16, 16 source, destination
//
//	udp4,  2, 2   source port, destination port
//	udp6   2      8 + payload
//	       2      checksum, or 0 where ChecksumNone asks for it
//
//	ether  1      0x42, the protocol under the shared EtherType
//	       1      1, the version
//	       2, 2   destination port, source port
//	       2      length of the payload: Ethernet fills short frames up to 60 bytes
//
//	all    n      payload
//
// The payload begins at a fixed offset: 42 bytes (udp4), 62 (udp6), 22 (ether), and
// 4 more with a VLAN. Of the MTU, 28, 48 or 8 bytes are not payload.
//
// # Next hops
//
// A [Resolver] asks the kernel, by netlink, for what a Path needs: the source
// address, the router if there is one, the next hop's MAC, and the MTU. It has the kernel
// ask for MACs that are not known, and confirm those that are, as the kernel does not see
// AF_XDP's traffic. It is told of changed routes, neighbours, addresses and device
// settings, of a device that goes down, comes up or is deleted, asks again,
// and tells its user. Only a change makes a new Path.
//
// # Integrity
//
// The UDP checksum covers payload, ports and addresses, and is 16 bits weak; kind
// ether and ChecksumNone have only Ethernet's own, which ends at each switch. What must not
// be damaged or forged needs authentication in the payload.
//
// # Limits
//
// IPv4 options and IPv6 extension headers are never sent, and one 802.1Q tag is the
// most that is understood. A frame lies in one piece of memory.
package carrier
