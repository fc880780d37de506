//go:build cgo

package ncp

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzDatagrams does to a wire with a link what the input says: datagrams, with the key and without, time, and
// all that a host calls. Its first bytes choose; lengths are two bytes.
func FuzzDatagrams(f *testing.F) {
	forger := &wireForger{}
	piece := func(op byte, b []byte) []byte {
		return append([]byte{op, byte(len(b) >> 8), byte(len(b))}, b...)
	}
	var all []byte
	for kind := byte(1); kind <= wireHere; kind++ {
		b := piece(1, forger.handshake(kind, 1000)[:72])
		f.Add(b)
		all = append(all, b...)
	}
	f.Add(all)
	frame := binary.BigEndian.AppendUint32(nil, 4)
	frame = append(frame, "abcd"...)
	b := piece(1, forger.data(0, 0, frame, nil))
	f.Add(append(append(b, piece(4, nil)...), piece(5, nil)...))
	f.Add(append(piece(1, forger.data(1, 8, frame, func(b []byte) { b[6] = 1 })), b...))
	f.Add(append(piece(3, []byte{9, 9}), piece(1, forger.data(0, 0, nil, func(b []byte) { b[39] = 1 }))...))
	f.Add(append(piece(3, []byte{9, 9}), piece(2, []byte{30})...))
	f.Add(piece(0, make([]byte, 100)))
	f.Fuzz(func(t *testing.T, script []byte) {
		p := &wirePlay{t: t, now: time.Second}
		p.forger, p.w = linkedForger(t)
		for len(script) >= 3 && p.steps < 200 {
			op, n := script[0], int(binary.BigEndian.Uint16(script[1:]))
			script = script[3:]
			n = min(n, len(script))
			p.do(op, script[:n])
			script = script[n:]
			p.steps++
		}
		p.output()
	})
}

type wirePlay struct {
	t      *testing.T
	w      *wire
	forger *wireForger
	now    time.Duration
	steps  int
}

func (p *wirePlay) do(op byte, b []byte) {
	from := simAddress(len(b) % 3)
	switch op % 8 {
	case 0: // without the key
		p.w.input(p.now, &from, b)
	case 1: // with it, and all that a datagram needs to be looked at
		d := append([]byte(nil), b...)
		if len(d) >= 24 {
			p.forger.patch(d)
		}
		p.w.input(p.now, &from, p.forger.seal(d))
	case 2:
		for _, v := range b[:min(len(b), 8)] {
			p.now += time.Duration(v) << 23 // up to 2 s
			if p.w.timer() <= p.now {
				p.w.tick(p.now)
			}
			p.output()
		}
	case 3:
		for _, v := range b {
			if room := p.w.reserve(p.forger.from, 1+int(v)*4); room != nil {
				clear(room)
				p.w.commit(p.now, p.forger.from, len(room)-int(v)%2)
			}
		}
	case 4:
		p.peek()
	case 5:
		p.output()
	case 6:
		p.w.addAddress(p.now, from)
	case 7:
		if len(b) > 100 {
			p.w.closeAll(p.now)
		} else {
			p.w.removeAddress(from)
		}
	}
}

// patch makes it a datagram of this link, of this version, and as new as it says.
func (f *wireForger) patch(d []byte) {
	d[0] = 3
	binary.BigEndian.PutUint16(d[2:], f.from)
	binary.BigEndian.PutUint16(d[4:], f.to)
	binary.BigEndian.PutUint64(d[8:], f.mine)
	binary.BigEndian.PutUint64(d[16:], f.his)
	if len(d) >= 32 && d[31]%4 > 0 {
		f.number++
		binary.BigEndian.PutUint64(d[24:], f.number)
	}
}

func (p *wirePlay) peek() {
	for _, ok := p.w.event(); ok; _, ok = p.w.event() {
	}
	for {
		_, b := p.w.peek(p.now)
		if b == nil {
			return
		}
		if len(b) == 0 || len(b) > 1000 {
			p.t.Fatalf("a frame of %d bytes", len(b))
		}
		var sum byte
		for _, v := range b { // reading it is what a sanitizer sees
			sum += v
		}
		_ = sum
		p.w.consume(p.now)
	}
}

func (p *wirePlay) output() {
	b := make([]byte, 1452)
	var to wireAddress
	for i := 0; ; i++ {
		n := p.w.output(p.now, &to, b)
		if n == 0 {
			break
		}
		if n > len(b) || i > 2000 {
			p.t.Fatalf("output %d of %d bytes", i, n)
		}
	}
	if now, _ := p.w.memory(); now > 1<<20 {
		p.t.Fatalf("%d bytes of memory", now)
	}
}
