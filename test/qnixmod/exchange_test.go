//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestShortMessageArrives(t *testing.T) {
	load(t, "nics=2")
	for _, nics := range [][2]int{{0, 0}, {0, 1}} {
		t.Run(fmt.Sprintf("NIC %d to NIC %d", nics[0], nics[1]), func(t *testing.T) {
			a := mustRegister(t, nics[0], small("a"))
			b := mustRegister(t, nics[1], small("b"))
			for i := range 100 {
				checkShort(t, a, b, i)
				checkShort(t, b, a, i)
			}
		})
	}
}

func checkShort(t *testing.T, from, to *process, i int) {
	t.Helper()
	text := fmt.Appendf(nil, "message %d", i)
	err := to.transfer(cmdReceive, 1, sendContext{Process: from.reg.Name, Tag: 7, Flags: flagDoorbell | flagInline, Len: 256})
	if err != nil {
		t.Fatal(err)
	}
	copy(from.region(false, 2), text)
	err = from.transfer(cmdSendShort, 2, sendContext{Process: to.reg.Name, Tag: 7, Flags: flagDoorbell, Len: uint32(len(text))})
	if err != nil {
		t.Fatal(err)
	}
	checkRung(t, from, false, 2, stateDone, uint32(len(text)))
	checkRung(t, to, true, 1, stateDone, uint32(len(text)))
	if got := to.region(true, 1)[:len(text)]; !bytes.Equal(got, text) {
		t.Fatalf("received %q, want %q", got, text)
	}
}

func checkRung(t testing.TB, p *process, receive bool, i int, wantState, wantLen uint32) {
	t.Helper()
	state, length, err := p.await(receive, i)
	if err != nil {
		t.Fatal(err)
	}
	if state != wantState || length != wantLen {
		t.Fatalf("doorbell %d of %s (receive: %v) tells state %d and %d bytes, want %d and %d", i,
			bytes.TrimRight(p.reg.Name[:], "\x00"), receive, state, length, wantState, wantLen)
	}
}

func TestTranslatedMemoryArrives(t *testing.T) {
	load(t, "nics=2")
	sizes := []int{0, 1, 4095, 4096, 4097, 16384, 16385, 100000, 1 << 20}
	for _, nics := range [][2]int{{0, 0}, {1, 0}} {
		t.Run(fmt.Sprintf("NIC %d to NIC %d", nics[0], nics[1]), func(t *testing.T) {
			a := mustRegister(t, nics[0], small("a"))
			b := mustRegister(t, nics[1], small("b"))
			for _, size := range sizes {
				checkLong(t, a, b, size, max(size, 1))
			}
		})
	}
}

// A packet whose descriptors are too many for one step is copied to another buffer when a frame for it has been taken,
// which is then given back.
func TestPacketsOfManyDescriptorsArrive(t *testing.T) {
	load(t, "nics=2")
	sizes := small("a")
	sizes.RegionSize = 8192
	a := mustRegister(t, 0, sizes)
	for _, nic := range []int{0, 1} {
		b := mustRegister(t, nic, small(fmt.Sprint("b", nic)))
		for range 20 { // freed memory may still have its bytes
			checkLong(t, a, b, 3000, 20)
			checkLong(t, a, b, 16000, 40)
		}
	}
}

// checkLong sends size bytes, in pieces, from an odd place in one memory to an odd place in another, and looks at their
// borders.
func checkLong(t *testing.T, from, to *process, size, piece int) {
	t.Helper()
	const border = 333
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	source, target := mustMap(t, size+2*border), mustMap(t, size+2*border)
	for i := range source {
		source[i] = byte(random.Uint32())
	}
	out, err := from.translate(source, accessRead)
	if err != nil {
		t.Fatal(err)
	}
	in, err := to.translate(target, accessWrite)
	if err != nil {
		t.Fatal(err)
	}
	ds := []descriptor{{Handle: out, Offset: 1}} // also of a message of 0 bytes
	for at := 0; at < size; at += piece {
		ds = append(ds[:at/piece], descriptor{Handle: out, Len: uint32(min(piece, size-at)), Offset: uint64(1 + at)})
	}
	from.describe(false, 0, ds...)
	to.describe(true, 0, descriptor{Handle: in, Len: uint32(size), Offset: border})
	flags := uint16(flagDoorbell)
	if err := from.transfer(cmdSend, 0, sendContext{Process: to.reg.Name, Flags: flags, Len: uint32(size), Descriptors: uint32(len(ds))}); err != nil {
		t.Fatal(err)
	}
	if err := to.transfer(cmdReceive, 0, sendContext{Process: from.reg.Name, Flags: flags, Len: uint32(size), Descriptors: 1}); err != nil {
		t.Fatal(err)
	}
	checkRung(t, from, false, 0, stateDone, uint32(size))
	checkRung(t, to, true, 0, stateDone, uint32(size))
	want := make([]byte, len(target))
	copy(want[border:], source[1:1+size])
	if !bytes.Equal(target, want) {
		t.Fatalf("%d bytes (seed %d) did not arrive as they were sent, or more was written", size, seed)
	}
	if err := from.untranslate(out); err != nil {
		t.Fatal(err)
	}
	if err := to.untranslate(in); err != nil {
		t.Fatal(err)
	}
}

func mustMap(t testing.TB, size int) []byte {
	t.Helper()
	b, err := anonymous(size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
