package tcp

import (
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// tap shows the streams of a context's connections to programs that capture, which therefore need no privilege.
// Each system call that moved bytes becomes TCP segments with headers made here: addresses, ports and sequence numbers
// are the connection's, flags, window and checksum are not. docs/wire.md has the option that such segments carry.
type tap struct {
	kit.Tap
	context uint64  // incarnation
	busy    tryLock // a sink takes one segment at a time; connections have goroutines of their own
	packet  []byte  // under construction; under busy
}

// direction is that of a stream.
type direction uint8

const (
	inward direction = iota
	outward
)

// flow is the part of a connection in a capture. Nil shows nothing.
type flow struct {
	tap   *tap
	ends  [2]netip.AddrPort // whence bytes come, by direction
	mark  [markSize]byte
	shown [2]uint32 // the next sequence numbers; under the tap's busy

	moved [2]struct { // bytes of the stream, by direction; under rx and tx, or the link's
		n uint32
		_ [60]byte
	}
}

// A mark is the option of a segment in a capture: an experimental TCP option (RFC 6994).
const (
	markKind    = 253
	markID      = 0x4279 // big-endian, as all of the header
	markSize    = 8
	markVersion = 1

	markMessages = 1 // flags
	markLarge    = 2
	markEncrypt  = 4
)

const (
	segmentSize = 60 << 10 // bytes of the stream in a segment at most
	ip4Size     = 20
	ip6Size     = 40
	tcpSize     = 20 + markSize
	protocolTCP = 6
	hopLimit    = 64
)

func newTap(device string, context uint64) *tap {
	return &tap{context: context, Tap: kit.Tap{Driver: Name, Device: device, LinkType: kit.LinkRaw}}
}

// flow returns the part of a socket's connection in captures.
func (c *share) flow(sock *net.TCPConn) *flow {
	end := func(a net.Addr) netip.AddrPort {
		p, _ := a.(*net.TCPAddr)
		return netip.AddrPortFrom(p.AddrPort().Addr().Unmap(), p.AddrPort().Port())
	}
	f := &flow{tap: c.tap, ends: [2]netip.AddrPort{inward: end(sock.RemoteAddr()), outward: end(sock.LocalAddr())}}
	f.mark = [markSize]byte{markKind, markSize, markID >> 8, markID & 0xff, markVersion}
	if c.Props.Track == driver.Large {
		f.mark[5] |= markLarge
	}
	if c.opts.encrypt {
		f.mark[5] |= markEncrypt
	}
	return f
}

// messages is called when the handshake is over.
func (f *flow) messages() { f.mark[5] |= markMessages }

// clock returns the time if anybody captures, else 0. It is read before bytes are sent: sorted by time, a capture has
// them before the receiver's copy.
func (f *flow) clock() int64 {
	if f == nil || f.tap.Sinks() == nil {
		return 0
	}
	return time.Now().UnixNano()
}

// passed counts n bytes that a system call has moved, and shows them if anybody captures. Time is that of clock.
func (f *flow) passed(d direction, time int64, bufs [][]byte, n int) {
	if f == nil || n <= 0 {
		return
	}
	at := f.moved[d].n
	f.moved[d].n = at + uint32(n)
	if to := f.tap.Sinks(); to != nil {
		f.show(to, d, cmp.Or(time, f.clock()), at, bufs, n)
	}
}

// show hands n bytes of bufs to the sinks, as segments from a sequence number on.
func (f *flow) show(to []kit.Sink, d direction, time int64, at uint32, bufs [][]byte, n int) {
	t := f.tap
	t.busy.lock()
	defer t.busy.unlock()
	if t.packet == nil {
		t.packet = make([]byte, 0, ip6Size+tcpSize+segmentSize)
	}
	for off := 0; n > 0; {
		size := min(n, segmentSize)
		n -= size
		b := f.appendHeader(t.packet, d, at, size)
		at += uint32(size)
		for size > 0 {
			k := min(size, len(bufs[0])-off)
			b = append(b, bufs[0][off:off+k]...)
			size -= k
			if off += k; off == len(bufs[0]) {
				bufs, off = bufs[1:], 0
			}
		}
		for _, s := range to {
			s.Frame(kit.Frame{Time: time, Context: t.context, Sent: d == outward, Data: b})
		}
	}
	f.shown[d] = at
}

// appendHeader appends the headers of a segment with n bytes.
func (f *flow) appendHeader(b []byte, d direction, seq uint32, n int) []byte {
	be := binary.BigEndian
	from, to := f.ends[d], f.ends[1-d]
	if from.Addr().Is4() {
		start := len(b)
		b = append(b, 0x45, 0)
		b = be.AppendUint16(b, uint16(ip4Size+tcpSize+n))
		b = append(b, 0, 0, 0x40, 0, hopLimit, protocolTCP, 0, 0) // not to be fragmented
		b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		be.PutUint16(b[start+10:], checksum(b[start:]))
	} else {
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(tcpSize+n))
		b = append(b, protocolTCP, hopLimit)
		b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	}
	b = be.AppendUint16(be.AppendUint16(b, from.Port()), to.Port())
	b = be.AppendUint32(be.AppendUint32(b, seq), f.shown[1-d])
	const acknowledge, push = 0x10, 0x08
	b = append(b, tcpSize/4<<4, acknowledge|push, 0xff, 0xff, 0, 0, 0, 0) // window, no checksum, not urgent
	return append(b, f.mark[:]...)
}

// checksum is that of an IPv4 header, whose own field is 0 (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum + sum>>16)
}

// tappedSocket is a socket that carries a handshake, which a capture shows.
type tappedSocket struct {
	sock *net.TCPConn
	flow *flow
}

var _ io.ReadWriter = tappedSocket{}

func (s tappedSocket) Read(b []byte) (int, error) {
	n, err := s.sock.Read(b)
	s.flow.passed(inward, 0, [][]byte{b}, n)
	return n, err
}

func (s tappedSocket) Write(b []byte) (int, error) {
	time := s.flow.clock()
	n, err := s.sock.Write(b)
	s.flow.passed(outward, time, [][]byte{b}, n)
	return n, err
}
