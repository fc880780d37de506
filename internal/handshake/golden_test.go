//go:build linux && !(386 || arm || mips || mipsle)

package handshake

import (
	"bytes"
	"encoding/hex"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// goldenFile has the bytes that docs/wire.md describes.
const goldenFile = "testdata/wire.txt"

// counting gives bytes that count up, in place of random ones.
type counting byte

func (c *counting) Read(b []byte) (int, error) {
	for k := range b {
		b[k] = byte(*c)
		*c++
	}
	return len(b), nil
}

// written records each write.
type written struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.writes = append(w.writes, bytes.Clone(b))
	w.mu.Unlock()
	return w.Conn.Write(b)
}

// golden returns the bytes of one handshake with a frame each way, a MAC, and subkeys.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	k := aKey(t, []byte("sixteen bytes or more"))
	from, to := counting(0), counting(0x80)
	dials, listens := aConfig, aConfig
	dials.random, listens.random = &from, &to
	x, y := aPair(t)
	a, b := &written{Conn: x}, &written{Conn: y}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		if o.conn, o.claim, o.err = Accept(b, k.Find, &listens); o.err == nil {
			o.err = o.conn.Send([]byte("welcome"))
		}
		done <- o
	}()
	d, err := Dial(a, k, &dials, []byte("claim"))
	if o := <-done; err != nil || o.err != nil {
		t.Fatal(err, o.err)
	}
	if err := d.Send([]byte("thanks")); err != nil {
		t.Fatal(err)
	}
	id, mac := k.id, k.MAC("label", []byte("one"), []byte("two"))
	sub := k.Subkey("label", []byte("one"), []byte("two"))
	next := sub.Subkey("next")
	return map[string][]byte{
		"key id": id[:], "mac": mac[:], "subkey": sub[:], "subkey next": next[:],
		"hello": a.writes[0], "answer": b.writes[0], "claim": a.writes[1], "welcome": b.writes[1], "thanks": a.writes[2],
		"refusal": appendHead(nil, kindRefusal, refuseSecret),
	}
}

// The bytes on the wire are those of goldenFile.
func TestWireIsAsDocumented(t *testing.T) {
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string][]byte)
	line := regexp.MustCompile(`(?m)^handshake, ([a-z ]+): ([0-9a-f ]+)$`)
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		b, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		want[m[1]] = append(want[m[1]], b...)
	}
	for name, got := range golden(t) {
		if !bytes.Equal(got, want[name]) {
			t.Errorf("%s: got % x, file has % x", name, got, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("file has a vector %q that nothing makes", name)
	}
}
