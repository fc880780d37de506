//go:build linux

package xsk

// An owner is the place of a chunk, which is in exactly one.
type owner uint32

const (
	byUser     owner = iota
	byFill           // in the fill ring, in the kernel, or in the receive ring
	byTransmit       // in the transmit ring, in the kernel, or in the completion ring
)

func (o owner) String() string {
	switch o {
	case byUser:
		return "the user"
	case byFill:
		return "the fill and receive rings"
	case byTransmit:
		return "the transmit and completion rings"
	}
	return "nobody"
}
