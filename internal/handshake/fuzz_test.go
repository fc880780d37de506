//go:build linux && !(386 || arm || mips || mipsle)

package handshake

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// stream reads bytes of an unauthenticated peer, then ends; bytes written to it are dropped.
type stream struct{ *bytes.Reader }

func (stream) Write(b []byte) (int, error) { return len(b), nil }

func sent(b []byte) stream { return stream{bytes.NewReader(b)} }

func known(err error) bool {
	for _, want := range []error{ErrSecret, ErrVersion, ErrMalformed, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// FuzzAccept: bytes of an unauthenticated peer establish no connection, and each error is one of the documented.
func FuzzAccept(f *testing.F) {
	g := golden(f)
	f.Add(append(bytes.Clone(g["hello"]), g["claim"]...))
	f.Add(g["hello"][:20])
	f.Add(g["answer"])
	k := aKey(f, aSecret)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, claim, err := Accept(sent(b), k.Find, &aConfig)
		if err == nil || c != nil || claim != nil {
			t.Fatalf("% x: accepted with claim %q", b, claim)
		}
		if !known(err) {
			t.Fatalf("% x: %v", b, err)
		}
	})
}

// FuzzDial: nor do the bytes of a listener without the secret.
func FuzzDial(f *testing.F) {
	g := golden(f)
	f.Add(append(bytes.Clone(g["answer"]), g["welcome"]...))
	f.Add(g["refusal"])
	f.Add(g["hello"])
	k := aKey(f, aSecret)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Dial(sent(b), k, &aConfig, []byte("claim")); err == nil || !known(err) {
			t.Fatalf("% x: %v", b, err)
		}
	})
}

// FuzzReceive: bytes that the peer has not sealed are no frame, and need no more memory than the limit.
func FuzzReceive(f *testing.F) {
	g := golden(f)
	f.Add(g["thanks"])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add(append([]byte{Overhead, 0, 0, 0}, make([]byte, Overhead)...))
	_, l, _, _ := shake(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := *l
		c.rw, c.in, c.limit = sent(b), nil, 256
		got, err := c.Receive()
		if err == nil || !known(err) || cap(c.in) > 256+Overhead {
			t.Fatalf("% x: received %q with a buffer of %d bytes: %v", b, got, cap(c.in), err)
		}
	})
}

// FuzzMAC: a MAC is good for its label and parts alone, and so is a subkey. Bytes of an unauthenticated peer are no
// MAC.
func FuzzMAC(f *testing.F) {
	f.Add("label", []byte("ab"), []byte("c"), "label", []byte("a"), []byte("bc"))
	f.Add("label", []byte(nil), []byte("x"), "label", []byte("x"), []byte(nil))
	f.Add("a", []byte("\x01\x00\x00\x00b"), []byte{}, "a", []byte("b"), make([]byte, MACSize))
	k := aKey(f, aSecret)
	f.Fuzz(func(t *testing.T, label string, a, b []byte, label2 string, c, d []byte) {
		same := label == label2 && bytes.Equal(a, c) && bytes.Equal(b, d)
		mac := k.MAC(label, a, b)
		if k.Check(mac[:], label2, c, d) != same {
			t.Errorf("a MAC of %q %q %q is good for %q %q %q: %v", label, a, b, label2, c, d, !same)
		}
		if (k.Subkey(label, a, b) == k.Subkey(label2, c, d)) != same {
			t.Errorf("%q %q %q and %q %q %q have the same subkey: %v", label, a, b, label2, c, d, !same)
		}
		if k.Check(mac[:], label, a) || k.Check(mac[:], label, a, b, nil) {
			t.Errorf("a MAC of %q %q %q is good for fewer or more parts", label, a, b)
		}
		if k.Check(d, label, a, b) && !bytes.HasPrefix(mac[:], d) {
			t.Errorf("%x is good as a MAC of %q %q %q", d, label, a, b)
		}
	})
}
