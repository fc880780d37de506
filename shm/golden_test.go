//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bufio"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// goldenFile has the bytes and the layout that docs/wire.md describes.
const goldenFile = "testdata/wire.txt"

type goldenMessage struct {
	name string
	m    message
}

func goldenMessages() []goldenMessage {
	var nonce [nonceBytes]byte
	var mac [macBytes]byte
	for i := range nonce {
		nonce[i] = byte(i)
	}
	for i := range mac {
		mac[i] = byte(0xa0 + i)
	}
	return []goldenMessage{
		{"hello", message{kind: msgHello, flags: flagLarge | flagBarrier, from: 0x0102030405060708, to: 0x1112131415161718, nonce: nonce}},
		{"challenge", message{kind: msgChallenge, flags: flagLarge, nonce: nonce, mac: mac}},
		{"proof", message{kind: msgProof, mac: mac}},
		{"accept", message{kind: msgAccept, probe: 0x7f0011223344, nonce: nonce}},
		{"confirm", message{kind: msgConfirm, probe: 0x7f0011223344, nonce: nonce}},
		{"reject", message{kind: msgReject, code: rejectVersion}},
		{"goodbye", message{kind: msgGoodbye}},
		{"arena", message{kind: msgArena, arena: 3, size: 1 << 20}},
		{"forget", message{kind: msgForget, arena: 3}},
		{"queued", message{kind: msgQueued}},
	}
}

// vectors reads the lines "vector name: hex" of goldenFile.
func vectors(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := make(map[string][]byte)
	line := regexp.MustCompile(`^vector ([a-z -]+): ([0-9a-f ]+)$`)
	for s := bufio.NewScanner(f); s.Scan(); {
		if m := line.FindStringSubmatch(s.Text()); m != nil {
			b, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
			if err != nil {
				t.Fatalf("%s: %v", m[0], err)
			}
			all[m[1]] = append(all[m[1]], b...)
		}
	}
	return all
}

// Messages on the wire are those of goldenFile, byte for byte, both ways.
func TestMessagesAreAsDocumented(t *testing.T) {
	golden := vectors(t)
	kinds := make(map[messageKind]bool)
	for _, g := range goldenMessages() {
		want, got := golden[g.name], g.m.append(nil)
		if string(got) != string(want) {
			t.Errorf("%s: got % x, file has % x", g.name, got, want)
		}
		var m message
		if err := m.parse(want); err != nil || m != g.m {
			t.Errorf("%s parsed: got %+v (%v), want %+v", g.name, m, err, g.m)
		}
		if len(want) > maxMessage {
			t.Errorf("%s has %d bytes, a message at most %d", g.name, len(want), maxMessage)
		}
		kinds[g.m.kind] = true
	}
	for k := range bodyBytes {
		if k > 0 && !kinds[messageKind(k)] {
			t.Errorf("message kind %d has no vector", k)
		}
	}
}

// A proof binds role, both incarnations, both flags and both nonces.
func TestProofIsAsDocumented(t *testing.T) {
	golden := vectors(t)
	g := goldenMessages()
	hello, challenge := g[0].m, g[1].m
	for role, label := range map[string]string{"dialer": dialerProof, "listener": listenerProof} {
		got := testKey(t, "sixteen bytes or more").MAC(label, proven(&hello, &challenge)...)
		if string(got[:]) != string(golden["mac "+role]) {
			t.Errorf("%s: got % x, file has % x", role, got, golden["mac "+role])
		}
	}
}

// Rdv data, remote keys and the words of rings and claims are those of goldenFile.
func TestSharedWordsAreAsDocumented(t *testing.T) {
	golden := vectors(t)
	check := func(name string, got []byte) {
		t.Helper()
		if string(got) != string(golden[name]) {
			t.Errorf("%s: got % x, file has % x", name, got, golden[name])
		}
	}
	seg, err := createSegment(false)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.unmap()
	w := newProducer(seg.ring[0])
	slot := unsafe.Slice((*byte)(w.slots), slotBytes)
	w.sendInline([]byte("hello"))
	check("slot inline", slot[:16])
	w.tail = ringSlots // the second lap, in the same slot
	w.publishData(1000)
	check("slot data", slot[:8])
	x := transfer{ticket: 0x0102030405060708}
	x.putRdv(3)
	check("rdv data", x.rdv[:])
	check("claim", le64(0x1234<<claimTag|claimGiveUp|5<<claimBits|7))
	c := open(t, driver.Small, nil)
	core(c).Incarnation = 0x1112131415161718
	r, err := c.(driver.Registrar).Register(make([]byte, 4096), driver.RemoteRead|driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	check("remote key", r.Key())
}

// Sizes and offsets of what lies in shared memory are those of goldenFile.
func TestLayoutIsAsDocumented(t *testing.T) {
	b, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range layout() {
		want := regexp.MustCompile(`(?m)^layout ` + regexp.QuoteMeta(name) + `: ([0-9]+)$`).FindStringSubmatch(string(b))
		if want == nil || want[1] != itoa(uint64(got)) {
			t.Errorf("layout %s: got %d, file has %v", name, got, want)
		}
	}
}

func layout() map[string]uintptr {
	var c control
	var s transferSlot
	var e endLine
	var l consumerLine
	var b2 wakePage
	var r regionEntry
	return map[string]uintptr{
		"control":               unsafe.Sizeof(c),
		"control.side":          unsafe.Offsetof(c.side),
		"control.cons":          unsafe.Offsetof(c.cons),
		"side":                  unsafe.Sizeof(c.side[0]),
		"side.seq":              unsafe.Offsetof(c.side[0].seq),
		"side.sleeping":         unsafe.Offsetof(c.side[0].sleeping),
		"side.hazard":           unsafe.Offsetof(c.side[0].hazard),
		"side.closed":           unsafe.Offsetof(c.side[0].closed),
		"consumer":              unsafe.Sizeof(l),
		"consumer.slots":        unsafe.Offsetof(l.slots),
		"consumer.data":         unsafe.Offsetof(l.data),
		"consumer.armed":        unsafe.Offsetof(l.armed),
		"transfer":              unsafe.Sizeof(s),
		"transfer.recv":         unsafe.Offsetof(s.recv),
		"transfer.send":         unsafe.Offsetof(s.send),
		"transfer.claim":        unsafe.Offsetof(s.claim),
		"end":                   unsafe.Sizeof(e),
		"end.ticket":            unsafe.Offsetof(e.ticket),
		"end.addr":              unsafe.Offsetof(e.addr),
		"end.length":            unsafe.Offsetof(e.length),
		"end.arena":             unsafe.Offsetof(e.arena),
		"end.offset":            unsafe.Offsetof(e.offset),
		"end.done":              unsafe.Offsetof(e.done),
		"end.reach":             unsafe.Offsetof(e.reach),
		"end.failed":            unsafe.Offsetof(e.failed),
		"end.ack":               unsafe.Offsetof(e.ack),
		"region":                unsafe.Sizeof(r),
		"region.generation":     unsafe.Offsetof(r.generation),
		"region.addr":           unsafe.Offsetof(r.addr),
		"region.length":         unsafe.Offsetof(r.length),
		"region.access":         unsafe.Offsetof(r.access),
		"region.arena":          unsafe.Offsetof(r.arena),
		"region.offset":         unsafe.Offsetof(r.offset),
		"wake page":             unsafe.Sizeof(b2),
		"wake page.raised":      unsafe.Offsetof(b2.raised),
		"wake page.seq":         unsafe.Offsetof(b2.seq),
		"segment small track":   uintptr(segmentFileSize(false)),
		"segment large track":   uintptr(segmentFileSize(true)),
		"ring slots":            ringSlots,
		"ring message":          maxSmall,
		"ring data small track": smallData,
		"ring data large track": largeData,
		"regions":               maxRegions,
		"transfers a direction": transferSlots,
		"piece minimum":         minPiece,
		"piece maximum":         maxPiece,
	}
}
