// Package pcapng writes capture files as the pcapng format has them
// (draft-ietf-opsawg-pcapng): one section, little-endian, times in ns.
package pcapng

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Types of blocks, and numbers of options in them.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6

	optEnd = 0

	sectionOS, sectionApp = 3, 4

	ifName, ifDescription, ifTimeUnit = 2, 3, 9

	packetFlags = 2

	statStart, statEnd, statReceived, statDropped = 2, 3, 4, 5
)

const nanoseconds = 9 // of ifTimeUnit: a negative power of ten

// Values of packetFlags.
const (
	inbound  = 1
	outbound = 2
)

var le = binary.LittleEndian

// Writer writes a file. It is used by one goroutine at a time. After an error
// every call returns it.
type Writer struct {
	w          *bufio.Writer
	block      []byte // under construction
	interfaces uint32
	err        error
}

// Interface is where packets come from.
type Interface struct {
	Name        string
	Description string
	LinkType    uint16 // https://www.tcpdump.org/linktypes.html
	Snap        uint32 // most bytes of a packet that are kept; 0: all
}

// Packet is one that was sent or received.
type Packet struct {
	Interface uint32
	Time      int64 // ns since 1970, UTC
	Sent      bool
	Length    int // on the wire
	Data      []byte
}

// Statistics of an interface, at the end of the file.
type Statistics struct {
	Start, End        int64 // ns since 1970, UTC
	Received, Dropped uint64
}

// NewWriter begins a file, which the named application writes.
func NewWriter(w io.Writer, app string) *Writer {
	x := &Writer{w: bufio.NewWriterSize(w, 1<<20)}
	b := x.begin(blockSection)
	b = le.AppendUint32(b, 0x1a2b3c4d)
	b = le.AppendUint16(b, 1) // version 1.0
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, 1<<64-1) // length of the section: unknown
	b = option(b, sectionOS, []byte("Linux"))
	b = option(b, sectionApp, []byte(app))
	x.end(option(b, optEnd, nil))
	return x
}

// Interface announces one and returns its number.
func (x *Writer) Interface(i Interface) (uint32, error) {
	b := x.begin(blockInterface)
	b = le.AppendUint16(b, i.LinkType)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, i.Snap)
	b = option(b, ifName, []byte(i.Name))
	b = option(b, ifDescription, []byte(i.Description))
	b = option(b, ifTimeUnit, []byte{nanoseconds})
	x.end(option(b, optEnd, nil))
	x.interfaces++
	return x.interfaces - 1, x.err
}

// Packet writes one, of an interface that was announced.
func (x *Writer) Packet(p Packet) error {
	if p.Interface >= x.interfaces || len(p.Data) > p.Length {
		return fmt.Errorf("pcapng: packet with %d of %d bytes of interface %d of %d",
			len(p.Data), p.Length, p.Interface, x.interfaces)
	}
	b := x.begin(blockPacket)
	b = le.AppendUint32(b, p.Interface)
	b = stamp(b, p.Time)
	b = le.AppendUint32(b, uint32(len(p.Data)))
	b = le.AppendUint32(b, uint32(p.Length))
	b = padded(b, p.Data)
	flags := uint32(inbound)
	if p.Sent {
		flags = outbound
	}
	b = option(b, packetFlags, le.AppendUint32(nil, flags))
	x.end(option(b, optEnd, nil))
	return x.err
}

// Statistics writes those of an interface that was announced.
func (x *Writer) Statistics(number uint32, s Statistics) error {
	b := x.begin(blockStatistics)
	b = le.AppendUint32(b, number)
	b = stamp(b, s.End)
	b = option(b, statStart, stamp(nil, s.Start))
	b = option(b, statEnd, stamp(nil, s.End))
	b = option(b, statReceived, le.AppendUint64(nil, s.Received))
	b = option(b, statDropped, le.AppendUint64(nil, s.Dropped))
	x.end(option(b, optEnd, nil))
	return x.err
}

// Flush hands on what was written.
func (x *Writer) Flush() error {
	if x.err == nil {
		x.err = x.w.Flush()
	}
	return x.err
}

// begin starts a block; its length comes at the end.
func (x *Writer) begin(kind uint32) []byte {
	return le.AppendUint32(le.AppendUint32(x.block[:0], kind), 0)
}

// end completes a block, whose length stands at both of its ends.
func (x *Writer) end(b []byte) {
	size := uint32(len(b) + 4)
	le.PutUint32(b[4:], size)
	x.block = le.AppendUint32(b, size)
	if x.err == nil {
		_, x.err = x.w.Write(x.block)
	}
}

// stamp has the upper half first.
func stamp(b []byte, t int64) []byte {
	return le.AppendUint32(le.AppendUint32(b, uint32(uint64(t)>>32)), uint32(t))
}

// option has a number, a length, and a value that is padded to 4 bytes; the one
// that ends the options has none. A text that does not fit is cut.
func option(b []byte, number uint16, value []byte) []byte {
	value = value[:min(len(value), 1<<16-1)]
	b = le.AppendUint16(le.AppendUint16(b, number), uint16(len(value)))
	return padded(b, value)
}

func padded(b, value []byte) []byte {
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}
