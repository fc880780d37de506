package drivertest

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// form is a way to describe where the bytes of a message are.
type form string

const (
	formIOV1       form = "iov-1"
	formIOV        form = "iov-many"
	formContiguous form = "contiguous"
	formStrided    form = "strided"
	formIndexed    form = "indexed"
	formBuffer     form = "buffer"
)

// forms lists what the capabilities announce for sends or receives.
func (e *end) forms(recv bool) []form {
	f := []form{formIOV1}
	if e.caps.IOVec {
		f = append(f, formIOV)
	}
	if e.caps.Data {
		f = append(f, formContiguous, formStrided, formIndexed)
	}
	if recv && e.caps.BufferRecv || !recv && e.caps.BufferSend {
		f = append(f, formBuffer)
	}
	return f
}

const guard = 64

// room is guarded memory with a packet that names n bytes of it in some form.
type room struct {
	base []byte
	p    driver.Packet
}

// room makes one; from alloc, or on the Go heap when that is nil.
func (e *end) room(f form, n int, alloc func(int) []byte) *room {
	e.Helper()
	r := &room{}
	size := n
	const block = 24
	if f == formStrided || f == formIndexed || f == formIOV {
		size = 3*n + 4*block
	}
	if alloc == nil {
		alloc = func(n int) []byte { return make([]byte, n) }
	}
	if r.base = alloc(size + 2*guard); r.base == nil {
		e.Fatalf("no memory for %d bytes", size)
	}
	setCanary(r.base)
	m := r.base[guard : guard+size]
	var err error
	switch f {
	case formIOV1, formBuffer:
		r.p.IOV = [][]byte{m[:n:n]}
	case formIOV:
		r.p.IOV = pieces(m, n)
	case formContiguous:
		r.p.Data = &driver.Contiguous{B: m[:n:n]}
	case formStrided: // a block length that divides n
		b := n
		for _, k := range []int{block, 8, 7, 5, 3, 2, 1} {
			if n > 0 && n%k == 0 && n/k <= 1<<16 {
				b = k
				break
			}
		}
		if n == 0 {
			r.p.Data, err = driver.NewStrided(m, 1, 1, 0)
		} else {
			r.p.Data, err = driver.NewStrided(m, b, b+b/2+1, n/b)
		}
	case formIndexed:
		r.p.Data, err = driver.NewIndexed(m, blocks(n, len(m)))
	}
	e.noErr("make layout", err)
	if r.p.Len() != n {
		e.Fatalf("layout %s has %d bytes, want %d", f, r.p.Len(), n)
	}
	return r
}

// pieces cuts n bytes into uneven entries with gaps, empty and nil ones too.
func pieces(m []byte, n int) [][]byte {
	const count = 7
	iov := make([][]byte, 0, count)
	for k := range count {
		rest := count - k
		switch {
		case rest > 2 && k == 1:
			iov = append(iov, nil)
			continue
		case rest > 2 && k == 3:
			iov = append(iov, m[:0])
			continue
		}
		l := n
		if rest > 1 {
			l = min(n, n/rest+k)
		}
		iov = append(iov, m[:l:l])
		m = m[min(l+3, len(m)):]
		n -= l
	}
	return iov
}

// blocks describes n bytes of a buffer of size bytes backwards, with gaps.
func blocks(n, size int) []driver.Block {
	var b []driver.Block
	step := max(13, n/50)
	for k, end := 0, size; n > 0; k++ {
		l := min(n, step+k%5)
		end -= l + 1
		b = append(b, driver.Block{Offset: end, Len: l})
		n -= l
	}
	return append(b, driver.Block{})
}

// fill writes the pattern into the packet's memory.
func (r *room) fill(seed uint64) {
	b := make([]byte, r.p.Len())
	fill(b, seed)
	c := r.p.Cursor()
	c.Scatter(b)
}

// verify checks the n bytes received, and that nothing else was written.
func (r *room) verify(n int, seed uint64) error {
	b := make([]byte, n)
	c := r.p.Cursor()
	if c.Gather(b) != n {
		return fmt.Errorf("packet holds fewer than %d bytes", n)
	}
	if err := verify(b, seed); err != nil {
		return err
	}
	setCanary(b)
	c = r.p.Cursor()
	c.Scatter(b)
	if k := disturbed(r.base); k >= 0 {
		return fmt.Errorf("byte %d of %d outside of the message was written (guard is %d)", k, len(r.base), guard)
	}
	return nil
}
