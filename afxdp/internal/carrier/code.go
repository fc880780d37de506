//go:build linux

package carrier

import "fmt"

// Code is the reason for which a frame was not accepted. Codes are small numbers, so that they can be indexes of
// counters; [Codes] is their number.
type Code uint8

// The codes named Other mean that the frame is for another receiver; the other codes mean that it is damaged or forged.
const (
	OK            Code = iota
	OtherMAC           // destination is another MAC
	OtherVLAN          // the tag of a VLAN
	OtherType          // an EtherType, or a kind, that the filter does not accept
	OtherProtocol      // not UDP, or behind IPv6 extension headers
	OtherPort          // destination is another port
	BadSource          // an impossible source: multicast, loopback, unspecified, port 0
	BadVersion         // the IP version contradicts the EtherType, or an unknown version of kind Ether
	BadLength          // shorter than in its headers, or headers that contradict each other
	BadFragment        // a fragment, which only the kernel could reassemble
	BadHeaderSum       // a wrong checksum of the IPv4 header
	BadSum             // a wrong UDP checksum
	BadNoSum           // UDP over IPv6 without a checksum

	Codes // the number of codes
)

var codeNames = [Codes]string{
	OK: "ok", OtherMAC: "other MAC", OtherVLAN: "other VLAN", OtherType: "other EtherType",
	OtherProtocol: "other protocol", OtherPort: "other port",
	BadSource: "impossible source", BadVersion: "wrong version", BadLength: "wrong length",
	BadFragment: "fragment", BadHeaderSum: "wrong IPv4 header checksum", BadSum: "wrong UDP checksum",
	BadNoSum: "no UDP checksum over IPv6",
}

// String describes the code in two to four words.
func (c Code) String() string {
	if c < Codes {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Foreign reports whether the frame is for another receiver. Its headers are well-formed as far as they were read.
func (c Code) Foreign() bool { return c >= OtherMAC && c <= OtherPort }
