// Package header lays out the messages that sessions exchange on the small
// track of a rail. Each is one packet of the driver: 16 bytes that all have,
// then what its kind has, then data. Integers are little-endian. The bytes come
// from another process: every length is checked against what is there.
//
//	 0  kind    u8
//	 1  flags   u8
//	 2  extra   u16  bytes of the user's header
//	 4  length  u32  bytes of data
//	 8  tag     u64  the message's tag, or the id of the receiving half
//	16  body         by kind, of fixed size
//	    extra bytes, then length bytes: nothing follows
package header

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of these layouts; peers send it in Hello.
const Version = 7

// Size of what all messages begin with, in bytes.
const Size = 16

// Kind is the kind of a message.
type Kind uint8

// The kinds.
const (
	Hello  Kind = iota + 1 // the first on a connection: identifies the sender; extra holds the version
	Eager                  // a message with its data
	Sync                   // the same, to be acknowledged when it is matched
	Ack                    // a synchronous message was matched; tag: its id
	RTS                    // a long message is ready to be sent
	RTR                    // a chunk of it can be received; tag: the sender's id
	Cookie                 // new rdv data or key of a chunk; tag: the id of the half that receives it
	Done                   // a chunk, or all, is done or has failed; tag likewise
	Frag                   // a piece of a long message, in mode Null; tag: the receiver's id
	AM                     // an active message that travels at once; the low 8 bits of tag are the handler
	Op                     // a one-sided operation to be carried out by the peer's CPU
	Reply                  // its outcome; tag: the operation's id
	Bye                    // no more messages come until the next connection
	Seen                   // tag: how many numbered messages of this connection have come
	Resume                 // the first on another rail; tag: as Seen; flags: rails that are lost, a bit each
	Pause                  // nothing new begins until the next connection; a Bye that follows is the end of nothing
	Leave                  // messages that are not matched by now fail, nothing new begins on this connection, and a Bye follows
	Grant                  // how much the receiver of the grant may send that has to be stored here
	kinds
)

var names = [kinds]string{
	Hello: "hello", Eager: "eager", Sync: "sync", Ack: "ack", RTS: "rts", RTR: "rtr", Cookie: "cookie", Done: "done",
	Frag: "frag", AM: "am", Op: "op", Reply: "reply", Bye: "bye", Seen: "seen", Resume: "resume", Pause: "pause", Leave: "leave", Grant: "grant",
}

// String returns the kind's name.
func (k Kind) String() string {
	if k < kinds && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Numbered reports whether messages of the kind are counted by package relay: all but
// those that serve a connection itself.
func (k Kind) Numbered() bool { return k != Hello && k != Seen && k != Resume && k != Grant }

// body is the size of what a kind has between header and data.
var body = [kinds]int{
	Hello: helloSize, Sync: 8, RTS: rtsSize, RTR: rtrSize, Cookie: 8, Done: 8, Frag: 8, Op: opSize, Reply: 16, Grant: grantSize,
}

// BodySize is the size in bytes of what a kind has between header and data.
func BodySize(k Kind) int { return body[k] }

// Header is what all messages begin with.
type Header struct {
	Kind   Kind
	Flags  uint8
	Extra  uint16
	Length uint32
	Tag    uint64
}

// ErrMalformed is the error of every invalid message.
var ErrMalformed = errors.New("malformed message")

var le = binary.LittleEndian

// Put writes h to the first Size bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[Size-1]
	le.PutUint64(b, uint64(h.Kind)|uint64(h.Flags)<<8|uint64(h.Extra)<<16|uint64(h.Length)<<32)
	le.PutUint64(b[8:], h.Tag)
}

// PutEager writes the header of an eager message of n bytes without user header and flags.
func PutEager(b []byte, n int, tag uint64) {
	_ = b[Size-1]
	le.PutUint64(b, uint64(Eager)|uint64(n)<<32)
	le.PutUint64(b[8:], tag)
}

// IsEager is Parse for the most frequent message: it reports whether b is what
// PutEager has written, and data, and nothing more.
func IsEager(b []byte) (tag uint64, ok bool) {
	if len(b) < Size || le.Uint64(b) != uint64(Eager)|uint64(len(b)-Size)<<32 {
		return 0, false
	}
	return le.Uint64(b[8:]), true
}

// Parse reads the header of the message b. If it succeeds, b has the header, the body, then Extra and Length bytes, and
// nothing more. Each byte is read once, as b may be memory that the peer can write.
func (h *Header) Parse(b []byte) error {
	if len(b) < Size {
		return fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	w := le.Uint64(b)
	h.Kind, h.Flags, h.Extra, h.Length = Kind(w), uint8(w>>8), uint16(w>>16), uint32(w>>32)
	h.Tag = le.Uint64(b[8:])
	if h.Kind >= kinds || h.Kind == 0 {
		return fmt.Errorf("%w: %v", ErrMalformed, h.Kind)
	}
	extra := int(h.Extra)
	if h.Kind == Hello {
		extra = 0
	}
	if Size+body[h.Kind]+extra+int(h.Length) != len(b) {
		return fmt.Errorf("%w: %v of %d bytes has lengths %d and %d", ErrMalformed, h.Kind, len(b), h.Extra, h.Length)
	}
	return nil
}

// Body is what lies between header and data of a message that was parsed.
func (h *Header) Body(b []byte) []byte { return b[Size : Size+body[h.Kind]] }

// Data returns the user's header and the data of a message that was parsed.
func (h *Header) Data(b []byte) (extra, data []byte) {
	b = b[Size+body[h.Kind]:]
	if h.Kind == Hello {
		return nil, b
	}
	return b[:h.Extra], b[h.Extra:]
}
