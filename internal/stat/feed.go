package stat

import (
	"encoding/binary"
	"encoding/json"
	"sync/atomic"

	"github.com/bywash/bywash/internal/kit"
)

// A capture is a stream of records, each of whole 8-byte words, in little-endian order:
//
//	0 length u32 (of all), kind u8, flags u8 (1: sent by the process), interface u16
//	8 recordInterface: length of text u32, zero u32, text: a JSON announcement
//	8 recordFrame: time u64, captured bytes u32, bytes on the wire u32, bytes
//	8 recordCounts: frames u64, of those dropped u64
//	8 recordReady: zero u64, zero u64
const (
	recordInterface = iota + 1
	recordFrame
	recordCounts
	recordReady

	recordHeader = 8
	frameHeader  = 24
	countsSize   = 24
	readySize    = 24
	flagSent     = 1
	maxRecord    = 1 << 17
)

// ringSize is how many bytes of records a NIC can be ahead of the stream: tens of milliseconds
// of what a fast one carries.
const ringSize = 32 << 20

var le = binary.LittleEndian

// feed is one tap's part of a stream: a ring of records, which the data path writes
// and the stream's goroutine reads.
type feed struct {
	tap    *kit.Tap
	number uint16
	snap   int
	ring   []byte
	closed atomic.Bool // the tap is

	// The stream's.
	announced bool
	done      bool // closed, and all is sent

	_       [64]byte
	frames  atomic.Uint64
	dropped atomic.Uint64
	tail    atomic.Uint64 // bytes written, a total
	seen    uint64        // of head, the writer's
	_       [64]byte
	head    atomic.Uint64 // bytes read
}

func (f *feed) Frame(x kit.Frame) {
	kept := x.Data[:min(len(x.Data), f.snap)]
	size := (frameHeader + len(kept) + 7) &^ 7
	f.frames.Store(f.frames.Load() + 1)
	at := f.tail.Load()
	if uint64(len(f.ring))-(at-f.seen) < uint64(size) {
		if f.seen = f.head.Load(); uint64(len(f.ring))-(at-f.seen) < uint64(size) {
			f.dropped.Store(f.dropped.Load() + 1)
			return
		}
	}
	var h [frameHeader]byte
	putRecord(h[:], size, recordFrame, f.number)
	if x.Sent {
		h[5] = flagSent
	}
	le.PutUint64(h[8:], uint64(x.Time))
	le.PutUint32(h[16:], uint32(len(kept)))
	le.PutUint32(h[20:], uint32(len(x.Data)))
	f.put(at, h[:])
	f.put(at+frameHeader, kept)
	f.tail.Store(at + uint64(size))
}

func putRecord(b []byte, size int, kind uint8, number uint16) {
	le.PutUint32(b, uint32(size))
	b[4], b[5] = kind, 0
	le.PutUint16(b[6:], number)
}

// put copies into the ring, around its end.
func (f *feed) put(at uint64, b []byte) {
	n := copy(f.ring[at%uint64(len(f.ring)):], b)
	copy(f.ring, b[n:])
}

// unread is what was written and not consumed: whole records, the second part after the ring's end.
func (f *feed) unread() (a, b []byte) {
	from, to := f.head.Load(), f.tail.Load()
	size := uint64(len(f.ring))
	start, n := from%size, to-from
	if start+n <= size {
		return f.ring[start : start+n], nil
	}
	return f.ring[start:], f.ring[:start+n-size]
}

func (f *feed) consume(n int) { f.head.Store(f.head.Load() + uint64(n)) }

// counts is a record.
func (f *feed) counts() []byte {
	b := make([]byte, countsSize)
	putRecord(b, countsSize, recordCounts, f.number)
	dropped := f.dropped.Load() // before frames, so that it is not more
	le.PutUint64(b[8:], f.frames.Load())
	le.PutUint64(b[16:], dropped)
	return b
}

// announcement is the record that comes before the others.
func (f *feed) announcement() ([]byte, error) {
	text, err := json.Marshal(Interface{f.tap.Driver, f.tap.Device, f.tap.LinkType})
	if err != nil {
		return nil, err
	}
	b := make([]byte, (recordHeader+8+len(text)+7)&^7)
	putRecord(b, len(b), recordInterface, f.number)
	le.PutUint32(b[8:], uint32(len(text)))
	copy(b[16:], text)
	return b, nil
}
