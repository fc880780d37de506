package driver_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/bywash/bywash/driver"
	"pgregory.net/rapid"
)

// plain is the model of a layout: its pieces, one after the other.
type plain struct {
	layout driver.Layout
	iov    [][]byte // the same as IOV, or nil
	pieces [][]byte
}

func (p *plain) bytes() []byte { return bytes.Join(p.pieces, nil) }

// anyLayout draws a layout over memory whose bytes all differ from their
// neighbours, with the model of it.
func anyLayout(t *rapid.T) *plain {
	base := make([]byte, rapid.IntRange(0, 300).Draw(t, "base"))
	for k := range base {
		base[k] = byte(k*7 + k>>8)
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return &plain{layout: &driver.Contiguous{B: base}, pieces: [][]byte{base}}
	case 1:
		p := &plain{}
		for rest := base; ; {
			n := rapid.IntRange(0, min(len(rest), 40)).Draw(t, "piece")
			p.pieces = append(p.pieces, rest[:n:n])
			rest = rest[n:]
			if rapid.Bool().Draw(t, "last") {
				break
			}
		}
		p.iov, p.layout = p.pieces, &driver.IOVec{V: p.pieces}
		return p
	case 2:
		block := rapid.IntRange(1, 20).Draw(t, "block")
		stride := block + rapid.IntRange(0, 9).Draw(t, "gap")
		most := 0
		if len(base) >= block {
			most = (len(base)-block)/stride + 1
		}
		count := rapid.IntRange(0, most).Draw(t, "count")
		s, err := driver.NewStrided(base, block, stride, count)
		if err != nil {
			t.Fatal(err)
		}
		p := &plain{layout: s}
		for k := range count {
			p.pieces = append(p.pieces, base[k*stride:k*stride+block])
		}
		return p
	}
	return anyIndexed(t, base)
}

func anyIndexed(t *rapid.T, base []byte) *plain {
	p := &plain{}
	var blocks []driver.Block
	for next := 0; rapid.IntRange(0, 9).Draw(t, "more") > 0; { // without overlap, so that scatter has one answer
		off := rapid.IntRange(next, len(base)).Draw(t, "offset")
		n := rapid.IntRange(0, min(30, len(base)-off)).Draw(t, "length")
		blocks = append(blocks, driver.Block{Offset: off, Len: n})
		next = off + n
	}
	if rapid.Bool().Draw(t, "backwards") {
		for a, b := 0, len(blocks)-1; a < b; a, b = a+1, b-1 {
			blocks[a], blocks[b] = blocks[b], blocks[a]
		}
	}
	for _, b := range blocks {
		p.pieces = append(p.pieces, base[b.Offset:b.Offset+b.Len])
	}
	x, err := driver.NewIndexed(base, blocks)
	if err != nil {
		t.Fatal(err)
	}
	p.layout = x
	return p
}

func TestLayoutsAgreeWithTheirPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyLayout(t)
		l, want := p.layout, p.bytes()
		if l.Len() != len(want) || l.Segments() != len(p.pieces) {
			t.Fatalf("%T: length %d in %d segments, want %d in %d", l, l.Len(), l.Segments(), len(want), len(p.pieces))
		}
		for k, piece := range p.pieces {
			if !bytes.Equal(l.Segment(k), piece) {
				t.Fatalf("%T: segment %d is %v, want %v", l, k, l.Segment(k), piece)
			}
		}
		off := rapid.IntRange(0, len(want)+3).Draw(t, "off")
		seg, in := l.At(off)
		if off >= len(want) {
			if seg != l.Segments() || in != 0 {
				t.Fatalf("%T: At(%d) beyond the end is %d, %d, want %d, 0", l, off, seg, in, l.Segments())
			}
			return
		}
		if &l.Segment(seg)[in] != &byteAt(p.pieces, off)[0] {
			t.Fatalf("%T: At(%d) is %d, %d, another byte", l, off, seg, in)
		}
	})
}

// byteAt finds a byte of the pieces, counted from the start.
func byteAt(pieces [][]byte, off int) []byte {
	for _, b := range pieces {
		if off < len(b) {
			return b[off:]
		}
		off -= len(b)
	}
	return nil
}

// packet draws which of its two forms names the memory.
func (p *plain) packet(t *rapid.T) *driver.Packet {
	if p.iov != nil && rapid.Bool().Draw(t, "iov") {
		return &driver.Packet{IOV: p.iov}
	}
	return &driver.Packet{Data: p.layout}
}

func TestCursorAgreesWithFlatMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyLayout(t)
		q := p.packet(t)
		flat := p.bytes() // a copy
		if q.Len() != len(flat) {
			t.Fatalf("packet of %d bytes, want %d", q.Len(), len(flat))
		}
		c, at := q.Cursor(), 0
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				limit := rapid.IntRange(1, 50).Draw(t, "limit")
				s := c.Next(limit)
				if len(s) > limit || len(s) == 0 && at < len(flat) || !bytes.Equal(s, flat[at:at+len(s)]) {
					t.Fatalf("Next(%d) at %d of %d is %v", limit, at, len(flat), s)
				}
				at += len(s)
			},
			"seek": func(t *rapid.T) {
				at = rapid.IntRange(0, len(flat)).Draw(t, "to")
				c.Seek(at)
			},
			"gather": func(t *rapid.T) {
				dst := make([]byte, rapid.IntRange(0, 60).Draw(t, "n"))
				want := min(len(dst), len(flat)-at)
				if n := c.Gather(dst); n != want || !bytes.Equal(dst[:n], flat[at:at+n]) {
					t.Fatalf("Gather of %d at %d of %d: %d bytes, %v", len(dst), at, len(flat), n, dst[:n])
				}
				at += want
			},
			"scatter": func(t *rapid.T) {
				src := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "src")
				want := min(len(src), len(flat)-at)
				if n := c.Scatter(src); n != want {
					t.Fatalf("Scatter of %d at %d of %d: %d bytes, want %d", len(src), at, len(flat), n, want)
				}
				copy(flat[at:], src)
				at += want
			},
			"": func(t *rapid.T) {
				if got := p.bytes(); !bytes.Equal(got, flat) {
					t.Fatalf("memory is %v, want %v", got, flat)
				}
			},
		})
	})
}

func TestContiguousPackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyLayout(t)
		q := p.packet(t)
		filled := 0
		for _, b := range p.pieces {
			if len(b) > 0 {
				filled++
			}
		}
		b, ok := q.Contiguous()
		if ok && !bytes.Equal(b, p.bytes()) {
			t.Fatalf("Contiguous gives %v, want %v", b, p.bytes())
		}
		// A layout may return false for pieces that are empty.
		if must := filled <= 1 && q.IOV != nil || len(p.pieces) <= 1; must && !ok || filled > 1 && ok {
			t.Fatalf("Contiguous returns %v for %d pieces, %d of them not empty", ok, len(p.pieces), filled)
		}
	})
	if b, ok := new(driver.Packet).Contiguous(); len(b) != 0 || !ok {
		t.Errorf("an empty packet: %v, %v; want contiguous", b, ok)
	}
}

func TestPiecesOfPackets(t *testing.T) {
	iov := [][]byte{[]byte("one"), nil, []byte("two"), {}, []byte("three")}
	for _, x := range []struct {
		n, room int
		want    string
		ok      bool
	}{
		{0, 0, "", true},
		{11, 3, "one two three", true},
		{11, 2, "", false},
		{11, 0, "", false},
		{6, 2, "one two", true},
		{7, 3, "one two t", true},
		{2, 1, "on", true},
	} {
		p := driver.Packet{IOV: iov}
		dst := make([][]byte, x.room)
		k, ok := p.Pieces(dst, x.n)
		if got := string(bytes.Join(dst[:k], []byte(" "))); ok != x.ok || got != x.want {
			t.Errorf("%d bytes, room for %d pieces: %q, %v; want %q, %v", x.n, x.room, got, ok, x.want, x.ok)
		}
	}
}

func TestLayoutsRefuseWhatLeavesTheBuffer(t *testing.T) {
	b := make([]byte, 100)
	for _, s := range [][3]int{
		{0, 1, 1}, {-1, 1, 1}, {10, 9, 2}, {10, 10, 11}, {101, 101, 1}, {10, 10, -1}, {10, math.MaxInt, 2},
		{1, 1, math.MaxInt}, {math.MaxInt, math.MaxInt, 2}, {100, 100, 2}, {1, 50, 3},
	} {
		if _, err := driver.NewStrided(b, s[0], s[1], s[2]); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("NewStrided(block %d, stride %d, count %d): got %v, want %v", s[0], s[1], s[2], err, driver.ErrInvalid)
		}
	}
	for _, s := range [][3]int{{100, 100, 1}, {1, 99, 2}, {10, 10, 10}, {101, 101, 0}} {
		if _, err := driver.NewStrided(b, s[0], s[1], s[2]); err != nil {
			t.Errorf("NewStrided(block %d, stride %d, count %d): %v", s[0], s[1], s[2], err)
		}
	}
	for _, k := range []driver.Block{{-1, 1}, {0, -1}, {100, 1}, {101, 0}, {1, 100}, {50, math.MaxInt}, {math.MaxInt, 1}} {
		if _, err := driver.NewIndexed(b, []driver.Block{{0, 100}, k}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("NewIndexed(%+v): got %v, want %v", k, err, driver.ErrInvalid)
		}
	}
}

func TestWalkingAllocatesNothing(t *testing.T) {
	b := make([]byte, 1000)
	s, err := driver.NewStrided(b, 10, 20, 50)
	if err != nil {
		t.Fatal(err)
	}
	p := &driver.Packet{Data: s}
	dst := make([]byte, 500)
	if n := testing.AllocsPerRun(100, func() {
		c := p.Cursor()
		c.Seek(7)
		c.Gather(dst)
		p.Contiguous()
	}); n != 0 {
		t.Errorf("a walk allocates %v times, want 0", n)
	}
}
