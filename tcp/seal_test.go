//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// sealedStream is records of a peer with a message each.
func sealedStream(t testing.TB, texts ...string) (mine *sealer, records [][]byte) {
	t.Helper()
	a, b := keys(t)
	for _, text := range texts {
		s := newSmall()
		s.put(0, frameMessage, copy(s.out[headSize:], text))
		frame := s.out[:frameSize(len(text))]
		sealed, err := b.Seal(nil, frame)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, append(binary.LittleEndian.AppendUint32(nil, uint32(len(sealed))), sealed...))
	}
	return newSealer(a), records
}

// FuzzRecords: from encrypted records that were changed, repeated, left out, reordered, cut or made up, nothing but the
// messages before that is taken, and the connection breaks. A program has up to three bytes a step: what to do, with
// which record, and where in it.
func FuzzRecords(f *testing.F) {
	texts := []string{"one", "two is longer", "three"}
	for _, program := range [][]byte{
		{0, 0, 0, 0, 1, 0, 0, 2, 0}, // all in order
		{0, 0, 0, 0, 0, 0},          // repeated
		{0, 1, 0, 0, 0, 0},          // reordered
		{0, 0, 0, 0, 2, 0},          // left out
		{1, 0, 9},                   // changed
		{1, 0, 0}, {1, 1, 3},        // its length
		{2, 0, 10}, {0, 0, 0, 2, 1, 3}, // cut
		{3, 0xff, 0, 0, 0, 0, 3, 17, 200}, // made up
	} {
		f.Add(program)
	}
	c := aContext(f, driver.Small, map[string]string{"encrypt": "on"})
	f.Fuzz(func(t *testing.T, program []byte) {
		mine, records := sealedStream(t, texts...)
		var b []byte
		next, good := 0, true // how many messages come whole and in order
		for ; len(program) >= 3 && len(b) < 1<<16; program = program[3:] {
			k := int(program[1]) % len(records)
			r := bytes.Clone(records[k])
			switch program[0] % 4 {
			case 0:
				if good = good && k == next; good {
					next++
				}
			case 1:
				r[int(program[2])%len(r)] ^= 1
				good = false
			case 2:
				if r = r[:int(program[2])%len(r)]; len(r) > 0 { // else it is left out
					good = false
				}
			case 3:
				r = append(binary.LittleEndian.AppendUint32(nil, uint32(program[1])), bytes.Repeat(program[2:3], int(program[1]))...)
				good = false
			}
			b = append(b, r...)
		}
		i, fd := c.fed(t)
		defer unix.Close(fd)
		i.rx.lock()
		i.wire.seal = mine
		i.rx.unlock()
		for len(b) > 0 {
			n, err := unix.Write(fd, b)
			if err != nil {
				break
			}
			b = b[n:]
		}
		_ = unix.Shutdown(fd, unix.SHUT_WR)
		for i.Err() == nil {
			i.receive()
		}
		for k := range next {
			var p driver.Packet
			if done, err := i.Self.RecvPoll(&p); !done || err != nil || string(p.Buf) != texts[k] {
				t.Fatalf("message %d: %v, %v, %q", k, done, err, p.Buf)
			}
			_ = i.Self.(driver.BufferReceiver).RecvBufRelease(&p)
		}
		if i.HasMessage() {
			t.Errorf("more than the %d messages that came in order is taken", next)
		}
		if err := i.Err(); !errors.Is(err, driver.ErrBroken) {
			t.Errorf("the connection has ended with %v", err)
		}
		if err := i.Self.Disconnect(); err != nil {
			t.Error(err)
		}
	})
}
