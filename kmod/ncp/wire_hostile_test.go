//go:build cgo

package ncp

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

// Types of datagrams, in docs/wire.md.
const (
	wireHello = 1 + iota
	wireWelcome
	wireConfirm
	wireConnectRequest
	wireData
	wireClose
	wireWho
	wireHere
)

// A wireForger has the key: a peer that is free to say what it likes.
type wireForger struct {
	key       [16]byte
	from, to  uint16
	mine, his uint64
	number    uint64
}

func (f *wireForger) seal(b []byte) []byte {
	tag := siphash(f.key, b)
	return append(b, tag[:]...)
}

func (f *wireForger) header(kind byte) []byte {
	b := make([]byte, 72)
	b[0], b[1] = 3, kind
	binary.BigEndian.PutUint16(b[2:], f.from)
	binary.BigEndian.PutUint16(b[4:], f.to)
	binary.BigEndian.PutUint64(b[8:], f.mine)
	binary.BigEndian.PutUint64(b[16:], f.his)
	return b
}

func (f *wireForger) handshake(kind byte, frame uint32) []byte {
	b := f.header(kind)
	binary.BigEndian.PutUint32(b[32:], 4096)
	binary.BigEndian.PutUint32(b[36:], frame)
	binary.BigEndian.PutUint32(b[40:], 1452)
	return f.seal(b)
}

// data is a datagram with a fragment; change may do anything to its header.
func (f *wireForger) data(sequence uint64, position uint32, fragment []byte, change func(b []byte)) []byte {
	f.number++
	b := f.header(wireData)
	binary.BigEndian.PutUint64(b[24:], f.number)
	binary.BigEndian.PutUint64(b[40:], 4096)
	binary.BigEndian.PutUint64(b[56:], sequence)
	binary.BigEndian.PutUint32(b[64:], position)
	if change != nil {
		change(b)
	}
	return f.seal(append(b, fragment...))
}

// linkedForger is a forger of a lower number that has a link to a new wire, NIC 0x0304.
func linkedForger(t testing.TB) (*wireForger, *wire) {
	f := &wireForger{key: [16]byte{1}, from: 0x0102, to: 0x0304, mine: 5}
	w, err := newWire(wireConfig{nic: f.to, key: f.key, frame: 1000, buffer: 4096, links: 4, seed: 7}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.close() })
	f.input(w, f.handshake(wireHello, 1000))
	welcome := outputs(w)
	if len(welcome) != 1 {
		t.Fatalf("%d datagrams answer a hello", len(welcome))
	}
	f.his = binary.BigEndian.Uint64(welcome[0][8:])
	f.input(w, f.handshake(wireConfirm, 1000))
	outputs(w)
	if e, ok := w.event(); !ok || !e.up {
		t.Fatal("no link")
	}
	return f, w
}

func (f *wireForger) input(w *wire, b []byte) {
	from := simAddress(1)
	w.input(time.Second, &from, b)
}

func outputs(w *wire) (all [][]byte) {
	for {
		b := make([]byte, 65536)
		var to wireAddress
		n := w.output(time.Second, &to, b)
		if n == 0 {
			return all
		}
		all = append(all, b[:n])
	}
}

// A sender without the key gets no answer, changes nothing, and is counted.
func TestWireDropsWhatLacksTheKey(t *testing.T) {
	f, w := linkedForger(t)
	good := f.data(0, 0, make([]byte, 16), nil)
	drop := func(b []byte) {
		t.Helper()
		before := w.counters()
		memory, _ := w.memory()
		f.input(w, b)
		after := w.counters()
		now, _ := w.memory()
		if after.Unauthenticated != before.Unauthenticated+1 || after.Stale+after.Malformed+after.WrongVersion > 0 {
			t.Fatalf("%x: got %+v", b, after)
		}
		if _, ok := w.event(); ok || len(outputs(w)) > 0 || now != memory {
			t.Fatalf("%x has changed something", b)
		}
	}
	for i := range good {
		drop(good[:i])
	}
	for i := range good {
		for bit := range 8 {
			b := slices.Clone(good)
			b[i] ^= 1 << bit
			drop(b)
		}
	}
	other := *f
	other.key[15] ^= 0x80
	for kind := range byte(10) {
		drop(other.handshake(kind, 1000))
	}
	drop(append(slices.Clone(good), 0))
	drop(make([]byte, 65507))
	drop(make([]byte, 70000))
}

// A malformed datagram with the key is counted by its kind and dropped.
func TestWireCountsNonsenseOfPeersWithTheKey(t *testing.T) {
	set := func(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }
	for _, c := range []struct {
		name    string
		counter func(*wireCounters) *uint64
		make    func(f *wireForger) []byte
	}{
		{"another version", func(c *wireCounters) *uint64 { return &c.WrongVersion }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(0, 1)) }},
		{"for another NIC", func(c *wireCounters) *uint64 { return &c.Misdirected }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(5, 9)) }},
		{"from ourselves", func(c *wireCounters) *uint64 { return &c.Misdirected }, func(f *wireForger) []byte { f.from = f.to; return f.data(0, 0, nil, nil) }},
		{"from NIC 0", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { f.from = 0; return f.data(0, 0, nil, nil) }},
		{"an unknown type", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(1, 77)) }},
		{"an unknown flag", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(6, 2)) }},
		{"a bitmap beyond the end", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(7, 1)) }},
		{"too long a bitmap", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, make([]byte, 128), set(7, 9)) }},
		{"an acknowledgement of what was not sent", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, nil, set(39, 1)) }},
		{"number 0", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { f.number--; return f.data(0, 0, nil, nil) }},
		{"a fragment of 7 bytes", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.data(0, 0, make([]byte, 7), nil) }},
		{"a fragment without credit", func(c *wireCounters) *uint64 { return &c.Overrun }, func(f *wireForger) []byte { return f.data(0, 4096, make([]byte, 8), nil) }},
		{"a fragment that wraps", func(c *wireCounters) *uint64 { return &c.Overrun }, func(f *wireForger) []byte { return f.data(0, 4088, make([]byte, 16), nil) }},
		{"a fragment before the stream", func(c *wireCounters) *uint64 { return &c.Overrun }, func(f *wireForger) []byte { return f.data(0, 0xfffffff8, make([]byte, 8), nil) }},
		{"a sequence number beyond the bitmap", func(c *wireCounters) *uint64 { return &c.Overrun }, func(f *wireForger) []byte { return f.data(512, 0, make([]byte, 8), nil) }},
		{"the last sequence number", func(c *wireCounters) *uint64 { return &c.Overrun }, func(f *wireForger) []byte { return f.data(1<<64-1, 0, make([]byte, 8), nil) }},
		{"a hello of the higher NIC", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { f.from = 0x0405; return f.handshake(wireHello, 1000) }},
		{"a connect request of the lower NIC", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.handshake(wireConnectRequest, 1000) }},
		{"a handshake message that is too long", func(c *wireCounters) *uint64 { return &c.Malformed }, func(f *wireForger) []byte { return f.seal(append(f.header(wireHello), 0)) }},
		{"frames of another size", func(c *wireCounters) *uint64 { return &c.WrongLimits }, func(f *wireForger) []byte { return f.handshake(wireHello, 1004) }},
		{"an answer to no question", func(c *wireCounters) *uint64 { return &c.Stale }, func(f *wireForger) []byte { return f.seal(append(f.header(wireHere), make([]byte, 72)...)) }},
		{"another incarnation", func(c *wireCounters) *uint64 { return &c.Stale }, func(f *wireForger) []byte { f.his++; return f.data(0, 0, nil, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, w := linkedForger(t)
			f.input(w, c.make(f))
			got := w.counters()
			if *c.counter(&got) != 1 {
				t.Errorf("got %+v", got)
			}
			if e, ok := w.event(); ok {
				t.Errorf("event %+v", e)
			}
			if _, b := w.peek(time.Second); b != nil {
				t.Errorf("frame %q", b)
			}
		})
	}
}

// A stream that can't be frames ends the link.
func TestWireEndsALinkOfNonsense(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream []uint32
		second uint32 // position of a second fragment of 8 bytes
	}{
		{"an empty frame", []uint32{0, 0}, 8},
		{"a frame too long", []uint32{1001, 0}, 8},
		{"a jump backwards", []uint32{0xffffffff, 0}, 8},
		{"a jump that is not aligned", []uint32{0xffffffff, 12}, 8},
		{"a jump beyond the ring", []uint32{0xffffffff, 4104}, 8},
		{"a jump beyond what came", []uint32{0xffffffff, 64}, 8},
		{"fragments that overlap", []uint32{1, 0, 1, 0}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, w := linkedForger(t)
			var b []byte
			for _, v := range c.stream {
				b = binary.BigEndian.AppendUint32(b, v)
			}
			f.input(w, f.data(1, c.second, make([]byte, 8), nil))
			f.input(w, f.data(0, 0, b, nil))
			for range 3 {
				if _, b := w.peek(time.Second); b == nil {
					break
				}
				w.consume(time.Second)
			}
			if e, ok := w.event(); !ok || e.up || e.reason != wireNonsense {
				t.Errorf("event: got %+v, %v", e, ok)
			}
		})
	}
}

// Greetings without end get one answer each at most, no longer than they are, and no memory.
func TestWireFloodOfHellos(t *testing.T) {
	f := &wireForger{key: [16]byte{1}, to: 0x7000}
	w, err := newWire(wireConfig{nic: f.to, key: f.key, frame: 1000, links: 16}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	base, _ := w.memory()
	for i := range 10000 {
		f.from, f.mine = uint16(1+i%20), uint64(i+1)
		from := simAddress(i % 200)
		w.input(time.Second, &from, f.handshake(wireHello, 1000))
		if i%100 == 99 {
			outputs(w)
		}
	}
	c := w.counters()
	if c.BytesOut > c.BytesIn || c.DatagramsOut == 0 || c.Refused == 0 || c.Unanswered == 0 {
		t.Errorf("got %+v", c)
	}
	if now, _ := w.memory(); now > base+16*4096 {
		t.Errorf("%d bytes for 16 NICs that have only said hello", now-base)
	}
	w.tick(time.Hour)
	w.tick(2 * time.Hour)
	if now, _ := w.memory(); now != base || len(w.links()) > 0 {
		t.Errorf("%d bytes are kept for NICs that have never come up", now-base)
	}
}

// A datagram without a session costs what a short one does, however long it is, and few of them are examined.
func TestWireHashesLittleOfUnauthenticatedData(t *testing.T) {
	const n = 1000
	most := uint64(1452)
	for _, c := range []struct {
		name   string
		make   func(f *wireForger) []byte
		hashed uint64 // at most
	}{
		{"64 KiB", func(f *wireForger) []byte { return append(f.data(0, 0, nil, nil), make([]byte, 65000)...) }, 0},
		{"a long handshake message", func(f *wireForger) []byte { return append(f.handshake(wireHello, 1000), make([]byte, 1300)...) }, 0},
		{"another version", func(f *wireForger) []byte {
			return append(f.data(0, 0, nil, func(b []byte) { b[0] = 9 }), make([]byte, 1300)...)
		}, 0},
		{"no session", func(f *wireForger) []byte { f.his++; return f.data(0, 0, make([]byte, 1300), nil) }, 64 * most},
		{"no link", func(f *wireForger) []byte { f.from = 77; return f.data(0, 0, make([]byte, 1300), nil) }, 64 * most},
		{"a session that is known", func(f *wireForger) []byte { return f.data(0, 0, make([]byte, 1300), nil) }, n * most},
		{"a handshake message", func(f *wireForger) []byte { return f.handshake(wireConnectRequest, 1000) }, n * 88},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, w := linkedForger(t)
			f.key[0] ^= 1
			b := c.make(f)
			before := w.counters()
			for range n {
				f.input(w, b)
			}
			after := w.counters()
			if got := after.Hashed - before.Hashed; got > c.hashed || c.hashed > 64*most && got == 0 {
				t.Errorf("%d bytes of %d were hashed, want at most %d", got, n*len(b), c.hashed)
			}
			if got := after.Unauthenticated - before.Unauthenticated; got != n {
				t.Errorf("%d were counted as unauthenticated, want %d", got, n)
			}
		})
	}
}
