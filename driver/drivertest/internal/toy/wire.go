//go:build linux

package toy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// kind is the kind of a frame.
type kind uint8

const (
	msgFrame    kind = iota + 1 // a = rdv ticket
	creditFrame                 // a = messages consumed
	putFrame                    // a = region, b = offset
	getFrame                    // a = region, b = offset, c = length
	atomicFrame                 // a = region, b = offset, c = operand, payload = compare
	replyFrame                  // a = result, payload = data of a get
	closeFrame
)

const headerSize = 40

// header starts each frame.
type header struct {
	kind             kind
	op, size, status uint8
	len              uint32
	id               uint64
	a, b, c          uint64
}

func (h *header) encode(b *[headerSize]byte) {
	b[0], b[1], b[2], b[3] = uint8(h.kind), h.op, h.size, h.status
	binary.LittleEndian.PutUint32(b[4:], h.len)
	for k, v := range [4]uint64{h.id, h.a, h.b, h.c} {
		binary.LittleEndian.PutUint64(b[8+8*k:], v)
	}
}

func (h *header) decode(b *[headerSize]byte) {
	*h = header{kind: kind(b[0]), op: b[1], size: b[2], status: b[3], len: binary.LittleEndian.Uint32(b[4:])}
	for k, v := range [4]*uint64{&h.id, &h.a, &h.b, &h.c} {
		*v = binary.LittleEndian.Uint64(b[8+8*k:])
	}
}

// frame is something to be written: a message, a request, or a reply.
type frame struct {
	h    header
	p    *driver.Packet // of a message of the large track
	slot int            // which that has
	op   *driver.Op     // of a request
	data []byte         // of a reply, or of a message of the small track; goes back to the pool
}

// writer sends frames until the connection ends.
func (n *conn) writer() {
	w := bufio.NewWriterSize(n.w, 64<<10)
	var head [headerSize]byte
	var f frame // declared here, so that it is allocated once
	for {
		var ok bool
		if f, ok = n.nextFrame(w); !ok {
			break
		}
		f.h.encode(&head)
		w.Write(head[:])
		n.writeBody(w, &f)
		if n.wrote(&f) {
			break
		}
	}
	if w.Flush() != nil || n.State() == kit.StateClosed {
		// The peer has read everything, or is gone: a close that leaves its
		// frames unread would show there as a reset, after what it was sent.
		n.w.Close()
	}
	n.ended()
}

func (n *conn) writeBody(w *bufio.Writer, f *frame) {
	switch {
	case f.p != nil:
		c, spoils := f.p.Cursor(), n.spoils(f.p, int(f.h.len))
		for left := int(f.h.len); left > 0; {
			b := c.Next(left)
			if len(b) == 0 {
				return
			}
			if left -= len(b); left == 0 && spoils {
				w.Write(b[:len(b)-1])
				w.WriteByte(b[len(b)-1] ^ 1)
				return
			}
			w.Write(b)
		}
	case f.op != nil && f.h.kind == putFrame:
		w.Write(f.op.Local[:f.h.len])
	case f.op != nil && f.h.kind == atomicFrame:
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], f.op.Compare)
		w.Write(b[:])
	case f.data != nil:
		w.Write(f.data)
		n.free(f.data)
	}
}

// reader takes frames until the connection ends.
func (n *conn) reader() {
	err := n.readFrames()
	var closeErr errClose
	switch {
	case errors.As(err, &closeErr):
		n.end(kit.StatePeerClosed, nil)
	case n.c.fault == "never-notice-death":
		<-n.closing
	default:
		n.end(kit.StateBroken, driver.ErrBroken)
	}
	n.ended()
}

type errClose struct{}

func (errClose) Error() string { return "bye" }

func (n *conn) readFrames() error {
	r := bufio.NewReaderSize(n.r, 64<<10)
	var head [headerSize]byte
	var h header
	for {
		if n.c.fault == "impatient" {
			_ = n.r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		}
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		h.decode(&head)
		if h.kind == closeFrame {
			return errClose{}
		}
		if h.len > largeMax+1 {
			n.c.badFrames.Add(1)
			return errors.New("bad frame")
		}
		var data []byte
		if h.len > 0 {
			data = n.alloc(int(h.len))
			if _, err := io.ReadFull(r, data); err != nil {
				return err
			}
		}
		n.handle(&h, data)
	}
}

func (n *conn) handle(h *header, data []byte) {
	switch h.kind {
	case msgFrame:
		n.arrive(message{data: data, ticket: h.a})
		return
	case creditFrame:
		n.mu.Lock()
		n.credits += int(h.a)
		n.work.Broadcast()
		n.mu.Unlock()
	case putFrame, getFrame, atomicFrame:
		n.serve(h, data)
	case replyFrame:
		n.complete(h, data)
	default:
		n.c.badFrames.Add(1)
	}
	n.free(data)
}

// alloc and free keep a few buffers, so that the data path allocates nothing.
func (n *conn) alloc(size int) []byte {
	n.poolMu.Lock()
	defer n.poolMu.Unlock()
	for k := len(n.pool) - 1; k >= 0; k-- {
		if b := n.pool[k]; cap(b) >= size {
			n.pool[k] = n.pool[len(n.pool)-1]
			n.pool = n.pool[:len(n.pool)-1]
			return b[:size]
		}
	}
	return make([]byte, size, max(size, bufferSize))
}

func (n *conn) free(b []byte) {
	if cap(b) == 0 {
		return
	}
	n.poolMu.Lock()
	defer n.poolMu.Unlock()
	if len(n.pool) < 64 {
		n.pool = append(n.pool, b)
	}
}
