package carrier

import "fmt"

// Code says why a frame was not taken. It is a small number, so that it can be the
// index of a counter: [Codes] is how many there are.
type Code uint8

// The codes. Those named Other mean a frame that is somebody else's, the rest one
// that is damaged or forged.
const (
	OK            Code = iota
	OtherMAC           // sent to another MAC
	OtherVLAN          // of another VLAN, tagged where none is expected, or untagged
	OtherType          // of an EtherType, or a kind, that is not wanted
	OtherProtocol      // not UDP, or behind IPv6 extension headers
	OtherAddr          // sent to another IP address
	OtherPort          // sent to another port
	BadSource          // a source that nobody can be: multicast, loopback, unspecified, port 0
	BadVersion         // not the version of IP that the EtherType says, or not ours
	BadLength          // shorter than its headers say, or headers that contradict each other
	BadFragment        // a fragment; the kernel puts those together
	BadHeaderSum       // a wrong checksum of the IPv4 header
	BadSum             // a wrong UDP checksum
	BadNoSum           // UDP over IPv6 without a checksum

	Codes // the number of codes
)

var codeNames = [Codes]string{
	OK: "ok", OtherMAC: "other MAC", OtherVLAN: "other VLAN", OtherType: "other EtherType",
	OtherProtocol: "other protocol", OtherAddr: "other address", OtherPort: "other port",
	BadSource: "impossible source", BadVersion: "wrong version", BadLength: "wrong length",
	BadFragment: "fragment", BadHeaderSum: "wrong IPv4 header checksum", BadSum: "wrong UDP checksum",
	BadNoSum: "no UDP checksum over IPv6",
}

// String is what the code means, in two to four words.
func (c Code) String() string {
	if c < Codes {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Foreign says that the frame is well-formed as far as was looked, but somebody else's.
func (c Code) Foreign() bool { return c >= OtherMAC && c <= OtherPort }
