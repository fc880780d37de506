//go:build linux && !(386 || arm || mips || mipsle)

package handshake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	aSecret = []byte("sixteen bytes or more")
	aConfig = Config{Protocol: "test 1", bind: []byte("job of 2")}
)

func aKey(t testing.TB, secret []byte) *Key {
	t.Helper()
	k, err := NewKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// aPair is a connection within this process, with a deadline that no good test reaches.
func aPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for k, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if ends[k], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		_ = ends[k].SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { ends[k].Close() })
	}
	return ends[0], ends[1]
}

type outcome struct {
	conn  *Conn
	claim []byte
	err   error
}

// accepting runs Accept on the other end.
func accepting(c net.Conn, find func(KeyID) *Key, cfg Config) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		if o.conn, o.claim, o.err = Accept(c, find, &cfg); o.err != nil {
			c.Close()
		}
		done <- o
	}()
	return done
}

// shake makes both ends of a connection, and fails the test if that does not work.
func shake(t testing.TB) (dialer, listener *Conn, a, b net.Conn) {
	t.Helper()
	a, b = aPair(t)
	k := aKey(t, aSecret)
	done := accepting(b, k.Find, aConfig)
	dialer, err := Dial(a, k, &aConfig, []byte("claim"))
	o := <-done
	if err != nil || o.err != nil || string(o.claim) != "claim" {
		t.Fatalf("dialer: %v, listener: %v with claim %q", err, o.err, o.claim)
	}
	return dialer, o.conn, a, b
}

func TestFramesGoBothWays(t *testing.T) {
	d, l, _, _ := shake(t)
	for _, n := range []int{0, 1, 1000, defaultLimit} {
		for _, pair := range [][2]*Conn{{d, l}, {l, d}} {
			want := bytes.Repeat([]byte{7}, n)
			sent := make(chan error, 1)
			go func() { sent <- pair[0].Send(want) }()
			got, err := pair[1].Receive()
			if e := <-sent; err != nil || e != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes: sent with %v, got %d bytes, %v", n, e, len(got), err)
			}
		}
	}
}

// A listener that serves several secrets finds the right one by its id.
func TestKeyIDFindsTheSecret(t *testing.T) {
	keys := make(map[KeyID]*Key)
	var list []*Key
	for _, s := range []string{"the first secret", "the second secret", "the third secret"} {
		k := aKey(t, []byte(s))
		keys[k.id] = k
		list = append(list, k)
	}
	for i, k := range list {
		a, b := aPair(t)
		done := accepting(b, func(id KeyID) *Key { return keys[id] }, aConfig)
		_, err := Dial(a, k, &aConfig, nil)
		if o := <-done; err != nil || o.err != nil {
			t.Errorf("secret %d: dialer %v, listener %v", i, err, o.err)
		}
	}
}

// Both sides refuse, for the right reason, what must not become a connection. That is a peer with another secret or
// none, of another protocol, or with other bound values.
func TestRefused(t *testing.T) {
	k, other := aKey(t, aSecret), aKey(t, []byte("another secret, long enough"))
	guess := *other
	guess.id = k.id // an attacker that has seen the id, and has no secret
	for _, tt := range []struct {
		name   string
		dials  *Key
		find   func(KeyID) *Key
		change func(*Config)
	}{
		{"other secret", other, k.Find, nil},
		{"no secret at the dialer", NoSecret(), k.Find, nil},
		{"no secret at the listener", k, NoSecret().Find, nil},
		{"id of another key", &guess, k.Find, nil},
		{"other protocol", k, k.Find, func(c *Config) { c.Protocol = "test 2" }},
		{"other bound values", k, k.Find, func(c *Config) { c.bind = []byte("job of 3") }},
		{"shifted boundary", k, k.Find, func(c *Config) { c.Protocol, c.bind = "test 1j", []byte("ob of 2") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := aConfig
			if tt.change != nil {
				tt.change(&cfg)
			}
			a, b := aPair(t)
			done := accepting(b, tt.find, cfg)
			_, err := Dial(a, tt.dials, &aConfig, nil)
			if o := <-done; !errors.Is(err, ErrSecret) || !errors.Is(o.err, ErrSecret) {
				t.Errorf("dialer: %v, listener: %v; want both %v", err, o.err, ErrSecret)
			}
		})
	}
}

func TestNoSecretMeetsNoSecret(t *testing.T) {
	a, b := aPair(t)
	done := accepting(b, NoSecret().Find, aConfig)
	_, err := Dial(a, NoSecret(), &aConfig, nil)
	if o := <-done; err != nil || o.err != nil {
		t.Errorf("dialer: %v, listener: %v", err, o.err)
	}
}

// A secret of fewer than 16 bytes is refused, because a recorded hello lets any attacker try secrets unnoticed.
func TestShortSecretsAreRefused(t *testing.T) {
	for _, n := range []int{0, 1, minSecret - 1} {
		if _, err := NewKey(make([]byte, n)); !errors.Is(err, errShortSecret) {
			t.Errorf("%d bytes: got %v, want %v", n, err, errShortSecret)
		}
	}
	if _, err := NewKey(make([]byte, minSecret)); err != nil {
		t.Errorf("%d bytes: %v", minSecret, err)
	}
	short := "the secret is too short: 15 bytes can be guessed, use 16 random bytes or more"
	if _, err := OptionalKey(make([]byte, minSecret-1)); !errors.Is(err, errShortSecret) || err.Error() != short {
		t.Errorf("got error %q, want %q", err, short)
	}
	if k, err := OptionalKey(nil); err != nil || k.id != NoSecret().id {
		t.Errorf("no secret: %v, want the key of no secret", err)
	}
	if k, err := OptionalKey(aSecret); err != nil || k.id != aKey(t, aSecret).id {
		t.Errorf("a secret: %v, want its key", err)
	}
}

// recorded returns what a genuine dialer sent to a listener: hello and claim.
func recorded(t *testing.T) []byte {
	t.Helper()
	a, b := aPair(t)
	k := aKey(t, aSecret)
	var sent bytes.Buffer
	done := accepting(a, k.Find, aConfig)
	if _, err := Dial(tee{b, &sent}, k, &aConfig, []byte("claim")); err != nil {
		t.Fatal(err)
	}
	if o := <-done; o.err != nil {
		t.Fatal(o.err)
	}
	return sent.Bytes()
}

type tee struct {
	io.ReadWriter
	sent *bytes.Buffer
}

func (w tee) Write(b []byte) (int, error) {
	w.sent.Write(b)
	return w.ReadWriter.Write(b)
}

// A recording of a genuine dialer is of no use: the claim does not open.
func TestReplay(t *testing.T) {
	sent := recorded(t)
	a, b := aPair(t)
	done := accepting(b, aKey(t, aSecret).Find, aConfig)
	if _, err := a.Write(sent); err != nil {
		t.Fatal(err)
	}
	if o := <-done; !errors.Is(o.err, ErrSecret) || o.claim != nil {
		t.Errorf("a replayed dialer: %v with claim %q, want %v", o.err, o.claim, ErrSecret)
	}
}

// A dialer whose bytes come back as they are, or that reaches another dialer, gets no connection.
func TestReflection(t *testing.T) {
	k := aKey(t, aSecret)
	t.Run("echo", func(t *testing.T) {
		a, b := aPair(t)
		go func() { _, _ = io.Copy(b, b) }()
		if _, err := Dial(a, k, &aConfig, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("got %v, want %v", err, ErrMalformed)
		}
	})
	t.Run("echo as an answer", func(t *testing.T) {
		a, b := aPair(t)
		go func() {
			var hello [helloSize]byte
			_, _ = io.ReadFull(b, hello[:])
			answer := append(appendHead(nil, kindAnswer, 0), hello[headSize+len(KeyID{}):]...)
			_, _ = b.Write(answer)
		}()
		if _, err := Dial(a, k, &aConfig, nil); !errors.Is(err, ErrSecret) {
			t.Errorf("got %v, want %v", err, ErrSecret)
		}
	})
	t.Run("two dialers", func(t *testing.T) {
		a, b := aPair(t)
		other := make(chan error, 1)
		go func() {
			_, err := Dial(b, k, &aConfig, nil)
			other <- err
		}()
		_, err := Dial(a, k, &aConfig, nil)
		if e := <-other; !errors.Is(err, ErrMalformed) || !errors.Is(e, ErrMalformed) {
			t.Errorf("got %v and %v, want %v", err, e, ErrMalformed)
		}
	})
	t.Run("frames", func(t *testing.T) {
		d, l, _, _ := shake(t)
		f, err := d.Seal(nil, []byte("for the listener"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(nil, f); !errors.Is(err, ErrSecret) {
			t.Errorf("the dialer opens its own frame: %v", err)
		}
		if got, err := l.Open(nil, f); err != nil || string(got) != "for the listener" {
			t.Errorf("the listener opens %q, %v", got, err)
		}
	})
}

// No byte of the dialer's part can be changed, and none left out, unnoticed.
func TestChangedAndTruncated(t *testing.T) {
	k := aKey(t, aSecret)
	for at := range helloSize + lengthSize + Overhead + len("claim") {
		for _, cut := range []bool{false, true} {
			a, b := aPair(t)
			done := accepting(b, k.Find, aConfig)
			w := &spoiler{ReadWriter: a, at: at, cut: cut, close: func() { a.(*net.UnixConn).CloseWrite() }}
			_, err := Dial(w, k, &aConfig, []byte("claim"))
			w.close() // a claim whose length grew ends here
			o := <-done
			if o.err == nil {
				t.Fatalf("byte %d (cut off: %v): accepted with claim %q", at, cut, o.claim)
			}
			if at < helloSize && err == nil {
				t.Errorf("byte %d (cut off: %v): the dialer noticed nothing, the listener %v", at, cut, o.err)
			}
		}
	}
}

// No byte of the listener's answer can be, either.
func TestChangedAnswer(t *testing.T) {
	k := aKey(t, aSecret)
	for at := range answerSize {
		for _, cut := range []bool{false, true} {
			a, b := aPair(t)
			w := &spoiler{ReadWriter: b, at: at, cut: cut, close: func() { b.(*net.UnixConn).CloseWrite() }}
			done := make(chan error, 1)
			go func() {
				_, _, err := Accept(w, k.Find, &aConfig)
				done <- err
			}()
			if _, err := Dial(a, k, &aConfig, nil); err == nil {
				t.Errorf("byte %d (cut off: %v): the dialer noticed nothing", at, cut)
			}
			a.Close()
			if err := <-done; err == nil {
				t.Errorf("byte %d (cut off: %v): the listener accepted", at, cut)
			}
		}
	}
}

// spoiler changes the byte at an offset of what is written, or ends the stream before it.
type spoiler struct {
	io.ReadWriter
	at    int
	cut   bool
	close func()
}

func (w *spoiler) Write(b []byte) (int, error) {
	n := len(b)
	at := w.at
	w.at -= n
	switch {
	case at < 0 || at >= n:
	case w.cut:
		_, _ = w.ReadWriter.Write(b[:at])
		w.close()
		return n, nil
	default:
		b = bytes.Clone(b)
		b[at] ^= 0x40
	}
	_, err := w.ReadWriter.Write(b)
	return n, err
}

// Frames that are changed, left out, repeated, swapped or cut do not open.
func TestSealedFrames(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(f [][]byte) [][]byte
	}{
		{"a bit", func(f [][]byte) [][]byte { f[1][2] ^= 1; return f }},
		{"the tag", func(f [][]byte) [][]byte { f[1][len(f[1])-1] ^= 1; return f }},
		{"left out", func(f [][]byte) [][]byte { return append(f[:1], f[2:]...) }},
		{"repeated", func(f [][]byte) [][]byte { return [][]byte{f[0], f[0]} }},
		{"swapped", func(f [][]byte) [][]byte { f[0], f[1] = f[1], f[0]; return f }},
		{"truncated", func(f [][]byte) [][]byte { f[0] = f[0][:Overhead+1]; return f }},
		{"shorter than a tag", func(f [][]byte) [][]byte { f[0] = f[0][:3]; return f }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, l, _, _ := shake(t)
			var frames [][]byte
			for k := range 4 {
				f, err := d.Seal(nil, []byte{byte(k), 1, 2, 3})
				if err != nil {
					t.Fatal(err)
				}
				frames = append(frames, f)
			}
			var err error
			for _, f := range tt.change(frames) {
				if _, err = l.Open(nil, f); err != nil {
					break
				}
			}
			if !errors.Is(err, ErrSecret) {
				t.Errorf("got %v, want %v", err, ErrSecret)
			}
		})
	}
}

// A length beyond the limit is refused before anything is read or allocated for it.
func TestHugeLengths(t *testing.T) {
	for _, n := range []uint32{0, Overhead - 1, defaultLimit + Overhead + 1, 1 << 31, ^uint32(0)} {
		_, l, a, _ := shake(t)
		if _, err := a.Write(binary.LittleEndian.AppendUint32(nil, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Receive(); !errors.Is(err, ErrMalformed) || cap(l.in) > defaultLimit {
			t.Errorf("length %d: %v with a buffer of %d bytes, want %v", n, err, cap(l.in), ErrMalformed)
		}
	}
	k := aKey(t, aSecret)
	a, b := aPair(t)
	done := accepting(b, k.Find, aConfig)
	go func() { _, _ = Dial(&longClaim{a, 0}, k, &aConfig, nil) }()
	if o := <-done; !errors.Is(o.err, ErrMalformed) {
		t.Errorf("claim beyond the limit: %v, want %v", o.err, ErrMalformed)
	}
	if _, err := Dial(a, k, &aConfig, make([]byte, maxClaim+1)); err == nil {
		t.Error("Dial takes a claim beyond the limit")
	}
}

// longClaim replaces the length of the second write.
type longClaim struct {
	io.ReadWriter
	n int
}

func (w *longClaim) Write(b []byte) (int, error) {
	if w.n++; w.n == 2 {
		b = binary.LittleEndian.AppendUint32(nil, maxClaim+Overhead+1)
	}
	return w.ReadWriter.Write(b)
}

// A peer that sends its bytes one by one is understood; one that stops is bounded by the caller's deadline.
func TestSlowBytes(t *testing.T) {
	k := aKey(t, aSecret)
	a, b := aPair(t)
	done := accepting(b, k.Find, aConfig)
	d, err := Dial(dribble{a}, k, &aConfig, []byte("slowly"))
	o := <-done
	if err != nil || o.err != nil || string(o.claim) != "slowly" {
		t.Fatalf("dialer: %v, listener: %v with claim %q", err, o.err, o.claim)
	}
	if err := d.Send([]byte("frame")); err != nil {
		t.Fatal(err)
	}
	if got, err := o.conn.Receive(); err != nil || string(got) != "frame" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, sent := range []int{0, 1, headSize, helloSize - 1, helloSize} {
		a, b := aPair(t)
		_ = b.SetDeadline(time.Now().Add(20 * time.Millisecond))
		done := accepting(b, k.Find, aConfig)
		_, _ = a.Write(recorded(t)[:sent])
		if o := <-done; !errors.Is(o.err, os.ErrDeadlineExceeded) {
			t.Errorf("silence after %d bytes: %v, want %v", sent, o.err, os.ErrDeadlineExceeded)
		}
	}
}

type dribble struct{ io.ReadWriter }

func (w dribble) Write(b []byte) (int, error) {
	for k := range b {
		if _, err := w.ReadWriter.Write(b[k : k+1]); err != nil {
			return k, err
		}
	}
	return len(b), nil
}

func (w dribble) Read(b []byte) (int, error) { return w.ReadWriter.Read(b[:1]) }

// Another version is ErrVersion on both sides, and the dialer receives the reason.
func TestOtherVersion(t *testing.T) {
	k := aKey(t, aSecret)
	a, b := aPair(t)
	done := accepting(b, k.Find, aConfig)
	_, err := Dial(&spoilVersion{ReadWriter: a}, k, &aConfig, nil)
	if o := <-done; !errors.Is(err, ErrVersion) || !errors.Is(o.err, ErrVersion) {
		t.Errorf("dialer: %v, listener: %v; want %v", err, o.err, ErrVersion)
	}
	a, b = aPair(t)
	go func() { _, _, _ = Accept(&spoilVersion{ReadWriter: b}, k.Find, &aConfig) }()
	if _, err := Dial(a, k, &aConfig, nil); !errors.Is(err, ErrVersion) {
		t.Errorf("a listener of another version: %v, want %v", err, ErrVersion)
	}
}

// spoilVersion raises the version of the first message.
type spoilVersion struct {
	io.ReadWriter
	done bool
}

func (w *spoilVersion) Write(b []byte) (int, error) {
	if !w.done {
		w.done, b = true, bytes.Clone(b)
		b[4]++
	}
	return w.ReadWriter.Write(b)
}

// A MAC fits neither another label, division of parts, or secret; less than minMAC bytes of it are none. A recorded
// datagram still has a valid MAC: its user has to make a repetition harmless.
func TestMAC(t *testing.T) {
	k := aKey(t, aSecret)
	mac := k.MAC("label", []byte("ab"), []byte("c"))
	for _, n := range []int{minMAC, MACSize} {
		if !k.Check(mac[:n], "label", []byte("ab"), []byte("c")) {
			t.Errorf("%d bytes of the right MAC are refused", n)
		}
	}
	wrong := mac
	wrong[minMAC-1] ^= 1
	for name, ok := range map[string]bool{
		"label":      k.Check(mac[:], "labe", []byte("lab"), []byte("c")),
		"division":   k.Check(mac[:], "label", []byte("a"), []byte("bc")),
		"fewer":      k.Check(mac[:], "label", []byte("abc")),
		"secret":     aKey(t, []byte("another secret, long enough")).Check(mac[:], "label", []byte("ab"), []byte("c")),
		"no secret":  NoSecret().Check(mac[:], "label", []byte("ab"), []byte("c")),
		"changed":    k.Check(wrong[:], "label", []byte("ab"), []byte("c")),
		"too short":  k.Check(mac[:minMAC-1], "label", []byte("ab"), []byte("c")),
		"empty":      k.Check(nil, "label", []byte("ab"), []byte("c")),
		"too long":   k.Check(append(mac[:], 0), "label", []byte("ab"), []byte("c")),
		"whole, cut": k.Check(wrong[:minMAC], "label", []byte("ab"), []byte("c")),
	} {
		if ok {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A Signer agrees with its key, and takes no memory for what unauthenticated peers send.
func TestSigner(t *testing.T) {
	k := aKey(t, aSecret)
	s := k.Signer("label")
	one, two := []byte("one"), bytes.Repeat([]byte("two"), 100)
	for _, parts := range [][][]byte{nil, {nil}, {one}, {one, two}, {two, one}, {one}} {
		mac := k.MAC("label", parts...)
		if !bytes.Equal(s.MAC(parts...), mac[:]) || !s.Check(mac[:minMAC], parts...) || s.Check(mac[:minMAC], one, one) {
			t.Errorf("parts %q: Signer and Key differ", parts)
		}
	}
	mac := k.MAC("label", one, two)
	if n := testing.AllocsPerRun(100, func() {
		if !s.Check(mac[:], one, two) {
			t.Fatal("the right MAC is refused")
		}
	}); n != 0 {
		t.Errorf("Check allocates %v times", n)
	}
}

// A subkey differs for each label, division into parts and secret, and is no MAC.
func TestSubkeys(t *testing.T) {
	k, p, q := aKey(t, aSecret), []byte("ab"), []byte("c")
	sub := k.Subkey("label", p, q)
	if again := aKey(t, aSecret).Subkey("label", p, q); again != sub {
		t.Errorf("derived %x, and then %x", sub, again)
	}
	mac := k.MAC("label", p, q)
	for name, other := range map[string]Subkey{
		"label": k.Subkey("labe", []byte("lab"), q), "division": k.Subkey("label", []byte("a"), []byte("bc")),
		"fewer": k.Subkey("label", []byte("abc")), "order": k.Subkey("label", q, p), "MAC": Subkey(mac),
		"secret":    aKey(t, []byte("another secret, long enough")).Subkey("label", p, q),
		"no secret": NoSecret().Subkey("label", p, q), "next": sub.Subkey("label", p, q), "zero": {},
	} {
		if other == sub {
			t.Errorf("%s: the same key %x", name, sub)
		}
	}
}
