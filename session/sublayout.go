package session

import "github.com/bywash/bywash/driver"

// sublayout is a range of a layout, as a layout.
type sublayout struct {
	of     driver.Layout
	off, n int
	first  int // segment that holds off
	skip   int // bytes of it before
	count  int
}

func (p *sublayout) set(of driver.Layout, off, n int) {
	*p = sublayout{of: of, off: off, n: n}
	if n == 0 {
		return
	}
	p.first, p.skip = of.At(off)
	last, _ := of.At(off + n - 1)
	p.count = last - p.first + 1
}

func (p *sublayout) Len() int { return p.n }

func (p *sublayout) Segments() int { return p.count }

func (p *sublayout) Segment(i int) []byte {
	b := p.of.Segment(p.first + i)
	if i == p.count-1 {
		_, at := p.of.At(p.off + p.n - 1)
		b = b[:at+1]
	}
	if i == 0 {
		b = b[p.skip:]
	}
	return b
}

func (p *sublayout) At(off int) (int, int) {
	if off >= p.n {
		return p.count, 0
	}
	seg, at := p.of.At(p.off + off)
	if seg == p.first {
		at -= p.skip
	}
	return seg - p.first, at
}
