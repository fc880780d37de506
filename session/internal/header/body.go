package header

import (
	"fmt"

	"github.com/bywash/bywash/session/internal/credit"
)

// Greeting is the body of Hello, and its data. The version is in the header's extra field, whose offset never changes;
// nor does the size of the body, so that a Hello of any version can be parsed.
type Greeting struct {
	Rank, Size  uint32
	Incarnation uint64 // of the session

	// The data:
	Era   uint32 // how often the session has resumed
	Grant Credit
}

const helloSize = 16

// Data is what follows the body.
func (g *Greeting) Data() []byte {
	b := make([]byte, 4+grantSize)
	le.PutUint32(b, g.Era)
	g.Grant.Put(b[4:])
	return b
}

// Put writes g to the body b.
func (g *Greeting) Put(b []byte) {
	le.PutUint32(b, g.Rank)
	le.PutUint32(b[4:], g.Size)
	le.PutUint64(b[8:], g.Incarnation)
}

// Parse reads a body and its data.
func (g *Greeting) Parse(b, data []byte) error {
	if len(b) != helloSize || len(data) != 4+grantSize {
		return fmt.Errorf("%w: HELLO", ErrMalformed)
	}
	g.Rank, g.Size, g.Incarnation, g.Era = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint32(data)
	return g.Grant.Parse(data[4:])
}

// Credit is the body of Grant: how much may be sent that its sender may have to store, since the connection began. See
// package credit.
type Credit struct {
	credit.Amount
	Unasked uint32 // the longest message in bytes that may be sent without RTS, with its header
}

const grantSize = 24

// LeastUnasked is the least that Unasked may be.
const LeastUnasked = 1024

// Put writes c to the body b.
func (c *Credit) Put(b []byte) {
	le.PutUint64(b, c.Bytes)
	le.PutUint64(b[8:], c.Messages)
	le.PutUint32(b[16:], c.Unasked)
	le.PutUint32(b[20:], 0)
}

// Parse reads a body.
func (c *Credit) Parse(b []byte) error {
	if len(b) != grantSize || le.Uint32(b[20:]) != 0 {
		return fmt.Errorf("%w: GRANT", ErrMalformed)
	}
	c.Bytes, c.Messages, c.Unasked = le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:])
	if c.Bytes > credit.MaxAmount || c.Messages > credit.MaxAmount || c.Unasked < LeastUnasked {
		return fmt.Errorf("%w: GRANT of %d bytes, %d messages, %d bytes unasked", ErrMalformed, c.Bytes, c.Messages, c.Unasked)
	}
	return nil
}

// Request is the body of RTS. The data is the key of mode Get, if there is one.
type Request struct {
	ID    uint64 // of the sender's half
	Total uint64 // length of the message in bytes
	Modes uint8  // those that the sender can do, a bit each
	Rail  uint8  // of the key
}

const rtsSize = 24

// MaxTotal bounds the length of a message in bytes, so that sums cannot
// overflow.
const MaxTotal = 1 << 60

// Put writes r to the body b.
func (r *Request) Put(b []byte) {
	le.PutUint64(b, r.ID)
	le.PutUint64(b[8:], r.Total)
	le.PutUint64(b[16:], uint64(r.Rail)<<8|uint64(r.Modes))
}

// Parse reads a body.
func (r *Request) Parse(b []byte) error {
	if len(b) != rtsSize || le.Uint64(b[16:])>>16 != 0 {
		return fmt.Errorf("%w: RTS", ErrMalformed)
	}
	r.ID, r.Total, r.Modes, r.Rail = le.Uint64(b), le.Uint64(b[8:]), b[16], b[17]
	if r.Total > MaxTotal {
		return fmt.Errorf("%w: RTS for %d bytes", ErrMalformed, r.Total)
	}
	return nil
}

// Ready is the body of RTR. The data is the rdv data, or the key of mode Put.
type Ready struct {
	ID     uint64 // of the receiver's half
	Offset uint64 // of the chunk
	Length uint64 // of the chunk
	Want   uint64 // bytes of the message that the receiver has room for
	Chunk  uint32 // its number, from 0; each is used once a message
	Mode   uint8
	Rail   uint8
}

const rtrSize = 40

// Put writes r to the body b.
func (r *Ready) Put(b []byte) {
	le.PutUint64(b, r.ID)
	le.PutUint64(b[8:], r.Offset)
	le.PutUint64(b[16:], r.Length)
	le.PutUint64(b[24:], r.Want)
	le.PutUint32(b[32:], r.Chunk)
	b[36], b[37], b[38], b[39] = r.Mode, r.Rail, 0, 0
}

// Parse reads a body. The chunk lies within what the receiver wants.
func (r *Ready) Parse(b []byte) error {
	if len(b) != rtrSize || b[38]|b[39] != 0 {
		return fmt.Errorf("%w: RTR", ErrMalformed)
	}
	r.ID, r.Offset, r.Length, r.Want = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	r.Chunk, r.Mode, r.Rail = le.Uint32(b[32:]), b[36], b[37]
	if r.Want > MaxTotal || r.Length > r.Want || r.Offset > r.Want-r.Length {
		return fmt.Errorf("%w: RTR for %d bytes at %d of %d", ErrMalformed, r.Length, r.Offset, r.Want)
	}
	return nil
}

// Part is the body of Cookie and Done: which chunk, and for Done how it ended.
type Part struct {
	Chunk    uint32
	Status   uint8 // Done: 0, or why it failed
	ToSender bool  // the id in the tag is that of the sender's half, else of the receiver's: both halves draw ids separately
	All      bool  // Done: the whole message
}

// Put writes p to the body b.
func (p *Part) Put(b []byte) {
	le.PutUint32(b, p.Chunk)
	b[4], b[5], b[6], b[7] = p.Status, 0, 0, 0
	if p.ToSender {
		b[5] = 1
	}
	if p.All {
		b[6] = 1
	}
}

// Parse reads a body.
func (p *Part) Parse(b []byte) error {
	if len(b) != 8 || b[5]|b[6] > 1 || b[7] != 0 {
		return fmt.Errorf("%w: body of COOKIE or DONE", ErrMalformed)
	}
	p.Chunk, p.Status, p.ToSender, p.All = le.Uint32(b), b[4], b[5] == 1, b[6] == 1
	return nil
}

// Operation is the body of Op: an access to a region of the peer that the peer's
// CPU carries out.
type Operation struct {
	ID      uint64 // of the operation, for the reply
	Region  uint64
	Offset  uint64
	Operand uint64
	Compare uint64
	Length  uint32
	What    uint8 // as the session defines
	Size    uint8
}

const opSize = 48

// Put writes o to the body b.
func (o *Operation) Put(b []byte) {
	le.PutUint64(b, o.ID)
	le.PutUint64(b[8:], o.Region)
	le.PutUint64(b[16:], o.Offset)
	le.PutUint64(b[24:], o.Operand)
	le.PutUint64(b[32:], o.Compare)
	le.PutUint32(b[40:], o.Length)
	b[44], b[45], b[46], b[47] = o.What, o.Size, 0, 0
}

// Parse reads a body.
func (o *Operation) Parse(b []byte) error {
	if len(b) != opSize || b[46]|b[47] != 0 {
		return fmt.Errorf("%w: OP", ErrMalformed)
	}
	o.ID, o.Region, o.Offset, o.Operand, o.Compare = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
	o.Length, o.What, o.Size = le.Uint32(b[40:]), b[44], b[45]
	return nil
}

// Outcome is the body of Reply. Data of a get follows.
type Outcome struct {
	Result uint64
	Status uint8
}

// Put writes o to the body b.
func (o *Outcome) Put(b []byte) {
	le.PutUint64(b, o.Result)
	le.PutUint64(b[8:], uint64(o.Status))
}

// Parse reads a body.
func (o *Outcome) Parse(b []byte) error {
	if len(b) != 16 || le.Uint64(b[8:]) > 255 {
		return fmt.Errorf("%w: REPLY", ErrMalformed)
	}
	o.Result, o.Status = le.Uint64(b), b[8]
	return nil
}

// PutUint64 and Uint64 write and read a body that is one number: the id of Sync,
// the offset of Frag.
func PutUint64(b []byte, v uint64) { le.PutUint64(b, v) }

// Uint64 reads it.
func Uint64(b []byte) uint64 { return le.Uint64(b) }
