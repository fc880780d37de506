package driver

import "fmt"

// Layout describes memory that need not be contiguous. It is walked by index
// and can be entered anywhere, because striping and resending seek. A layout
// must not change while a packet that uses it is posted. Implementations use
// pointer receivers, so that storing one in a packet allocates nothing.
type Layout interface {
	// Len is the total length in bytes.
	Len() int
	// Segments is the number of contiguous pieces.
	Segments() int
	// Segment returns piece i, 0 ≤ i < Segments().
	Segment(i int) []byte
	// At returns the piece that holds byte off, and the offset in it. For
	// off ≥ Len() it returns Segments(), 0.
	At(off int) (segment, offset int)
}

// Contiguous is memory in one piece.
type Contiguous struct{ B []byte }

// Len implements Layout.
func (c *Contiguous) Len() int { return len(c.B) }

// Segments implements Layout.
func (c *Contiguous) Segments() int { return 1 }

// Segment implements Layout.
func (c *Contiguous) Segment(int) []byte { return c.B }

// At implements Layout.
func (c *Contiguous) At(off int) (int, int) {
	if off >= len(c.B) {
		return 1, 0
	}
	return 0, off
}

// IOVec is memory in pieces of any length. Seeking takes time linear in the
// pieces; [Indexed] seeks in logarithmic time.
type IOVec struct{ V [][]byte }

// Len implements Layout.
func (v *IOVec) Len() int {
	n := 0
	for _, b := range v.V {
		n += len(b)
	}
	return n
}

// Segments implements Layout.
func (v *IOVec) Segments() int { return len(v.V) }

// Segment implements Layout.
func (v *IOVec) Segment(i int) []byte { return v.V[i] }

// At implements Layout.
func (v *IOVec) At(off int) (int, int) {
	for i, b := range v.V {
		if off < len(b) {
			return i, off
		}
		off -= len(b)
	}
	return len(v.V), 0
}

// Strided is count blocks of the same length at regular distances: a column of
// a matrix.
type Strided struct {
	base                 []byte
	block, stride, count int
}

// NewStrided describes count blocks of block bytes, stride bytes from start to
// start, the first at the beginning of base. ErrInvalid if they overlap or
// leave base.
func NewStrided(base []byte, block, stride, count int) (*Strided, error) {
	switch {
	case block <= 0 || count < 0:
		return nil, fmt.Errorf("%w: %d blocks of %d bytes", ErrInvalid, count, block)
	case stride < block:
		return nil, fmt.Errorf("%w: stride %d is less than block %d", ErrInvalid, stride, block)
	case count > 0 && (block > len(base) || (len(base)-block)/stride < count-1):
		return nil, fmt.Errorf("%w: %d blocks of %d bytes every %d leave a buffer of %d", ErrInvalid, count, block, stride, len(base))
	}
	return &Strided{base: base, block: block, stride: stride, count: count}, nil
}

// Len implements Layout.
func (s *Strided) Len() int { return s.block * s.count }

// Segments implements Layout.
func (s *Strided) Segments() int { return s.count }

// Segment implements Layout.
func (s *Strided) Segment(i int) []byte {
	o := i * s.stride
	return s.base[o : o+s.block : o+s.block]
}

// At implements Layout.
func (s *Strided) At(off int) (int, int) {
	if off >= s.Len() {
		return s.count, 0
	}
	return off / s.block, off % s.block
}

// Block is a piece of a buffer.
type Block struct{ Offset, Len int }

// Indexed is blocks of any length anywhere in one buffer, in any order.
type Indexed struct {
	base   []byte
	blocks []Block
	ends   []int // ends[i] is the total length of blocks 0…i
}

// NewIndexed describes blocks of base. ErrInvalid if one leaves base. Blocks
// that overlap are allowed for sending; received bytes land in their order. It
// keeps blocks, which must not change afterwards.
func NewIndexed(base []byte, blocks []Block) (*Indexed, error) {
	x := &Indexed{base: base, blocks: blocks, ends: make([]int, len(blocks))}
	n := 0
	for i, b := range blocks {
		if b.Offset < 0 || b.Len < 0 || b.Offset > len(base) || b.Len > len(base)-b.Offset {
			return nil, fmt.Errorf("%w: block %d at %d of %d bytes leaves a buffer of %d", ErrInvalid, i, b.Offset, b.Len, len(base))
		}
		n += b.Len
		x.ends[i] = n
	}
	return x, nil
}

// Len implements Layout.
func (x *Indexed) Len() int {
	if len(x.ends) == 0 {
		return 0
	}
	return x.ends[len(x.ends)-1]
}

// Segments implements Layout.
func (x *Indexed) Segments() int { return len(x.blocks) }

// Segment implements Layout.
func (x *Indexed) Segment(i int) []byte {
	b := x.blocks[i]
	return x.base[b.Offset : b.Offset+b.Len : b.Offset+b.Len]
}

// At implements Layout by binary search.
func (x *Indexed) At(off int) (int, int) {
	lo, hi := 0, len(x.ends)
	for lo < hi {
		m := int(uint(lo+hi) / 2)
		if x.ends[m] <= off {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == len(x.ends) {
		return lo, 0
	}
	return lo, off - (x.ends[lo] - x.blocks[lo].Len)
}
