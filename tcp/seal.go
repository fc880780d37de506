//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/bywash/bywash/internal/handshake"
)

// sealer encrypts a stream. It carries records: a length u32, little-endian, and as many bytes that the handshake's
// keys seal.
type sealer struct {
	hs *handshake.Conn

	plain  []byte // a record before it is sealed
	out    []byte // a sealed record, of which sent bytes were sent
	sent   int
	left   atomic.Bool // sent is less than that
	in     []byte      // bytes that came
	have   int         // bytes of in
	full   bool        // the last read has filled in: the socket may have more
	opened []byte      // a record that was opened
	given  int         // bytes of it that were taken
}

const (
	recordSize = 16 << 10 // bytes of the stream in a record at most
	recordHead = 4
	maxRecord  = recordHead + recordSize + handshake.Overhead
)

func newSealer(hs *handshake.Conn) *sealer {
	return &sealer{
		hs: hs, plain: make([]byte, 0, recordSize), out: make([]byte, 0, maxRecord),
		in: make([]byte, 2*maxRecord), opened: make([]byte, 0, recordSize),
	}
}

// unsent reports whether a record was not sent as a whole.
func (s *sealer) unsent() bool { return s != nil && s.left.Load() }

// write seals the bytes that fit into a record, once the one before was sent, and counts them as sent. If the kernel
// takes only a part of the record, the rest goes ahead of the next one.
func (s *sealer) write(w *wire, bufs [][]byte) (n int, st status) {
	if st := s.push(w); st != ok {
		return 0, st
	}
	s.plain = s.plain[:0]
	for _, b := range bufs {
		s.plain = append(s.plain, b[:min(len(b), recordSize-len(s.plain))]...)
	}
	if len(s.plain) == 0 {
		return 0, ok
	}
	s.out, s.sent = binary.LittleEndian.AppendUint32(s.out[:0], uint32(len(s.plain)+handshake.Overhead)), 0
	sealed, err := s.hs.Seal(s.out, s.plain)
	if err != nil {
		s.out = s.out[:0]
		return 0, over
	}
	s.out = sealed
	return len(s.plain), s.push(w)
}

// push sends what is left of the last record.
func (s *sealer) push(w *wire) status {
	for s.sent < len(s.out) {
		n, st := sendBytes(w.out, s.out[s.sent:])
		if st != ok {
			s.left.Store(true)
			return st
		}
		s.sent += n
	}
	s.left.Store(false)
	return ok
}

// read opens records into bufs.
func (s *sealer) read(w *wire, bufs [][]byte) (n int, st status) {
	for {
		n += s.give(&bufs)
		if len(bufs) == 0 {
			return n, ok
		}
		if done, err := s.open(); err != nil {
			w.err = errRecord
			return n, over
		} else if done {
			continue
		}
		if n > 0 {
			return n, ok
		}
		room := s.in[s.have:]
		got, st := w.readBytes(room)
		if s.full = got == len(room); st != ok {
			return 0, st
		}
		s.have += got
	}
}

// more reports whether the socket may have more than read has taken.
func (s *sealer) more() bool { return s != nil && s.full }

// give moves bytes of the opened record to bufs, of which it leaves those that are not full.
func (s *sealer) give(bufs *[][]byte) (n int) {
	for len(*bufs) > 0 && s.given < len(s.opened) {
		b := (*bufs)[0]
		k := copy(b, s.opened[s.given:])
		s.given += k
		n += k
		if (*bufs)[0] = b[k:]; len(b) == k {
			*bufs = (*bufs)[1:]
		}
	}
	for len(*bufs) > 0 && len((*bufs)[0]) == 0 {
		*bufs = (*bufs)[1:]
	}
	return n
}

var errRecord = errors.New("a record that is damaged or forged")

// open opens the next record, once it is there as a whole and the one before was taken.
func (s *sealer) open() (bool, error) {
	if s.given < len(s.opened) || s.have < recordHead {
		return false, nil
	}
	n := int(binary.LittleEndian.Uint32(s.in))
	if n <= handshake.Overhead || n > recordSize+handshake.Overhead {
		return false, handshake.ErrMalformed
	}
	if s.have < recordHead+n {
		return false, nil
	}
	b, err := s.hs.Open(s.opened[:0], s.in[recordHead:recordHead+n])
	if err != nil {
		return false, err
	}
	s.opened, s.given = b, 0
	s.have = copy(s.in, s.in[recordHead+n:s.have])
	return true, nil
}
