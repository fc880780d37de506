package toy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/bywash/bywash/driver"
)

// kind tells what a frame is.
type kind uint8

const (
	msgFrame    kind = iota + 1 // a = rdv ticket
	creditFrame                 // a = messages consumed
	putFrame                    // a = region, b = offset
	getFrame                    // a = region, b = offset, c = length
	atomicFrame                 // a = region, b = offset, c = operand, payload = compare
	replyFrame                  // a = result, payload = data of a get
	byeFrame
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
	p    *driver.Packet // of a message
	buf  []byte         // of a buffer send
	op   *driver.Op     // of a request
	data []byte         // of a reply; goes back to the pool
}

// writer sends frames until the connection ends.
func (i *instance) writer() {
	w := bufio.NewWriterSize(i.w, 64<<10)
	var head [headerSize]byte
	var f frame // declared here, so that it is allocated once
	for {
		var ok bool
		if f, ok = i.nextFrame(w); !ok {
			break
		}
		f.h.encode(&head)
		w.Write(head[:])
		i.writeBody(w, &f)
		if i.wrote(&f) {
			break
		}
	}
	if w.Flush() != nil || i.local() {
		// The peer has read everything, or is gone: a close that leaves its
		// frames unread would show there as a reset, after what it was sent.
		i.w.Close()
	}
	i.ended()
}

func (i *instance) writeBody(w *bufio.Writer, f *frame) {
	switch {
	case f.p != nil && f.buf != nil:
		w.Write(f.buf[:f.h.len])
	case f.p != nil:
		c := f.p.Cursor()
		runs, last := 0, int(f.h.len)
		for n := 0; n < last; runs++ {
			s := c.Next(last - n)
			if len(s) == 0 {
				break
			}
			n += len(s)
			if n == last && i.spoils(last, runs) {
				w.Write(s[:len(s)-1])
				w.WriteByte(s[len(s)-1] ^ 1)
				continue
			}
			w.Write(s)
		}
	case f.op != nil && f.h.kind == putFrame:
		w.Write(f.op.Local[:f.h.len])
	case f.op != nil && f.h.kind == atomicFrame:
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], f.op.Compare)
		w.Write(b[:])
	case f.data != nil:
		w.Write(f.data)
		i.free(f.data)
	}
}

// spoils reports whether a fault wants the last byte of a message wrong.
func (i *instance) spoils(n, runs int) bool {
	switch i.c.fault {
	case "wrong-byte":
		return n >= 1000
	case "wrong-byte-layout":
		return runs > 0
	}
	return false
}

// reader takes frames until the connection ends.
func (i *instance) reader() {
	err := i.readFrames()
	var bye errBye
	switch {
	case errors.As(err, &bye) && i.c.fault != "closed-as-broken":
		i.fail(driver.ErrClosed)
	case i.c.fault == "never-notice-death":
		<-i.closing
	default:
		i.fail(driver.ErrBroken)
	}
	i.ended()
}

type errBye struct{}

func (errBye) Error() string { return "bye" }

func (i *instance) readFrames() error {
	r := bufio.NewReaderSize(i.r, 64<<10)
	var head [headerSize]byte
	var h header
	for {
		if i.c.fault == "impatient" {
			_ = i.r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		}
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		h.decode(&head)
		if h.kind == byeFrame {
			return errBye{}
		}
		if h.len > largeMax+1 {
			i.c.n.badFrames.Add(1)
			return errors.New("bad frame")
		}
		var data []byte
		if h.len > 0 {
			data = i.alloc(int(h.len))
			if _, err := io.ReadFull(r, data); err != nil {
				return err
			}
		}
		i.handle(&h, data)
	}
}

func (i *instance) handle(h *header, data []byte) {
	switch h.kind {
	case msgFrame:
		i.arrive(message{data: data, ticket: h.a})
		return
	case creditFrame:
		i.mu.Lock()
		i.credits += int(h.a)
		i.work.Broadcast()
		i.mu.Unlock()
	case putFrame, getFrame, atomicFrame:
		i.serve(h, data)
	case replyFrame:
		i.complete(h, data)
	default:
		i.c.n.badFrames.Add(1)
	}
	i.free(data)
}

// alloc and free keep a few buffers, so that the data path allocates nothing.
func (i *instance) alloc(n int) []byte {
	i.poolMu.Lock()
	defer i.poolMu.Unlock()
	for k := len(i.pool) - 1; k >= 0; k-- {
		if b := i.pool[k]; cap(b) >= n {
			i.pool[k] = i.pool[len(i.pool)-1]
			i.pool = i.pool[:len(i.pool)-1]
			return b[:n]
		}
	}
	return make([]byte, n, max(n, bufferSize))
}

func (i *instance) free(b []byte) {
	if cap(b) == 0 {
		return
	}
	i.poolMu.Lock()
	defer i.poolMu.Unlock()
	if len(i.pool) < 64 {
		i.pool = append(i.pool, b)
	}
}
