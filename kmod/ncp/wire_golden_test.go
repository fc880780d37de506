//go:build cgo

package ncp

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// wireVectors are what testdata/wire_vectors.py computed from the description of the format alone.
func wireVectors(t *testing.T) map[string][]byte {
	text, err := os.ReadFile("testdata/wire_vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	vectors := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ": "); ok && line[0] != '#' {
			b, err := hex.DecodeString(strings.TrimSpace(value))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			vectors[name] = b
		}
	}
	return vectors
}

// The first are the authors' own, of key 00 01 .. 0f and messages 00 01 ...
func TestSipHashVectors(t *testing.T) {
	published := map[string]string{
		"0":  "a3817f04ba25a8e66df67214c7550293",
		"1":  "da87c1d86b99af44347659119b22fc45",
		"2":  "8177228da4a45dc7fca38bdef60affe4",
		"3":  "9c70b60c5267a94e5f33b6b02985ed51",
		"4":  "f88164c12d9c8faf7d0f6e7c7bcd5579",
		"5":  "1368875980776f8854527a07690e9627",
		"6":  "14eeca338b208613485ea0308fd7a15e",
		"7":  "a1f1ebbed8dbc153c0b84aa61ff08239",
		"8":  "3b62a9ba6258f5610f83e264f31497b4",
		"15": "5493e99933b0a8117e08ec0f97cfc3d9",
	}
	published["63"] = hex.EncodeToString(wireVectors(t)["siphash 63"])
	var key [16]byte
	message := make([]byte, 64)
	for i := range message {
		key[i%16] = byte(i % 16)
		message[i] = byte(i)
	}
	for n := range 64 {
		want, ok := published[strconv.Itoa(n)]
		if !ok {
			continue
		}
		got := siphash(key, message[:n])
		if hex.EncodeToString(got[:]) != want {
			t.Errorf("%d bytes: got %x, want %s", n, got, want)
		}
	}
}

// A wireScript plays a conversation with one wire at one time.
type wireScript struct {
	*testing.T
	w       *wire
	vectors map[string][]byte
	buffer  [1500]byte
}

func newWireScript(t *testing.T, nic uint16, datagram int) *wireScript {
	c := wireConfig{nic: nic, frame: 1000, buffer: 4096, datagram: datagram, seed: 7}
	for i := range c.key {
		c.key[i] = byte(i)
	}
	w, err := newWire(c, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.close() })
	return &wireScript{T: t, w: w, vectors: wireVectors(t)}
}

func (s *wireScript) in(name string) {
	if s.vectors[name] == nil {
		s.Fatalf("no vector %q", name)
	}
	from := simAddress(1)
	s.w.input(time.Second, &from, s.vectors[name])
}

// out expects one datagram, and nothing behind it.
func (s *wireScript) out(name string) {
	s.Helper()
	s.next(name)
	s.silent()
}

func (s *wireScript) next(name string) {
	s.Helper()
	var to wireAddress
	got := s.buffer[:s.w.output(time.Second, &to, s.buffer[:])]
	if want := s.vectors[name]; string(got) != string(want) {
		s.Fatalf("%s:\n got %x\nwant %x", name, got, want)
	}
	if to != simAddress(1) {
		s.Fatalf("%s: to %v", name, to)
	}
}

func (s *wireScript) silent() {
	s.Helper()
	var to wireAddress
	if n := s.w.output(time.Second, &to, s.buffer[:]); n != 0 {
		s.Fatalf("an unexpected datagram: %x", s.buffer[:n])
	}
}

func (s *wireScript) event(nic uint16, up bool) {
	s.Helper()
	if e, ok := s.w.event(); !ok || e.nic != nic || e.up != up {
		s.Fatalf("event: got %+v, %v, want NIC %d, up %v", e, ok, nic, up)
	}
}

func (s *wireScript) frame(nic uint16, want string) {
	s.Helper()
	from, b := s.w.peek(time.Second)
	if from != nic || string(b) != want {
		s.Fatalf("frame: got %q of NIC %d, want %q", b, from, want)
	}
	s.w.consume(time.Second)
}

func (s *wireScript) send(nic uint16, frame string) {
	s.Helper()
	b := s.w.reserve(nic, 100)
	if b == nil {
		s.Fatal("no room")
	}
	copy(b, frame)
	s.w.commit(time.Second, nic, len(frame))
}

func TestWireDatagramsOfLowerNIC(t *testing.T) {
	s := newWireScript(t, 0x0102, 1452)
	s.in("lower in connect request")
	s.out("lower out hello")
	s.in("lower in welcome")
	s.out("lower out confirm")
	s.in("lower in data")
	s.out("lower out ack")
	if s.w.reserve(0x0304, 1) != nil {
		t.Error("room on a link that the host does not know to be up")
	}
	s.event(0x0304, true)
	s.frame(0x0304, "first")
	s.send(0x0304, "hello, world")
	s.send(0x0304, "again")
	s.out("lower out data")
	s.in("lower in gap 2")
	s.in("lower in gap 4")
	s.out("lower out bitmap")
	s.in("lower in repeated 4")
	s.out("lower out duplicate")
	s.w.closeAll(time.Second)
	s.next("lower out close")
}

func TestWireDatagramsOfHigherNIC(t *testing.T) {
	s := newWireScript(t, 0x0304, 1400)
	s.in("higher in hello")
	s.out("higher out welcome")
	s.in("higher in confirm")
	s.out("higher out data")
	s.event(0x0102, true)
	s.in("higher in hello again")
	s.out("higher out welcome again")
	s.in("higher in version 1")
	s.silent()
	if c := s.w.counters(); c.WrongVersion != 1 {
		t.Errorf("another version: %+v", c)
	}
	s.in("higher in close")
	s.event(0x0102, false)
}

func TestWireWhoIsThere(t *testing.T) {
	v := wireVectors(t)
	var key [16]byte
	for i := range key {
		key[i] = byte(i)
	}
	got := answerWire(key, []uint16{3, 5, 9, 700}, v["who"])
	if string(got) != string(v["here"]) {
		t.Errorf(" got %x\nwant %x", got, v["here"])
	}
	if wireDestination(v["who"]) != 0 || wireDestination(v["here"]) != 0x0102 {
		t.Error("wrong destinations")
	}
	v["who"][30]++
	if got := answerWire(key, []uint16{9}, v["who"]); got != nil {
		t.Errorf("a forged question is answered: %x", got)
	}
}
