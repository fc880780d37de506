package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// recorder keeps what a tap shows.
type recorder struct {
	mu     sync.Mutex
	frames []kit.Frame
}

func (r *recorder) Frame(f kit.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Data = bytes.Clone(f.Data)
	r.frames = append(r.frames, f)
}

func (r *recorder) packets() (list [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.frames {
		list = append(list, f.Data)
	}
	return list
}

// secretText is at the beginning of each message of a recorded transfer.
const secretText = "nobody else's business"

// recordTransfer moves messages of n bytes both ways between two contexts and returns what their taps show.
func recordTransfer(t *testing.T, track driver.Track, options map[string]string, sizes ...int) (r [2]*recorder) {
	t.Helper()
	c := [2]*share{aContext(t, track, options), aContext(t, track, options)}
	for k := range c {
		r[k] = &recorder{}
		c[k].tap.Attach(r[k])
	}
	var ends [2]driver.Instance
	var err error
	for k := range c {
		if ends[k], err = c[k].Connect(c[1-k].URL()); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range ends {
		if err := e.ConnectWait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range sizes {
		movesText(t, ends[0], ends[1], n)
		movesText(t, ends[1], ends[0], n)
	}
	for k := range c {
		_ = c[k].Close()
		c[k].tap.Detach(r[k])
	}
	return r
}

func movesText(t *testing.T, a, b driver.Instance, n int) {
	t.Helper()
	text := make([]byte, n)
	copy(text, secretText)
	in := driver.Packet{IOV: [][]byte{make([]byte, n)}}
	out := driver.Packet{IOV: [][]byte{text[:n/3], text[n/3:]}}
	err := b.RecvPost(&in)
	if err == nil {
		out.RdvData = in.RdvData
		err = a.SendPost(&out)
	}
	if err == nil {
		err = b.(driver.RecvWaiter).RecvWait(t.Context(), &in)
	}
	if err == nil {
		err = a.(driver.SendWaiter).SendWait(t.Context(), &out)
	}
	if err != nil || !bytes.Equal(in.IOV[0], text) {
		t.Fatalf("message of %d bytes: %v", n, err)
	}
}

// segment is a parsed frame.
type segment struct {
	from, to netip.AddrPort
	seq      uint32
	mark     []byte
	data     []byte
}

// parseSegment checks the headers of a frame.
func parseSegment(b []byte) (s segment, err error) {
	be := binary.BigEndian
	var from, to netip.Addr
	var length int
	switch {
	case len(b) > ip4Size && b[0] == 0x45:
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		if length = int(be.Uint16(b[2:])) - ip4Size; checksum(b[:ip4Size]) != 0 || b[9] != protocolTCP {
			return s, fmt.Errorf("checksum or protocol: % x", b[:ip4Size])
		}
		b = b[ip4Size:]
	case len(b) > ip6Size && b[0] == 0x60:
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		if length = int(be.Uint16(b[4:])); b[6] != protocolTCP {
			return s, fmt.Errorf("protocol: % x", b[:ip6Size])
		}
		b = b[ip6Size:]
	default:
		return s, fmt.Errorf("no IP packet: % x", b[:min(len(b), ip6Size)])
	}
	if length != len(b) || len(b) <= tcpSize || b[12] != tcpSize/4<<4 {
		return s, fmt.Errorf("length %d, %d bytes, offset %#x", length, len(b), b[12])
	}
	from16, to16 := be.Uint16(b), be.Uint16(b[2:])
	return segment{
		netip.AddrPortFrom(from, from16), netip.AddrPortFrom(to, to16), be.Uint32(b[4:]), b[20:tcpSize], b[tcpSize:],
	}, nil
}

// streams puts the segments in one direction together, by addresses and ports.
func (r *recorder) streams(t *testing.T, sent bool) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, f := range r.frames {
		s, err := parseSegment(f.Data)
		if err != nil {
			t.Fatal(err)
		}
		if f.Sent != sent {
			continue
		}
		name := fmt.Sprint(s.from, s.to)
		if uint32(len(all[name])) != s.seq {
			t.Fatalf("%s: sequence number %d after %d bytes", name, s.seq, len(all[name]))
		}
		all[name] = append(all[name], s.data...)
	}
	return all
}

// The streams of a capture are those that the sockets carried: at the receiver as at the sender, from the first byte of
// the handshake on, with messages in the clear only if the connection does not encrypt.
func TestTapShowsTheStreams(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for _, encrypt := range []string{"off", "on"} {
			for _, address := range []string{"127.0.0.1", "::1"} {
				t.Run(fmt.Sprintf("%v/encrypt=%s/%s", track, encrypt, address), func(t *testing.T) {
					size := map[driver.Track]int{driver.Small: 5000, driver.Large: 3*segmentSize + 1}[track]
					start := time.Now().UnixNano()
					r := recordTransfer(t, track, map[string]string{"encrypt": encrypt, "address": address}, size)
					for k := range r {
						checkStreams(t, r[k], r[1-k], encrypt == "off")
						for _, f := range r[k].frames {
							if f.Time < start || f.Time > time.Now().UnixNano() || f.Context == 0 {
								t.Fatalf("frame of context %#x at %d", f.Context, f.Time)
							}
						}
					}
				})
			}
		}
	}
}

func checkStreams(t *testing.T, from, to *recorder, clear bool) {
	t.Helper()
	texts, arrived := 0, to.streams(t, false)
	for name, sent := range from.streams(t, true) {
		got := arrived[name]
		if !bytes.HasPrefix(sent, got) {
			t.Errorf("%s: what arrived is not the beginning of what was sent", name)
		}
		texts += bytes.Count(got, []byte(secretText))
	}
	if want := map[bool]int{true: 1, false: 0}[clear]; texts != want {
		t.Errorf("the text arrived %d times, want %d", texts, want)
	}
}

// A capture allocates nothing for a segment.
func TestTapAllocatesNothing(t *testing.T) {
	c := aContext(t, driver.Small, nil)
	c.tap.Attach(discarder{})
	defer c.tap.Detach(discarder{})
	for _, address := range []string{"127.0.0.1:1", "[::1]:1"} {
		end := netip.MustParseAddrPort(address)
		f := &flow{tap: c.tap, ends: [2]netip.AddrPort{end, end}}
		b := make([]byte, 100)
		f.passed(outward, 0, [][]byte{b}, 1)
		if n := testing.AllocsPerRun(100, func() { f.passed(outward, f.clock(), [][]byte{b[:50], b}, 150) }); n > 0 {
			t.Errorf("%s: %v allocations for a segment", address, n)
		}
	}
}

type discarder struct{}

func (discarder) Frame(kit.Frame) {}
