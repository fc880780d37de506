package stat

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Record is one piece of a capture: a new Interface, a Frame, or the Counts of an interface so far. The first one is
// Ready.
type Record struct {
	Ready     bool       // from now on the process copies every frame
	Number    uint16     // of the interface, within this stream
	Interface *Interface // else nil
	Counts    *Counts    // else nil

	Time   int64  // ns since 1970, UTC
	Sent   bool   // by the process; else it has arrived
	Length int    // bytes on the wire
	Frame  []byte // those that were captured, until the next call of Next
}

// Counts counts the frames of a captured interface.
type Counts struct {
	Frames  uint64 // that passed, the dropped ones included
	Dropped uint64 // for which the ring had no room
}

// Captures returns the processes whose frames can be captured, in the order of List.
func Captures() ([]Endpoint, error) { return list(capturePrefix) }

// Stream is a capture under way. One goroutine may use Next while another one
// calls Stop or Close.
type Stream struct {
	conn  *net.UnixConn
	pid   int
	r     *bufio.Reader
	buf   []byte
	known int  // interfaces announced
	ready bool // the process has accepted the request
}

// Capture starts to copy the frames that a process's drivers send and receive past the kernel, from NICs that are open
// and those that it opens later. Permissions and errors are those of Read.
func Capture(e Endpoint, r CaptureRequest) (*Stream, error) {
	r.Version = captureVersion
	c, err := dial(e)
	if err != nil {
		return nil, fmt.Errorf("capture from process %d: %w", e.PID, err)
	}
	b, err := json.Marshal(r)
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(timeout))
		_, err = c.Write(b)
	}
	s := newStream(c, c, e.PID)
	if err != nil {
		c.Close()
		return nil, s.failure(err)
	}
	return s, nil
}

func newStream(c *net.UnixConn, r io.Reader, pid int) *Stream {
	return &Stream{conn: c, pid: pid, r: bufio.NewReaderSize(r, 1<<20)}
}

// Await blocks until the process accepts the capture. It fails with ErrRefused if it does not, and after 2 s.
func (s *Stream) Await() error {
	_ = s.conn.SetReadDeadline(time.Now().Add(timeout))
	_, err := s.r.Peek(1)
	_ = s.conn.SetReadDeadline(time.Time{})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("capture from process %d: it does not answer", s.pid)
	}
	return s.failure(err)
}

// Stop asks the process to end the capture. Frames on their way, and the last counts, still arrive for at most 2 s.
func (s *Stream) Stop() {
	_ = s.conn.SetReadDeadline(time.Now().Add(timeout))
	_ = s.conn.CloseWrite()
}

// Close ends the capture at once.
func (s *Stream) Close() error { return s.conn.Close() }

// Buffered reports whether Next would return without waiting for the process.
func (s *Stream) Buffered() bool {
	if s.r.Buffered() < recordHeader {
		return false
	}
	h, err := s.r.Peek(recordHeader)
	return err != nil || int64(s.r.Buffered()) >= int64(le.Uint32(h))
}

// Next blocks until the next record. It returns io.EOF when the capture has ended by Stop or with the process, and
// ErrRefused if the process ends it before the first record.
func (s *Stream) Next() (Record, error) {
	var h [recordHeader]byte
	if _, err := io.ReadFull(s.r, h[:]); err != nil {
		return Record{}, s.failure(err)
	}
	size := int64(le.Uint32(h[:]))
	if size < recordHeader+16 || size > maxRecord || size%8 != 0 {
		return Record{}, s.damaged("a record of %d bytes", size)
	}
	n := int(size) - recordHeader
	if cap(s.buf) < n {
		s.buf = make([]byte, max(n, 4096))
	}
	b := s.buf[:n]
	if _, err := io.ReadFull(s.r, b); err != nil {
		return Record{}, s.failure(err)
	}
	r := Record{Number: le.Uint16(h[6:])}
	if h[4] != recordInterface && h[4] != recordReady && int(r.Number) >= s.known {
		return Record{}, s.damaged("interface %d is unknown", r.Number)
	}
	switch h[4] {
	case recordInterface:
		return s.announced(r, b)
	case recordFrame:
		kept := le.Uint32(b[8:])
		r.Time, r.Sent, r.Length = int64(le.Uint64(b)), h[5]&flagSent != 0, int(le.Uint32(b[12:]))
		if int64(kept) > size-frameHeader || int64(kept) > int64(r.Length) {
			return Record{}, s.damaged("a frame of %d bytes in a record of %d", kept, size)
		}
		r.Frame = b[frameHeader-recordHeader:][:kept]
	case recordReady:
		r.Ready, s.ready = true, true
	case recordCounts:
		r.Counts = &Counts{Frames: le.Uint64(b), Dropped: le.Uint64(b[8:])}
	default:
		return Record{}, s.damaged("kind %d of record", h[4])
	}
	return r, nil
}

func (s *Stream) announced(r Record, b []byte) (Record, error) {
	n := le.Uint32(b)
	if int(r.Number) != s.known || int64(n) > int64(len(b)-8) {
		return Record{}, s.damaged("announcement of interface %d", r.Number)
	}
	i := &Interface{}
	if err := json.Unmarshal(b[8:][:n], i); err != nil {
		return Record{}, s.damaged("announcement of interface %d: %v", r.Number, err)
	}
	if len(i.Driver) > maxName || len(i.Device) > maxName { // a file has no room for longer ones
		return Record{}, s.damaged("announcement of interface %d: names of %d and %d bytes", r.Number, len(i.Driver), len(i.Device))
	}
	i.Driver, i.Device = printable(i.Driver), printable(i.Device)
	s.known++
	r.Interface = i
	return r, nil
}

// ErrRefused means that a process does not let its frames be captured.
var ErrRefused = fmt.Errorf("refused: the process has %d captures already, runs another version of bywash, or is ending", maxCaptures)

// failure is io.EOF where the process has ended in the middle of a record, too.
func (s *Stream) failure(err error) error {
	for _, end := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE} {
		if !s.ready && errors.Is(err, end) {
			return fmt.Errorf("capture from process %d: %w", s.pid, ErrRefused)
		}
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, os.ErrDeadlineExceeded, net.ErrClosed, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return io.EOF
		}
	}
	return fmt.Errorf("capture from process %d: %w", s.pid, err)
}

func (s *Stream) damaged(format string, args ...any) error {
	return fmt.Errorf("capture from process %d: malformed: "+format, append([]any{s.pid}, args...)...)
}
