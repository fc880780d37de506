// Package rdv is the rendezvous of one long message, without any I/O: a sending half and a receiving half, each a
// state machine that takes events and returns what to do. Its test explores every order of events.
//
// # Messages
//
//	sender                      receiver
//	RTS  total, modes     →
//	                      ←     RTR  chunk, rail, where the bytes belong
//	  … the driver moves the chunk …
//	                      ←     DONE all      (where the sender cannot know by itself)
//
// The receiver is in charge. It cuts the message into chunks, gives each to a
// rail and asks for it with an RTR, a few at a time for each rail, so that a fast rail
// gets more of them. A chunk has a number that is used once: a second RTR
// with it, however late, does nothing.
//
// # Modes
//
//	Null          the sender sends the bytes on the small track; each fragment contains its offset
//	Put           the sender writes into a region of the receiver, whose key is in the RTR, and sends DONE for the chunk
//	Get           the receiver reads from a region of the sender, whose key is in the RTS; DONE gives the region back
//	Cooperative   both post on the large track, with rdv data in the RTR; both drivers know when it is done
//
// # Loss of a rail
//
// A chunk on a rail that breaks fails at both ends, at different times. The receiver asks for its bytes again, with a
// new number and over another rail, but not before its driver has given the memory back: so no late write can land
// after the message has been received. The sender cannot know whether the bytes of a chunk arrived before the rail
// broke. So where a message may take more than one rail it keeps the memory until the receiver sends DONE; and with a
// single rail, the loss of which ends everything, it does not have to.
//
// A message in mode Put or Get uses one rail. When that is lost, and its driver has given
// back all of the message's memory, another takes its place, in another mode if need be: modes are chosen by the chunk.
package rdv

// Mode is how the bytes of a message travel.
type Mode uint8

// The modes; each is a bit in the set of those that a sender offers.
const (
	Null Mode = iota
	Put
	Get
	Cooperative
	Modes
)

var modeNames = [Modes]string{"null", "put", "get", "cooperative"}

// String returns the mode's name.
func (m Mode) String() string {
	if m < Modes {
		return modeNames[m]
	}
	return "unknown"
}

// Set holds modes.
type Set uint8

// Has reports whether m is in the set.
func (s Set) Has(m Mode) bool { return s>>m&1 != 0 }

// With is the set with m in it.
func (s Set) With(m Mode) Set { return s | 1<<m }

// Chunk is a piece of a message on one rail.
type Chunk struct {
	ID   uint32
	Rail uint8
	Off  int // bytes from the start of the message
	Len  int
}

// MaxRails is how many rails a message can take.
const MaxRails = 8

// window is how many chunks of a message can be under way at most.
const window = 16
